import re
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.config import Config
from eyas.errors import EyasError
from eyas.stages import run_identity
from eyas.sweep.jobs import MAX_NAME, Choice, Sweep, short_names, sweep_of


@pytest.fixture
def choices(tiny: Callable[..., Config]) -> Callable[..., list[Choice]]:
    """Jobs as they are composed: the same overrides, and one more set of them each."""

    def composed(*each: list[str], name: str = "name=study") -> list[Choice]:
        return [(tiny(name, *own), [name, *own]) for own in each]

    return composed


def names(sweep: Sweep) -> list[str]:
    return [job.name for job in sweep.jobs]


def test_jobs_are_named_after_what_is_swept(choices: Callable[..., list[Choice]], tmp_path: Path) -> None:
    each = [["optimizer.lr=0.0003", f"training.unroll_steps={steps}", "seed=7"] for steps in (2, 3)]
    sweep = sweep_of(choices(*each), ["optimizer.lr"], [])
    assert names(sweep) == ["study/lr=0.0003,unroll_steps=2", "study/lr=0.0003,unroll_steps=3"]
    job = sweep.jobs[1]
    assert job.swept == {"optimizer.lr": "0.0003", "training.unroll_steps": "3"}
    assert (job.config.name, job.config.group, job.config.training.unroll_steps) == (job.name, "study", 3)
    assert job.run.directory == tmp_path / "outputs" / job.name
    assert sweep.log(job) == tmp_path / "outputs" / "study" / "logs" / "lr=0.0003,unroll_steps=3.log"


def test_a_job_is_a_single_run_of_the_same_configuration(choices: Callable[..., list[Choice]]) -> None:
    [first, _] = sweep_of(choices(["seed=1"], ["seed=2"]), [], ["/some/conf"]).jobs
    assert first.arguments == [
        "--config-dir=/some/conf",
        "seed=1",
        "name='study/seed=1'",
        "group='study'",
        "hydra.mode=RUN",
    ]


def test_names_that_differ_by_themselves_stay(choices: Callable[..., list[Choice]]) -> None:
    sweep = sweep_of(choices(["seed=1"], ["seed=2"], name="name='mine/s${seed}'"), [], [])
    assert (sweep.name, names(sweep)) == ("mine", ["mine/s1", "mine/s2"])


@pytest.mark.parametrize(
    ("each", "name", "message"),
    [
        ([["seed=1"]], "name=study", "nothing is swept"),
        ([["seed=1"], ["seed=2"]], "name='s${seed}'", "no directory in common (s1, s2); name the sweep"),
        (
            [["seed=1", "optimizer.lr=1"], ["seed=1", "optimizer.lr=2"], ["seed=2", "optimizer.lr=2"]],
            "name='mine/${seed}'",
            "2 jobs have the name mine/1",
        ),
    ],
    ids=["nothing", "apart", "twice"],
)
def test_jobs_that_can_not_be_told_apart(
    choices: Callable[..., list[Choice]], each: list[list[str]], name: str, message: str
) -> None:
    with pytest.raises(EyasError, match=re.escape(message)):
        sweep_of(choices(*each, name=name), [], [])


def test_names_are_file_names_and_differ() -> None:
    assert short_names([{"draft.layer_ids": "[2,4]", "data": "mine"}]) == ["layer_ids=2-4,data=mine"]
    assert short_names([{"data.seed": "1", "seed": "2"}]) == ["data.seed=1,seed=2"]
    long = short_names([{"data.path": "x" * number} for number in (MAX_NAME, MAX_NAME + 1)])
    alike = short_names([{"data.path": path} for path in ("/a/b", "a-b")])
    for pair in (long, alike):
        assert len({*pair}) == 2
        assert all(re.fullmatch(r"[0-9a-f]{12}", it) for it in pair)


def test_how_a_sweep_runs_is_no_part_of_a_run(tiny: Callable[..., Config], tiny_checkpoint: object) -> None:
    assert run_identity(tiny("sweep.slots=2")) == run_identity(tiny())
