"""The command as a person types it, up to what it refuses; whole sweeps run in tests/distributed."""

import json
import sys
from pathlib import Path

import pytest
from hydra.errors import HydraException

from conftest import ROOT, run
from eyas.artifact import locked
from eyas.cli.compose import Multirun, beside_overrides, from_command_line
from eyas.cli.explain import explain
from eyas.cli.sweep import changed, grid, only_job
from eyas.sweep.record import Record, State
from eyas.sweep.runner import reason
from eyas.sweep.search import check_comparable, corners, distributions


def multirun(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Multirun:
    """What a command line asks for."""
    found: list[Multirun] = []
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    from_command_line(lambda _: pytest.fail("a single run"), many=found.append)
    return found[0]


@pytest.mark.parametrize("study", sorted(path.stem for path in (ROOT / "sweeps").glob("*.yaml")))
def test_every_study_composes(study: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked = multirun(monkeypatch, f"sweeps={study}")
    header = (ROOT / "sweeps" / f"{study}.yaml").read_text()
    assert all(f"\n# {word}" in header for word in ("Question:", "Command:", "Space:", "Objective:", "Budget:"))
    config = asked.jobs[0].config
    if config.sweep.trials is not None:
        check_comparable(config)
        assert len(corners(distributions(config.sweep.space))) > 1
    else:
        sweep = changed(asked.jobs[0]) if config.sweep.changes else grid(asked)
        assert sweep.name == study
        assert len({job.name for job in sweep.jobs}) == len(sweep.jobs) > 1
    assert not list(tmp_path.iterdir()), "composing leaves nothing"


def test_a_study_that_is_narrowed_names_its_jobs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = grid(multirun(monkeypatch, "sweeps=learning_rate", "training.unroll_steps=3", "optimizer.lr=1e-3")).jobs
    assert job.name == "learning_rate/lr=0.001,unroll_steps=3"


def test_changes_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change may set several keys, and a group; all else stays as it is."""
    changes = "{adamw: ['optimizer=adamw', 'optimizer.lr=1e-3'], deep: ['draft.num_layers=2']}"
    asked = multirun(monkeypatch, "-m", f"sweep.changes={changes}", "name=study", "seed=7")
    sweep = changed(only_job(asked, "sweep.changes"))
    found = {
        job.name: (job.config.draft.num_layers, job.config.optimizer["_target_"].endswith(".AdamW"))
        for job in sweep.jobs
    }
    assert found == {"study/base": (1, False), "study/adamw": (1, True), "study/deep": (2, False)}
    assert sweep.jobs[1].swept == {"optimizer": "adamw", "optimizer.lr": "1e-3"}
    assert {job.config.seed for job in sweep.jobs} == {7}
    arguments = sweep.jobs[2].arguments
    assert {"draft.num_layers=2", "name='study/deep'", "group='study'", "hydra.mode=RUN"} <= {*arguments}


def test_a_wrong_change_stops_all_before_the_first(tmp_path: Path) -> None:
    done = run("train.py", "-m", "sweep.changes={wide: ['draft.widht=2']}", f"outputs={tmp_path}/outputs")
    assert (done.returncode, done.stdout) == (2, "")
    assert "draft.widht" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("other", ["optimizer.lr=1e-3,2e-3", "sweep.trials=3"])
def test_changes_and_nothing_else(other: str, tmp_path: Path) -> None:
    more = ["sweep.space={seed: 'choice(1, 2)'}"] if "trials" in other else []
    done = run(
        "train.py", "-m", "sweep.changes={deep: ['draft.num_layers=2']}", other, *more, f"outputs={tmp_path}/outputs"
    )
    assert done.returncode == 2
    assert "sweep.changes" in done.stderr
    assert "choose one of them" in done.stderr


def test_overrides_stay_in_one_piece() -> None:
    assert beside_overrides(["--config-dir", "a=b", "x=1", "-m"], ["y=2"]) == [
        "--config-dir",
        "a=b",
        "y=2",
        "x=1",
        "-m",
    ]
    assert beside_overrides(["-m", "~x"], ["y=2"]) == ["-m", "y=2", "~x"]
    assert beside_overrides(["--cfg", "job"], ["y=2"]) == ["--cfg", "job", "y=2"]


def test_one_wrong_job_stops_all_before_the_first(tmp_path: Path) -> None:
    done = run("train.py", "-m", "training.unroll_steps=2,3,0", f"outputs={tmp_path}/outputs")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "eyas: error: training.unroll_steps=0: must be at least 1\n"
    assert not list(tmp_path.iterdir())


def test_one_launch_of_a_sweep_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    with locked(tmp_path / "study"):
        done = run("train.py", "-m", "seed=1,2", "name=study", f"outputs={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"eyas: error: {tmp_path}/study is a sweep that another process runs; ")


def test_a_launcher_without_a_sweep_is_refused() -> None:
    done = run("train.py", "hydra/launcher=slurm")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hydra/launcher=slurm: a launcher is for the jobs of a sweep" in done.stderr


def test_a_launcher_that_is_not_installed_is_named() -> None:
    """As Hydra says it where the plugin is missing, of the file that slurm.yaml extends."""
    said = (
        "Could not find 'hydra/launcher/submitit_slurm'\n\nAvailable options in 'hydra/launcher':\n\tbasic\n\tslurm\n"
    )
    assert explain(HydraException(said)) == (
        'hydra/launcher=submitit_slurm comes with a plugin: pip install "eyas[slurm]"'
    )


def test_the_record_survives_its_own_file(tmp_path: Path) -> None:
    record = Record("study", tmp_path)
    for name in ("study/a", "study/b", "study/c"):
        record.row(name, {"seed": name[-1]}).starts(0)
    record.rows["study/a"].ends(State.done)
    record.rows["study/b"].ends(State.failed, "too hot")
    record.write()
    saved = json.loads((tmp_path / "sweep.json").read_text())
    assert saved["name"] == "study"
    assert [job["state"] for job in saved["jobs"]] == ["done", "failed", "running"]
    read = Record.read("study", tmp_path)
    assert read.rows["study/a"] == record.rows["study/a"]
    assert (read.rows["study/b"].reason, read.rows["study/c"].state) == ("too hot", State.waiting)
    assert read.row("study/a", {"seed": "other"}).state is State.waiting


def test_the_reason_is_what_was_explained_or_else_the_last_word() -> None:
    after = "eyas: eyas.training stopped with exit code 1; the same command carries on from what is complete"
    assert reason(["run", "eyas: error: set lr=1; or leave it", after], 2) == "set lr=1; or leave it"
    assert reason(["Traceback", "TypeError: no number", after], 1) == (
        "eyas.training stopped with exit code 1: TypeError: no number"
    )
    assert reason([], -9) == "was killed (SIGKILL)"
