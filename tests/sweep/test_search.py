from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from eyas.config import Config
from eyas.errors import EyasError
from eyas.sweep.jobs import Job, job_of
from eyas.sweep.record import Row, State
from eyas.sweep.search import Search, Values, check_comparable, corners, distributions

SPACE = {"optimizer.lr": "tag(log, interval(1e-4, 1e-2))", "training.loss": "choice(kl, ce)"}


def test_spaces_in_hydras_words() -> None:
    found = distributions({**SPACE, "seed": "int(interval(1, 8))", "draft.num_layers": "range(1, 3)"})
    assert found == {
        "optimizer.lr": FloatDistribution(1e-4, 1e-2, log=True),
        "training.loss": CategoricalDistribution(["kl", "ce"]),
        "seed": IntDistribution(1, 8),
        "draft.num_layers": CategoricalDistribution(["1", "2"]),
    }
    assert corners(distributions(SPACE)) == [
        {"optimizer.lr": "0.0001"},
        {"optimizer.lr": "0.01"},
        {"training.loss": "kl"},
        {"training.loss": "ce"},
    ]


@pytest.mark.parametrize("text", ["3", "interval(1", "[1,2]"])
def test_what_is_no_set_of_values(text: str) -> None:
    with pytest.raises(EyasError, match=r"sweep.space: seed: "):
        distributions({"seed": text})


def options(**space: str) -> list[str]:
    words = ", ".join(f'{key.replace("__", ".")}: "{text}"' for key, text in space.items())
    return ["sweep.trials=6", f"sweep.space={{{words}}}", "name=search", "evaluation=none", "sweep.objective=tau_sim"]


def test_numbers_that_could_not_be_compared(tiny: Callable[..., Config]) -> None:
    lr = "interval(0.1, 1)"
    check_comparable(tiny(*options(optimizer__lr=lr)))
    with pytest.raises(EyasError, match="on which tau_sim depends by definition"):
        check_comparable(tiny(*options(training__unroll_steps="choice(3, 7)")))
    with pytest.raises(EyasError, match="on which tau depends by definition"):
        check_comparable(tiny(*options(evaluation__k="choice(3, 5)"), "sweep.objective=tau", "evaluation=vllm"))
    with pytest.raises(EyasError, match="tau is what an evaluation measures"):
        check_comparable(tiny(*options(optimizer__lr=lr), "evaluation=transformers"))
    with pytest.raises(EyasError, match="a search needs both"):
        tiny("sweep.trials=3")


@pytest.fixture
def begun(tiny: Callable[..., Config], tmp_path: Path) -> Callable[..., Search]:
    """A search whose jobs are not run: what they would have reached is written for them."""

    def search(*overrides: str) -> Search:
        config = tiny(*options(optimizer__lr="tag(log, interval(1e-4, 1e-2))"), *overrides)

        def make_job(number: int, values: Values) -> Job:
            return job_of((config, []), values, "search", f"search/trial-{number:03d}", [])

        (tmp_path / "outputs").mkdir(exist_ok=True)
        return Search(tmp_path / "outputs", config, make_job)

    return search


def reach(job: Job, values: list[float]) -> None:
    job.run.directory.mkdir(parents=True, exist_ok=True)
    rows = [f"{10 * (place + 1)},{value}\n" for place, value in enumerate(values)]
    job.run.metrics_file.write_text("step,val/tau_sim\n" + "".join(rows))


def take(search: Search) -> Job:
    job = search.next()
    assert job is not None
    return job


def test_a_killed_search_carries_on(begun: Callable[..., Search]) -> None:
    first = begun()
    done, left, pruned = take(first), take(first), take(first)
    reach(done, [1.0, 1.5])
    first.ended(done, Row(done.name, done.swept, State.done))
    first.ended(pruned, Row(pruned.name, pruned.swept, State.pruned))
    second = begun()
    assert second.total == 4
    assert [job.name for job in second.finished] == [done.name, pruned.name]
    again = take(second)
    assert (again.name, again.swept) == (left.name, left.swept)
    new = [take(second) for _ in range(3)]
    assert second.next() is None
    values = [job.swept["optimizer.lr"] for job in [done, left, pruned, *new]]
    assert len({*values}) == 6, "a search that goes on doesn't draw the same values again"
    with pytest.raises(EyasError, match="this search was begun with"):
        begun("sweep.objective=tau")


def test_a_trial_that_falls_behind_is_given_up(begun: Callable[..., Search]) -> None:
    search = begun()
    for _ in range(5):
        job = take(search)
        reach(job, [2.0, 2.5])
        assert not search.gives_up(job)
        search.ended(job, Row(job.name, job.swept, State.done))
    job = take(search)
    assert not search.gives_up(job), "nothing is known of it yet"
    reach(job, [1.2])
    assert search.gives_up(job)
