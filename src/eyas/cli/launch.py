"""A sweep under one of Hydra's launchers (`hydra/launcher=slurm`): its jobs run on other machines."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import hydra
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from eyas.cli.auto import search_path
from eyas.cli.compose import Multirun
from eyas.cli.explain import CONF, explain
from eyas.errors import EyasError
from eyas.sweep.cluster import Outcome, judge, run_there
from eyas.sweep.jobs import Job, Sweep
from eyas.sweep.record import Record

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"

Start = tuple[list[str], Path]
"""The arguments of `eyas train`, and the log."""


def launcher_config(multirun: Multirun, sweep: Sweep) -> DictConfig | None:
    """The configuration in which a launcher is chosen; None where that is Hydra's basic one.

    Raises:
        EyasError: there is no such launcher, or it can't serve all of these jobs.
    """
    first = multirun.jobs[0]
    own = [*search_path(first.config_dirs), *multirun.hydra, f"hydra.sweep.dir='{sweep.directory}'"]
    try:
        with hydra.initialize_config_module(CONF, version_base="1.3"):
            config = hydra.compose("config", overrides=[*first.overrides, *own], return_hydra_config=True)
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise EyasError(explain(error)) from None
    if config.hydra.launcher._target_ == BASIC:
        return None
    devices = {job.config.trainer.devices for job in sweep.jobs}
    if len(devices) > 1:
        raise EyasError(
            f"trainer.devices is {sorted(devices)} in this sweep: a launcher asks for the same devices for all jobs; make it a "
            "sweep each"
        )
    return config


def launch(config: DictConfig, sweep: Sweep, jobs: Sequence[Job], record: Record) -> None:
    """Hand the jobs to the launcher, and wait for all of them; they go on without this process."""
    for job in jobs:
        record.row(job.name, job.swept).starts(None)
    record.write()
    outcomes: list[Outcome | None] = [None] * len(jobs)
    lost = "its launcher has brought nothing back"
    try:
        outcomes = [it.return_value for it in launcher_of(config, sweep, jobs).launch([[] for _ in jobs], 0)]
    except Exception as error:  # of whatever kind the launcher's are: its jobs are judged by their runs
        lost = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    for job, outcome in zip(jobs, outcomes, strict=True):
        judge(job, record.rows[job.name], outcome, lost)
    record.write()


def launcher_of(config: DictConfig, sweep: Sweep, jobs: Sequence[Job]) -> Launcher:
    starts = [(job.arguments, sweep.log(job).absolute()) for job in jobs]
    with hydra.initialize_config_module(CONF, version_base="1.3"):
        context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks())
    return Plugins.instance().instantiate_launcher(context, partial(numbered, starts), config)


def numbered(starts: Sequence[Start], _: DictConfig) -> Outcome:
    """What a launcher runs on the machine of a job: the job, in a process of its own."""
    return run_there(*starts[HydraConfig.get().job.num])
