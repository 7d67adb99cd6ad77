"""The jobs of a sweep: a run each, named by what makes it differ from the others."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eyas.config import Config
from eyas.errors import EyasError
from eyas.run import Run

MAX_NAME = 100
"""Characters of a job's name; a longer one is replaced by its hash."""

Choice = tuple[Config, list[str]]
"""A configuration, and the overrides that compose it."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    config: Config
    swept: dict[str, str]
    """The overrides that make this job."""
    arguments: list[str]
    """What follows `eyas train` in a process of its own."""

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def run(self) -> Run:
        return Run.of(self.config)


@dataclass(frozen=True)
class Sweep:
    """Jobs whose runs lie in one directory."""

    name: str
    directory: Path
    jobs: list[Job]

    def short(self, job: Job) -> str:
        """A job's name within the sweep."""
        return job.name.removeprefix(f"{self.name}/")

    def log(self, job: Job) -> Path:
        """What a job has printed, at every start."""
        return self.directory / "logs" / f"{self.short(job)}.log"


def sweep_of(choices: Sequence[Choice], keys: Collection[str], config_dirs: Sequence[str]) -> Sweep:
    """Name the jobs: as they are composed where those names differ, else after what is swept.

    Args:
        keys: Overrides that are swept even where only one value is left of them.

    Raises:
        EyasError: nothing is swept, or two jobs have one name, or their runs lie in several directories.
    """
    overrides = [by_key(texts) for _, texts in choices]
    names = [config.name for config, _ in choices]
    swept = [key for key in overrides[0] if key in keys or len({it.get(key) for it in overrides}) > 1]
    if not swept:
        raise EyasError("nothing is swept: give a key several values (optimizer.lr=1e-4,3e-4), or leave -m away")
    values = [{key: it[key] for key in swept} for it in overrides]
    if len({*names}) == 1:
        name = names[0]
        names = [f"{name}/{it}" for it in short_names(values)]
    else:
        name = common_directory(names)
    if twice := [it for it, count in Counter(names).items() if count > 1]:
        raise EyasError(
            f"{names.count(twice[0])} jobs have the name {twice[0]}: leave `name` to the sweep, or put all that is swept into it "
            f"({', '.join(swept)})"
        )
    jobs = [job_of(it, own, name, into, config_dirs) for it, own, into in zip(choices, values, names, strict=True)]
    return Sweep(name, Path(jobs[0].config.outputs) / name, jobs)


def job_of(choice: Choice, swept: dict[str, str], sweep: str, name: str, config_dirs: Sequence[str]) -> Job:
    """The job `name` of a sweep, as a fresh single run."""
    config, overrides = choice
    config = replace(config, name=name, group=config.group or sweep)
    own = [f"name='{name}'", *([] if choice[0].group else [f"group='{sweep}'"]), "hydra.mode=RUN"]
    kept = [it for it in overrides if it.partition("=")[0] != "name"]
    return Job(config, swept, [*(f"--config-dir={it}" for it in config_dirs), *kept, *own])


def by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Overrides by key, without Hydra's plus signs."""
    return {key.lstrip("+"): value for key, _, value in (it.partition("=") for it in overrides)}


def common_directory(names: Sequence[str]) -> str:
    """The directory of all these runs.

    Raises:
        EyasError: there is none.
    """
    directories = {str(Path(name).parent) for name in names}
    if len(directories) > 1 or directories == {"."}:
        raise EyasError(
            f"the jobs of this sweep have different names and no directory in common ({names[0]}, {names[-1]}); name the sweep: "
            "name=NAME"
        )
    return directories.pop()


def short_names(values: Sequence[dict[str, str]]) -> list[str]:
    """File names that say what each job sets; by a hash where one is too long or would stand for two jobs."""
    keys = short_keys(list(values[0]))
    names = [",".join(f"{keys[key]}={readable(value)}" for key, value in it.items()) for it in values]
    often = Counter(names)
    return [
        name if len(name) <= MAX_NAME and often[name] == 1 else hashlib.sha256(repr(it).encode()).hexdigest()[:12]
        for name, it in zip(names, values, strict=True)
    ]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each key's last part, or all of it where that is another's as well."""
    last = [re.split(r"[./@]", key)[-1] for key in keys]
    return {key: short if last.count(short) == 1 else readable(key) for key, short in zip(keys, last, strict=True)}


def readable(value: str) -> str:
    """A value in letters that a run's name may have."""
    return re.sub(r"[^\w.+-]+", "-", value).strip("-") or "none"


def is_complete(job: Job) -> bool:
    """Whether a job's run has all that it would make; whatever is odd about it, the job itself explains."""
    run, config = job.run, job.config
    try:
        run.check(config)
        made = run.is_trained(config) and run.is_exported(config) and run.is_measured(config)
    except EyasError:
        return False
    return made and run.report_file.exists()
