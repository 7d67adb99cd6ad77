"""A run that goes on in the background, for tests that do something to it meanwhile."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from eyas.run import Run, read_metrics

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Running:
    """`python train.py`, or a stage, with its outputs in a directory of its own."""

    supervisor: "subprocess.Popen[str]"
    run: Run

    @classmethod
    def start(cls, outputs: Path, *options: str, program: Sequence[str] = ("train.py",)) -> "Running":
        command = [sys.executable, *program, f"outputs={outputs}", "name=run", *options]
        pipe = subprocess.PIPE
        supervisor = subprocess.Popen(
            command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, preexec_fn=_hears_interrupts
        )
        return cls(supervisor, Run(outputs / "run"))

    def wait_for(self, happened: Callable[[], bool], seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            assert self.supervisor.poll() is None, f"it ended too early: {self.supervisor.communicate()}"
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def steps(self) -> int:
        """Done since the beginning, as its metrics say."""
        with suppress(OSError, ValueError):
            return int(max((row["step"] for row in read_metrics(self.run.metrics_file)), default=0))
        return 0

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.supervisor.pid).children()

    def rank(self, number: int) -> psutil.Process:
        """A rank of the training."""
        [found] = [child for child in self.children() if child.environ().get("RANK") == str(number)]
        return found

    def kill(self, victim: psutil.Process | None = None) -> None:
        """SIGKILL to the supervisor, or to one of its children; returns when all of them are gone."""
        children = self.children()
        (victim or self.supervisor).send_signal(signal.SIGKILL)
        self.supervisor.wait(60)
        _, alive = psutil.wait_procs(children, 60)
        assert not alive

    def end(self, seconds: float = 600) -> tuple[int, str, str]:
        """Wait for its end: (exit code, stdout, stderr)."""
        printed, complained = self.supervisor.communicate(timeout=seconds)
        return self.supervisor.returncode, printed, complained


def _hears_interrupts() -> None:
    """Ctrl-C as in a terminal: what a shell starts in the background ignores it, and so does all that this starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def compare_metrics(ours: Run, theirs: Run) -> None:
    """All of them, to 1e-5, apart from times."""
    one, other = (read_metrics(run.metrics_file) for run in (ours, theirs))
    assert [row.keys() for row in one] == [row.keys() for row in other]
    for row, expected in zip(one, other, strict=True):
        for key in row.keys() - {"train/tokens_per_second", "train/data_wait_share"}:
            assert row[key] == pytest.approx(expected[key], rel=1e-5), (row["step"], key)
