"""Whole sweeps: two processes per job, told to end, under a launcher."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from conftest import OPTIONS
from eyas.config import Config
from eyas.run import Run, read_metrics
from eyas.sweep.jobs import Job, Sweep, job_of
from eyas.sweep.record import Record, State
from eyas.sweep.runner import Listed, Runner
from eyas.sweep.slots import Slot
from sweeping import SHORT, jobs_of, learnt, start, wait_until


@pytest.fixture
def prepared(tmp_path: Path, outputs: Path) -> Path:
    """Outputs in which tokens and states are there already."""
    shutil.copytree(outputs / "store", tmp_path / "outputs" / "store")
    return tmp_path / "outputs"


def test_two_processes_per_job_and_one_job_that_fails(prepared: Path) -> None:
    """Both ranks of a job have its parameters and no other's; a job that can't run is a row."""
    options = ["trainer=8cpu", "trainer.devices=2", "optimizer.lr=1e-3,3e-3", "training.rows_per_step=2,3"]
    sweep = start(prepared, *options)
    printed, complained = sweep.communicate(timeout=600)
    assert (sweep.returncode, complained) == (1, "")
    jobs = jobs_of(prepared)
    assert {name: job["state"] for name, job in jobs.items()} == {
        "lr=0.001,rows_per_step=2": "done",
        "lr=0.001,rows_per_step=3": "failed",
        "lr=0.003,rows_per_step=2": "done",
        "lr=0.003,rows_per_step=3": "failed",
    }
    reason = jobs["lr=0.003,rows_per_step=3"]["reason"]
    assert reason.startswith("training.rows_per_step=3 can't be dealt evenly to 2 devices")
    assert f"2 of 4 jobs failed; a log: {prepared}/study/logs/lr=0.001,rows_per_step=3.log" in printed
    runs = [prepared / "study" / f"lr={lr},rows_per_step=2" for lr in ("0.001", "0.003")]
    for run in runs:
        assert {file.name for file in (run / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
        assert read_metrics(run / "metrics.csv")[-1]["step"] == 24
    slow, fast = map(learnt, runs)
    assert slow[0]["train/loss"] == fast[0]["train/loss"], "the same draft on the same data"
    assert slow[-1] != fast[-1]


def test_sigterm_ends_all_jobs_in_order(prepared: Path) -> None:
    sweep = start(prepared, "seed=0,1", "training.max_steps=4000", "training.checkpoint_every_n_steps=4000")
    run = Run(prepared / "study" / "seed=0")

    def trains() -> bool:
        with suppress(OSError, ValueError):
            return bool(read_metrics(run.metrics_file))
        return False

    wait_until(sweep, trains)
    sweep.terminate()
    _, complained = sweep.communicate(timeout=120)
    assert sweep.returncode == 75
    assert (
        complained == "eyas: the sweep was told to end (SIGTERM); the same command carries on from what is complete\n"
    )
    assert [job["state"] for job in jobs_of(prepared).values()] == ["waiting", "waiting"]
    assert run.trained_steps() > 0, "it has saved where it was"


def test_a_job_that_is_given_up_ends_and_makes_room(prepared: Path, tiny: Callable[..., Config]) -> None:
    class Impatient(Listed):
        def gives_up(self, job: Job) -> bool:
            return bool(read_metrics(job.run.metrics_file))

    options = [*OPTIONS, *SHORT, "training.max_steps=4000", f"outputs={prepared}"]
    job = job_of((tiny(*options), options), {"seed": "0"}, "study", "study/seed=0", [])
    sweep = Sweep("study", prepared / "study", [job])
    sweep.directory.mkdir(parents=True)
    record = Record("study", sweep.directory)
    Runner(sweep, [Slot(0)], record, 1).run(Impatient([job]))
    [row] = record.rows.values()
    assert row.state is State.pruned
    assert job.run.trained_steps() > 0, "it has saved where it was"


def test_under_a_launcher_each_job_is_a_run_of_its_own(prepared: Path) -> None:
    """Submitit's own local executor: real processes, no SLURM."""
    sweep = start(prepared, "hydra/launcher=submitit_local", "optimizer.lr=1e-3,3e-3", "training.rows_per_step=2")
    printed, complained = sweep.communicate(timeout=600)
    assert (sweep.returncode, complained) == (0, ""), printed
    jobs = jobs_of(prepared)
    assert [job["state"] for job in jobs.values()] == ["done", "done"]
    for name, job in jobs.items():
        config = yaml.safe_load((prepared / "study" / name / "config.yaml").read_text())
        assert (str(config["optimizer"]["lr"]), config["group"]) == (job["overrides"]["optimizer.lr"], "study")
    slow, fast = (learnt(prepared / "study" / name) for name in jobs)
    assert slow[-1] != fast[-1]
