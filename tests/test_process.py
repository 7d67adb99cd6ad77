"""What a stage's process has in its environment."""

import subprocess

import pytest

from eyas.process import start

NAMES = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "TORCHDYNAMO_DISABLE", "LOCAL_RANK"]
PRINT = f"import os; print(*[os.environ.get(name) for name in {NAMES}])"


def test_environment_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is kept, unless the user says otherwise; of a launcher around us it hears nothing."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1234")
    monkeypatch.setenv("LOCAL_RANK", "3")
    child = start("timeit", ["-n1", "-r1", PRINT], stdout=subprocess.PIPE)
    printed = child.communicate(timeout=60)[0].decode().splitlines()[0]
    assert printed == f"1234 {256 << 20} 1 None"
