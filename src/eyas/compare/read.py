"""From what a person names to entries: run directories, directories of them, sweeps, measurements, Weights & Biases."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from eyas.artifact import read_manifest
from eyas.compare.entry import Entry
from eyas.config import flatten
from eyas.draft.given import provenance_of
from eyas.errors import EyasError
from eyas.run import Measurement, Run, read_metrics
from eyas.sweep.record import SWEEP_FILE

NO_RUNS_IN = {"store", "checkpoints", "draft", "draft-sglang", "evaluations", "logs", "window", "wandb"}
"""Directories of ours in which no run is looked for."""

OF_THE_TRAINING = ("training.", "optimizer.", "scheduler.", "capture.", "generation.", "draft.", "seed")
"""What a measured draft's configuration says of a training is not how that draft was trained."""

ACCEPTED = (
    "expected run directories (outputs/NAME), a directory of runs, an off-line wandb run, or wandb:ENTITY/PROJECT"
)


def read_entries(places: Sequence[str]) -> list[Entry]:
    """Every entry of every place, in their order, each under a name of its own.

    Raises:
        EyasError: a place with nothing to compare in it.
    """
    found = [entry for place in places for entry in _read(place)]
    return _named_apart(list({entry.place: entry for entry in found}.values()))


def _read(place: str) -> list[Entry]:
    from eyas.compare import wandb_runs  # here, since only it imports wandb

    if place.startswith(wandb_runs.SCHEME):
        return wandb_runs.read_online(place)
    path = Path(place)
    if not path.exists():
        raise EyasError(f"{place}: there is no such directory; {ACCEPTED}")
    if path.is_dir() and is_run(path):
        return [read_run(path)]
    if files := wandb_runs.offline_files(path):
        return wandb_runs.read_offline(files)
    entries = list(_read_directory(path)) if path.is_dir() else []
    if not entries:
        raise EyasError(f"{place} holds no run; {ACCEPTED}")
    return entries


def is_run(directory: Path) -> bool:
    """Whether it is a run, or the measurement of a draft."""
    return Run(directory).exists() or Measurement(directory).exists()


def _read_directory(directory: Path) -> Iterator[Entry]:
    """The runs below a directory; of a sweep, the jobs that left none as well."""
    jobs = _jobs(directory)
    for path in sorted(path for path in directory.iterdir() if path.is_dir() and path.name not in NO_RUNS_IN):
        if path.name.startswith(".") or path.name.endswith(".partial"):
            continue
        job = jobs.pop(path, None)
        if is_run(path):
            entry = read_run(path)
            state = _state(job) if job else ""
            yield replace(entry, problem=state) if state else entry
        elif job is not None:
            yield _without_run(path, job)
        else:
            yield from _read_directory(path)
    for path, job in jobs.items():
        yield read_run(path) if is_run(path) else _without_run(path, job)


def _jobs(directory: Path) -> dict[Path, dict[str, Any]]:
    """The jobs of a sweep by their run directories; none where the directory is no sweep.

    Raises:
        EyasError: a sweep.json that is none.
    """
    file = directory / SWEEP_FILE
    if not file.exists():
        return {}
    try:
        sweep = json.loads(file.read_text())
        name = f"{sweep['name']}/"
        return {directory / job["name"].removeprefix(name): job for job in sweep["jobs"]}
    except (ValueError, KeyError, TypeError) as error:
        raise EyasError(
            f"{file} is no list of a sweep's jobs ({type(error).__name__}: {error}); move it away"
        ) from None


def _state(job: dict[str, Any]) -> str:
    """Why a job has no result yet; empty where it is done."""
    state, reason = job.get("state", "done"), job.get("reason") or ""
    return "" if state == "done" else f"{state}: {reason}" if reason else str(state)


def _without_run(directory: Path, job: dict[str, Any]) -> Entry:
    problem = _state(job) or f"done, but {directory} is no run directory any more"
    return Entry(name=directory.name, place=str(directory), config=_parsed(job.get("overrides", {})), problem=problem)


def _parsed(overrides: dict[str, str]) -> dict[str, Any]:
    """Overrides as the configuration of a run has them: numbers as numbers."""
    return {key.lstrip("+"): _value(value) for key, value in overrides.items()}


def _value(text: Any) -> Any:
    try:
        return float(text) if isinstance(text, str) and "e" in text.lower() else yaml.safe_load(str(text))
    except (ValueError, yaml.YAMLError):
        return text


def read_run(directory: Path) -> Entry:
    """A run, or the measurement of a draft; one whose files can't be read is an entry with that problem."""
    measured = Measurement(directory).exists()
    run = Measurement(directory) if measured else Run(directory)
    entry = Entry(name=directory.name, place=str(directory))
    try:
        config = flatten(_loaded(run.config_file))
        entry = replace(entry, name=config["name"])
        identity = _loaded(run.identity_file)
        evaluation, metrics = run.evaluation(), read_metrics(run.metrics_file)
        record = provenance_of(run.draft)
        newest = run.newest_checkpoint()
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, EyasError) as error:
        return replace(entry, problem=f"can't be read: {' '.join(str(error).split())}")
    if evaluation and "verifier" not in evaluation["setting"]:
        file = run.evaluation_file
        problem = f"{file} was written by an earlier version of Eyas: remove it, then eyas evaluate {directory}"
        return replace(entry, config=config, problem=problem)
    cost = record.get("cost") or (read_manifest(newest).get("cost", {}) if newest else {})
    tokens = identity.get("tokens") if measured else identity["data"]["tokens"]
    return replace(
        entry,
        config=without_training(config) if measured else config,
        metrics=metrics,
        evaluation=evaluation,
        cost=cost,
        tokens=tokens or "",
        draft=str(run.draft) if run.draft.exists() else "",
        problem="" if evaluation or _validated(metrics) else _not_there_yet(metrics),
    )


def _loaded(file: Path) -> Any:
    """A YAML file, by libyaml where that is there: ten times as fast, which shows with a hundred runs."""
    return yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def without_training(config: dict[str, Any]) -> dict[str, Any]:
    """A measurement's configuration: what it says of the draft that was measured is where that is."""
    kept = {key: value for key, value in config.items() if not key.startswith(OF_THE_TRAINING)}
    return {"measured_draft": config.get("draft.init"), **kept}


def _validated(metrics: Iterable[Any]) -> bool:
    return any("val/tau_sim" in row for row in metrics)


def _not_there_yet(metrics: Sequence[Any]) -> str:
    if metrics:
        return f"nothing measured, and no validation yet (step {metrics[-1]['step']:g})"
    return "nothing measured: no metrics.csv, no evaluation.json of its draft"


def _named_apart(entries: list[Entry]) -> list[Entry]:
    """Names without the directories that all of them share; two of the same name get their places."""
    parts = [entry.name.split("/") for entry in entries]
    shared = 0
    while len(entries) > 1 and all(len(it) > shared + 1 and it[shared] == parts[0][shared] for it in parts):
        shared += 1
    names = ["/".join(it[shared:]) for it in parts]
    names = [
        f"{name} (wandb)" if names.count(name) > 1 and _is_wandb(entry) else name
        for entry, name in zip(entries, names, strict=True)
    ]
    return [
        replace(entry, name=f"{name} ({entry.place})" if names.count(name) > 1 else name)
        for entry, name in zip(entries, names, strict=True)
    ]


def _is_wandb(entry: Entry) -> bool:
    return "offline-run-" in entry.place or entry.place.startswith("https:")
