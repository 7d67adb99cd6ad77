"""A search instead of a grid: each next job is what Optuna's TPE makes of the results so far. A study is its journal file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep
from hydra.errors import HydraException
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from eyas.config import Config
from eyas.errors import EyasError
from eyas.run import read_metrics
from eyas.sweep.jobs import Job
from eyas.sweep.record import Row, State
from eyas.sweep.results import result_of
from eyas.sweep.schema import Objective

Values = dict[str, str]
"""Overrides by key."""


class Search:
    """The jobs of a search, one at a time: those that a killed launch has left first, then new ones."""

    def __init__(self, directory: Path, config: Config, make_job: Callable[[int, Values], Job]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.make_job = make_job
        self.distributions = distributions(config.sweep.space)
        # tau_sim is a sum over the unroll steps: at another number of them it says nothing about who is behind.
        prunes = config.sweep.prune and "training.unroll_steps" not in config.sweep.space
        storage = JournalStorage(JournalFileBackend(str(directory / "optuna.journal")))
        self.study = optuna.create_study(
            storage=storage,
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner() if prunes else optuna.pruners.NopPruner(),
        )
        self._check_same(config)
        trials = self.study.trials
        # The seed moves on with the study: the same one again would draw the same values again.
        self.study.sampler = optuna.samplers.TPESampler(
            seed=config.seed + len(trials), constant_liar=config.sweep.slots > 1
        )
        self.left = [trial for trial in trials if trial.state is TrialState.RUNNING]
        told = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        self.new = max(0, (config.sweep.trials or 0) - len(told) - len(self.left))
        self.total = len(self.left) + self.new
        self.finished = [make_job(trial.number, texts(trial.params)) for trial in told]
        self.trials: dict[str, Trial] = {}
        self.seen: dict[str, float] = {}

    def next(self) -> Job | None:
        if self.left:
            trial = Trial(self.study, self.left.pop(0)._trial_id)
        elif self.new:
            self.new -= 1
            trial = self.study.ask(self.distributions)
        else:
            return None
        try:
            job = self.make_job(trial.number, texts(trial.params))
        except EyasError as error:  # each value is right (`corners`), and these don't go together
            print(f"failed   trial {trial.number}  {trial.params}: {error}", flush=True)
            self.study.tell(trial.number, state=TrialState.FAIL)
            return self.next()
        self.trials[job.name] = trial
        return job

    def gives_up(self, job: Job) -> bool:
        """Report each validation as it appears in metrics.csv; true once the trial is behind."""
        file = job.run.metrics_file
        if not file.exists() or (changed := file.stat().st_mtime) == self.seen.get(job.name):
            return False
        self.seen[job.name] = changed
        trial = self.trials[job.name]
        known = self.study.trials[trial.number].intermediate_values
        try:
            rows = read_metrics(file)
        except ValueError:  # its last row is just being written
            return False
        for row in rows:
            if "val/tau_sim" in row and row["step"] not in known:
                trial.report(row["val/tau_sim"], int(row["step"]))
        return trial.should_prune()

    def ended(self, job: Job, row: Row) -> None:
        number = self.trials[job.name].number
        result = result_of(job.run, job.config)
        if row.state is State.done and result:
            self.study.tell(number, result.value)
        elif row.state is State.pruned:
            self.study.tell(number, state=TrialState.PRUNED)
        elif row.state is not State.waiting:
            self.study.tell(number, state=TrialState.FAIL)

    def _check_same(self, config: Config) -> None:
        wanted = {"space": dict(config.sweep.space), "objective": config.sweep.objective.name}
        found = self.study.user_attrs.get("search", wanted)
        if found != wanted:
            raise EyasError(
                f"this search was begun with {found}, and is now {wanted}: its results don't go together; choose another name=..."
            )
        self.study.set_user_attr("search", wanted)


def check_comparable(config: Config) -> None:
    """Whether the numbers of all trials mean the same.

    Raises:
        EyasError: they don't, or there will be none.
    """
    objective, space = config.sweep.objective, config.sweep.space
    if (objective is Objective.tau) != (config.evaluation.engine is not None):
        raise EyasError(
            f"sweep.objective={objective.name} with evaluation={config.evaluation.engine.name if config.evaluation.engine else None}: "
            "tau is what an evaluation measures (evaluation=transformers or vllm), tau_sim is for evaluation=none"
        )
    own = "evaluation" if objective is Objective.tau else "training.unroll_steps"
    if found := [key for key in space if key == own or key.startswith(f"{own}.")]:
        raise EyasError(
            f"sweep.space has {', '.join(found)}, on which {objective.name} depends by definition: its values could not be compared"
        )


def distributions(space: dict[str, str]) -> dict[str, BaseDistribution]:
    """Hydra's sweeps as Optuna's distributions.

    Raises:
        EyasError: one that is no sweep.
    """
    parser = OverridesParser.create()
    found: dict[str, BaseDistribution] = {}
    for key, text in space.items():
        try:
            override = parser.parse_override(f"{key}={text}")
        except HydraException as error:
            raise EyasError(f"sweep.space: {key}: {str(error).splitlines()[0]}") from None
        value = override.value()
        if isinstance(value, IntervalSweep) and value.start is not None and value.end is not None:
            whole = isinstance(value.start, int) and isinstance(value.end, int)
            kind: Any = IntDistribution if whole else FloatDistribution
            found[key] = kind(value.start, value.end, log="log" in value.tags)
        elif isinstance(value, ChoiceSweep | RangeSweep):
            found[key] = CategoricalDistribution(list(override.sweep_string_iterator()))
        else:
            raise EyasError(
                f"sweep.space: {key}: {text} is no set of values; expected interval(low, high), tag(log, interval(low, high)), "
                "choice(a, b) or range(start, stop, step)"
            )
    return found


def corners(found: dict[str, BaseDistribution]) -> list[Values]:
    """The extreme values of each key, alone: what can be checked before anything runs."""
    ends: dict[str, list[Any]] = {
        key: list(it.choices) if isinstance(it, CategoricalDistribution) else [it.low, it.high]  # type: ignore[attr-defined]
        for key, it in found.items()
    }
    return [{key: str(value)} for key, values in ends.items() for value in values]


def texts(values: dict[str, Any]) -> Values:
    """Values as overrides have them."""
    return {key: str(value) for key, value in values.items()}
