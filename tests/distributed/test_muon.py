"""Muon on a sharded matrix: orthogonalised whole, so that two devices take the steps of one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sharded_muon
from eyas.training import muon


def test_two_devices_take_the_steps_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [subprocess.Popen([sys.executable, sharded_muon.__file__, f"{rank}", tmp_path]) for rank in range(2)]
    assert [device.wait(timeout=120) for device in devices] == [0, 0]
    monkeypatch.setattr(muon, "fast_dtype", lambda device: torch.float32)
    one = sharded_muon.Model()
    before = {name: it.clone() for name, it in one.state_dict().items()}
    sharded_muon.trained(one)
    whole = torch.load(tmp_path / "whole.pt")
    for name, it in one.state_dict().items():
        assert not torch.allclose(it, before[name], atol=1e-3), f"{name} has moved"
        torch.testing.assert_close(whole[name], it, rtol=1e-4, atol=1e-5)
