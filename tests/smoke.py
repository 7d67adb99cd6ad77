"""The product's own commands, one after another until a deadline, and the memory that a training takes: for `gpu_smoke`."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from eyas.run import read_metrics

ROOT = Path(__file__).parents[1]
NUM_STEPS = {"cuda": 60, "cpu": 24}
LONGEST_CHECK = 200.0
"""Seconds after which a command hangs."""
ENDING_SECONDS = 20.0

SIZES = {
    "cuda": ["data.max_length=512", "training.row_length=2048", "training.rows_per_step=4"],
    "cpu": ["data.max_length=96", "training.row_length=256", "training.rows_per_step=2"],
}
BFLOAT16 = ["capture.dtype=bfloat16", "training.compute_dtype=bfloat16"]
INTERVALS = ["training.log_every_n_steps=1", "training.checkpoint_every_n_steps=8", "training.validate_every_n_steps=8"]


class CheckError(Exception):
    """A check didn't find what it must."""


class OutOfTimeError(Exception):
    """The eight minutes are over."""


@dataclass(frozen=True)
class Smoke:
    """Where it runs, and until when."""

    device: str
    verifier: str
    outputs: Path
    deadline: float
    peaks: dict[str, float] = field(default_factory=dict)
    """The most that the training of a run took, in bytes, by its name."""

    @property
    def num_steps(self) -> int:
        return NUM_STEPS[self.device]

    def options(self, name: str, *more: str, num_steps: int | None = None) -> list[str]:
        length = ["training.epochs=null", f"training.max_steps={num_steps or self.num_steps}", *INTERVALS]
        trainer = "1gpu" if self.device == "cuda" else "cpu"
        where = [f"verifier={self.verifier}", f"trainer={trainer}", f"outputs={self.outputs}", f"name={name}"]
        shards = ["capture.tokens_per_shard=4000", "capture.tokens_per_batch=2048", "evaluation=none"]
        return [*where, *SIZES[self.device], *BFLOAT16, *length, *shards, *more]

    def start(self, *command: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, text=True, stdout=pipe, stderr=pipe)

    def end(self, process: "subprocess.Popen[str]", expected: int = 0, longest: float = LONGEST_CHECK) -> str:
        """Wait for a command; what it printed.

        Raises:
            CheckError: it ended otherwise, or hangs.
            OutOfTimeError: the time is over.
        """
        left = self.deadline - time.monotonic()
        try:
            printed, said = process.communicate(timeout=max(0.0, min(longest, left)))
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=ENDING_SECONDS)
            process.kill()
            if left < longest:
                raise OutOfTimeError from None
            raise CheckError(f"hangs: not done after {longest:.0f} s") from None
        if process.returncode != expected:
            lines = [
                line for line in (said.strip() or printed.strip() or "(nothing said)").splitlines() if line.strip()
            ]
            print("\n".join(f"    {line}" for line in lines[-40:]), flush=True)
            raise CheckError(f"exit code {process.returncode}, expected {expected}: {lines[-1][:200]}")
        for line in said.splitlines()[:5] if not expected else []:
            print(f"    said: {line[:200]}", flush=True)
        return printed

    def run(self, *command: str) -> str:
        if time.monotonic() > self.deadline:
            raise OutOfTimeError
        return self.end(self.start(*command))

    def train(self, name: str, *more: str, num_steps: int | None = None, longest: float = LONGEST_CHECK) -> str:
        if time.monotonic() > self.deadline:
            raise OutOfTimeError
        process = self.start("train.py", *self.options(name, *more, num_steps=num_steps))
        with peak_memory(self.device, process.pid) as peak:
            printed = self.end(process, longest=longest)
        self.peaks[name] = peak()
        return printed

    def losses(self, name: str) -> list[float]:
        """Of each step."""
        rows = read_metrics(self.outputs / name / "metrics.csv")
        return [row["train/loss"] for row in rows if "train/loss" in row]

    def apart(self, name: str, other: str, most: float) -> str:
        """How far the losses of two runs are from each other.

        Raises:
            CheckError: further than they may be.
        """
        ours, theirs = self.losses(name), self.losses(other)
        if len(ours) != len(theirs) or not ours:
            raise CheckError(f"{len(ours)} steps against {len(theirs)}")
        largest = max(abs(one - another) / abs(another) for one, another in zip(ours, theirs, strict=True))
        said = (
            f"losses of {len(ours)} steps differ by {largest:.1e} at most, the last {ours[-1]:.4f} and {theirs[-1]:.4f}"
        )
        if not largest <= most:
            raise CheckError(f"{said}; {most:g} is allowed")
        return said if largest else f"losses of {len(ours)} steps are identical, the last {ours[-1]:.4f}"


@contextmanager
def peak_memory(device: str, supervisor: int) -> Iterator[Callable[[], float]]:
    """The most that the training below a supervisor has taken, in bytes: of its GPU, or of its resident memory."""
    before = gpu_bytes() if device == "cuda" else 0
    peak, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            with suppress(psutil.Error, OSError, subprocess.SubprocessError, IndexError, ValueError):
                children = psutil.Process(supervisor).children()
                for child in [it for it in children if "eyas.training" in it.cmdline()]:
                    now = gpu_bytes() - before if device == "cuda" else child.memory_info().rss
                    peak[0] = max(peak[0], now)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield lambda: peak[0]
    finally:
        over.set()
        watcher.join()


def gpu_bytes() -> int:
    """What is in use on the first GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", "-i", visible, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) << 20
