"""Sweeps of the tiny verifier, for tests that look at what becomes of them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import OPTIONS, ROOT
from eyas.run import read_metrics

SHORT = ["name=study", "evaluation=none", "training.max_steps=24"]
SHORT += [f"training.{what}_every_n_steps={steps}" for what, steps in (("log", 1), ("checkpoint", 4), ("validate", 6))]


def start(outputs: Path, *overrides: str, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    """A sweep of the tiny verifier."""
    command = [sys.executable, "train.py", "-m", *OPTIONS, *SHORT, f"outputs={outputs}", *overrides]
    variables, pipe = {**os.environ, **(environment or {})}, subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True)


def jobs_of(outputs: Path) -> dict[str, dict[str, Any]]:
    """The rows of sweep.json."""
    file = outputs / "study" / "sweep.json"
    return {job["name"].removeprefix("study/"): job for job in json.loads(file.read_text())["jobs"]}


def learnt(run: Path) -> list[dict[str, float]]:
    """metrics.csv without what the clock decides."""
    timed = ("per_second", "wait_share", "memory")
    return [
        {key: value for key, value in row.items() if not any(word in key for word in timed)}
        for row in read_metrics(run / "metrics.csv")
    ]


def wait_until(sweep: "subprocess.Popen[str]", happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not happened():
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
