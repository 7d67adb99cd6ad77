"""`-m key=a,b` and `sweeps=NAME`: many runs of `eyas train`, each a fresh process; the sweep itself trains nothing."""

from collections.abc import Sequence
from pathlib import Path

from eyas.cli.compose import Composed, Multirun, compose
from eyas.cli.launch import launch, launcher_config
from eyas.errors import EyasError
from eyas.sweep.jobs import Job, Sweep, by_key, is_complete, job_of, sweep_of
from eyas.sweep.record import Record, State, held
from eyas.sweep.results import print_table, result_of
from eyas.sweep.runner import Listed, Runner
from eyas.sweep.slots import slots_for


def sweep(multirun: Multirun) -> None:
    """Run what `multirun` asks for: a list of jobs, or a search.

    Raises:
        EyasError: what would go wrong, before anything is started.
        SystemExit: with 1 where a job has failed.
    """
    config = multirun.jobs[0].config.sweep
    if config.trials is not None:
        run_search(multirun)
    else:
        run_listed(changed(only_job(multirun, "sweep.changes")) if config.changes else grid(multirun), multirun)


def grid(multirun: Multirun) -> Sweep:
    """Every combination of the values that are listed."""
    choices = [(it.config, it.overrides) for it in multirun.jobs]
    return sweep_of(choices, multirun.params, multirun.jobs[0].config_dirs)


def changed(base: Composed) -> Sweep:
    """`sweep.changes`: each alone, and before them the configuration without any."""
    name = base.config.name
    jobs = [job_of((base.config, base.overrides), {}, name, f"{name}/base", base.config_dirs)]
    for change, overrides in base.config.sweep.changes.items():
        it, values = composed_with(base, overrides), by_key(overrides)
        jobs.append(job_of((it.config, it.overrides), values, name, f"{name}/{change}", it.config_dirs))
    return Sweep(name, Path(base.config.outputs) / name, jobs)


def run_listed(found: Sweep, multirun: Multirun) -> None:
    """All jobs that aren't done yet, then a table of all."""
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
    base = only_job(multirun, "sweep.trials")
    config = base.config
    found = Sweep(config.name, Path(config.outputs) / config.name, [])
    if launcher_config(multirun, found):
        raise EyasError("a search runs in slots of this machine: leave hydra/launcher away, or list a grid")
    check_comparable(config)
    for values in corners(distributions(config.sweep.space)):
        composed_with(base, as_overrides(values))
    slots = slots_for([config])

    def make_job(number: int, values: Values) -> Job:
        it = composed_with(base, as_overrides(values))
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


def only_job(multirun: Multirun, key: str) -> Composed:
    """What a search or changes begin with.

    Raises:
        EyasError: a grid is listed beside them.
    """
    if len(multirun.jobs) > 1:
        raise EyasError(f"{key} and a grid of {len(multirun.jobs)} jobs: choose one of them")
    return multirun.jobs[0]


def as_overrides(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def composed_with(base: Composed, more: Sequence[str]) -> Composed:
    """What was composed, with more overrides."""
    overrides = [*base.overrides, *more]
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
