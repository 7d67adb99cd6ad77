import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from eyas.config import Config
from eyas.errors import EyasError
from eyas.sweep.slots import Slot, share, slots_for


@pytest.mark.parametrize(("cores", "number"), [(2, 2), (7, 3), (16, 4), (64, 5)])
def test_cores_are_dealt_evenly_and_each_once(cores: int, number: int) -> None:
    shares = share(range(cores), number)
    assert [core for own in shares for core in own] == list(range(cores))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_slot_is_the_whole_machine(tiny: Callable[..., Config]) -> None:
    assert slots_for([tiny()]) == [Slot(0)]
    assert Slot(0).environment() == {}


def test_each_slot_has_gpus_of_its_own(tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    config = tiny("trainer=2gpu", "sweep.slots=2")
    assert [slot.environment() for slot in slots_for([config, config])] == [
        {"CUDA_VISIBLE_DEVICES": "4,5"},
        {"CUDA_VISIBLE_DEVICES": "6,7"},
    ]


def test_a_server_needs_its_gpus_too(tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with pytest.raises(
        EyasError, match=r"2 jobs of 4 GPUs each .* need 8, and there are 4 \(0,1,2,3\); set sweep.slots=1"
    ):
        slots_for([tiny("trainer=1gpu", "sweep.slots=2", "server.tensor_parallel=4")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["trainer=2gpu"], "need 4, and there are 3"),
        (["trainer=1gpu", "server.port=8000"], "server.port=8000 with sweep.slots=2"),
        (["trainer=1gpu", "server.gpus=[0]"], r"server.gpus=\[0\] with sweep.slots=2"),
        (["sweep.slots=1000"], "sweep.slots=1000: there are"),
    ],
)
def test_jobs_that_do_not_fit_side_by_side(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(EyasError, match=message):
        slots_for([tiny("sweep.slots=2", *options)])


def test_what_is_started_in_a_slot_has_its_cores() -> None:
    before = os.sched_getaffinity(0)
    slot = Slot(0, (), (min(before),))
    program = "import json, os, subprocess, sys; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    with slot.entered():
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert os.sched_getaffinity(0) == before
    assert json.loads(child.communicate()[0]) == [min(before)]
