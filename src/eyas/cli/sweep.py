"""`-m key=a,b` and `sweeps=NAME`: many runs of `eyas train`, each a fresh process; the sweep itself trains nothing."""

from collections.abc import Sequence
from pathlib import Path

from eyas.cli.compose import Composed, Multirun, compose
from eyas.cli.launch import launch, launcher_config
from eyas.errors import EyasError
from eyas.sweep.jobs import Job, Sweep, is_complete, job_of, sweep_of
from eyas.sweep.record import Record, State, held
from eyas.sweep.results import print_table, result_of
from eyas.sweep.runner import Listed, Runner
from eyas.sweep.slots import slots_for


def sweep(multirun: Multirun) -> None:
    """Run what `multirun` asks for: a grid, or a search.

    Raises:
        EyasError: what would go wrong, before anything is started.
        SystemExit: with 1 where a job has failed.
    """
    if multirun.jobs[0].config.sweep.trials is None:
        run_grid(multirun)
    else:
        run_search(multirun)


def run_grid(multirun: Multirun) -> None:
    """All jobs that aren't done yet, then a table of all."""
    choices = [(it.config, it.overrides) for it in multirun.jobs]
    found = sweep_of(choices, multirun.params, multirun.jobs[0].config_dirs)
    launcher = launcher_config(multirun, found)
    slots = [] if launcher else slots_for([job.config for job in found.jobs])
    with held(found.directory):
        record = Record.read(found.name, found.directory)
        missing = still_to_run(found, record)
        where = "by hydra/launcher" if launcher else f"slots: {len(slots)}"
        print(f"sweep    {found.directory}  {len(found.jobs)} jobs, {len(missing)} to run, {where}", flush=True)
        if launcher and missing:
            launch(launcher, found, missing, record)
        elif missing:
            Runner(found, slots, record, len(missing)).run(Listed(missing))
        conclude(found, record)


def run_search(multirun: Multirun) -> None:
    """Trials until there are as many as asked for, then a table of all."""
    try:
        from eyas.sweep.search import Search, Values, check_comparable, corners, distributions
    except ImportError:
        raise EyasError('sweep.trials needs Optuna: pip install "eyas[search]"') from None
    base = multirun.jobs[0]
    config = base.config
    if len(multirun.jobs) > 1:
        raise EyasError(
            f"sweep.trials={config.sweep.trials} and a grid of {len(multirun.jobs)} jobs: choose one of them"
        )
    found = Sweep(config.name, Path(config.outputs) / config.name, [])
    if launcher_config(multirun, found):
        raise EyasError("a search runs in slots of this machine: leave hydra/launcher away, or list a grid")
    check_comparable(config)
    for values in corners(distributions(config.sweep.space)):
        composed_with(base, values)
    slots = slots_for([config])

    def make_job(number: int, values: Values) -> Job:
        it = composed_with(base, values)
        job = job_of((it.config, it.overrides), values, found.name, f"{found.name}/trial-{number:03d}", it.config_dirs)
        found.jobs.append(job)
        return job

    with held(found.directory):
        record = Record.read(found.name, found.directory)
        search = Search(found.directory, config, make_job)
        print(
            f"sweep    {found.directory}  {config.sweep.trials} trials, {search.total} to run, slots: {len(slots)}",
            flush=True,
        )
        Runner(found, slots, record, search.total).run(search)
        conclude(found, record)


def composed_with(base: Composed, values: dict[str, str]) -> Composed:
    """What was composed, with more overrides."""
    overrides = [*base.overrides, *(f"{key}={value}" for key, value in values.items())]
    return Composed(compose(overrides, base.config_dirs), overrides, base.config_dirs)


def still_to_run(sweep: Sweep, record: Record) -> Sequence[Job]:
    """The jobs that aren't done; each gets its row."""
    missing = []
    for job in sweep.jobs:
        row = record.row(job.name, job.swept)
        if row.state is State.done and is_complete(job):
            result = result_of(job.run, job.config)
            print(f"done     {sweep.short(job)}  already  {result.line if result else ''}".rstrip(), flush=True)
        else:
            row.state, row.reason = State.waiting, None
            missing.append(job)
    record.write()
    return missing


def conclude(sweep: Sweep, record: Record) -> None:
    """The table, what to do next, and the exit code.

    Raises:
        SystemExit: with 1 where a job has failed.
    """
    print_table(sweep, record)
    failed = [job for job in sweep.jobs if record.rows[job.name].state is State.failed]
    if failed:
        log = sweep.log(failed[0])
        where = f"; a log: {log}" if log.exists() else ""
        print(f"{len(failed)} of {len(sweep.jobs)} jobs failed{where}; the same command runs what is missing")
    print(f"eyas compare {sweep.directory}", flush=True)
    if failed:
        raise SystemExit(1)
