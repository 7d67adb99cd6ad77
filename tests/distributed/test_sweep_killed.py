"""A sweep in two slots that is killed and carried on: what it would have been one job after another."""

import signal
import time
from itertools import pairwise
from pathlib import Path

import psutil
import yaml

from eyas.run import Run
from sweeping import jobs_of, learnt, start, wait_until


def test_killed_in_two_slots_it_reaches_what_it_would_have_one_after_another(tmp_path: Path) -> None:
    grid = ["seed=0,1,2", "optimizer.lr=1e-3,3e-3", "sweep.slots=2"]
    outputs = tmp_path / "slots"
    apart = {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # where the verifier is made, by whoever comes first
    sweep = start(outputs, *grid, environment=apart)
    first = [Run(outputs / "study" / f"seed=0,lr={lr}") for lr in ("0.001", "0.003")]
    wait_until(sweep, lambda: any(list(run.checkpoints.glob("step-0000000?")) for run in first))
    below = psutil.Process(sweep.pid).children(recursive=True)
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate(timeout=60)
    _, alive = psutil.wait_procs(below, 60)
    assert not alive
    assert {job["state"] for job in jobs_of(outputs).values()} == {"running", "waiting"}

    _, complained = (sweep := start(outputs, *grid, environment=apart)).communicate(timeout=600)
    assert (sweep.returncode, complained) == (0, "")
    assert any("resumes at step" in log.read_text() for log in (outputs / "study" / "logs").iterdir())
    jobs = jobs_of(outputs)
    assert [job["state"] for job in jobs.values()] == ["done"] * 6
    for slot in (0, 1):
        times = sorted((job["started"], job["ended"]) for job in jobs.values() if job["slot"] == slot)
        assert len(times) >= 2
        assert all(end <= begin for (_, end), (begin, _) in pairwise(times)), "one job in a slot at a time"
    for stage in ("tokens", "states"):
        [made] = (outputs / "store" / stage).iterdir()
        assert (made / "manifest.json").exists()
    [verifier] = (tmp_path / "cache").rglob("config.json")
    assert (verifier.parent / "model.safetensors").exists()
    assert not list(outputs.rglob("multirun.yaml"))

    alone = tmp_path / "alone"
    printed, complained = (sweep := start(alone, "seed=0", grid[1], environment=apart)).communicate(timeout=600)
    assert (sweep.returncode, complained) == (0, ""), printed
    for lr in ("0.001", "0.003"):
        ours, theirs = outputs / "study" / f"seed=0,lr={lr}", alone / "study" / f"lr={lr}"
        assert learnt(ours) == learnt(theirs)
        assert yaml.safe_load((ours / "config.yaml").read_text())["optimizer"]["lr"] == float(lr)

    started = time.monotonic()
    printed, _ = (sweep := start(outputs, *grid, environment=apart)).communicate(timeout=600)
    assert sweep.returncode == 0
    assert printed.count("already") == 6
    assert "6 jobs, 0 to run" in printed
    assert jobs_of(outputs) == jobs
    assert time.monotonic() - started < 60
