"""Runs as Weights & Biases has them: off-line directories, and its service (`wandb:ENTITY/PROJECT[/GROUP]`)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eyas.compare.entry import Entry
from eyas.compare.wandb_file import LoggedRun, read_into
from eyas.config import flatten
from eyas.errors import EyasError

SCHEME = "wandb:"
OFFLINE = ("run-*.wandb", "offline-run-*/run-*.wandb", "wandb/offline-run-*/run-*.wandb")
"""Where an off-line run's file is: in the directory that is named, or below it."""

STEP = "trainer/global_step"
"""Lightning's name for a step."""


def offline_files(path: Path) -> list[Path]:
    """Off-line runs, oldest first: a run that was resumed has several files."""
    if path.is_file():
        return [path] if path.suffix == ".wandb" else []
    return sorted((file for pattern in OFFLINE for file in path.glob(pattern)), key=lambda file: file.parent.name)


def read_offline(files: Iterable[Path]) -> list[Entry]:
    """One entry for each run, whatever number of files it is in.

    Raises:
        EyasError: a file that is none of wandb's, or of a run that isn't Eyas's.
    """
    runs: dict[str, LoggedRun] = {}
    places: dict[str, Path] = {}
    for file in files:
        started = LoggedRun()
        read_into(started, file)
        places.setdefault(started.id, file.parent)
        earlier = runs.setdefault(started.id, LoggedRun())
        runs[started.id] = _continued(earlier, started)
    return [as_entry(run, str(places[id])) for id, run in runs.items()]


def _continued(earlier: LoggedRun, later: LoggedRun) -> LoggedRun:
    """Both starts of a run; what the first one logged past the checkpoint that the second began with is void."""
    first = min((row[STEP] for row in later.history if STEP in row), default=float("inf"))
    history = [row for row in earlier.history if row.get(STEP, 0) < first]
    return LoggedRun(
        id=later.id,
        name=later.name or earlier.name,
        group=later.group or earlier.group,
        config={**earlier.config, **later.config},
        summary={**earlier.summary, **later.summary},
        history=[*history, *later.history],
    )


def read_online(place: str) -> list[Entry]:
    """The runs of a project, or of a group in it.

    Raises:
        EyasError: no such project, no access, or none of Eyas's runs in it.
    """
    import wandb

    entity, _, rest = place.removeprefix(SCHEME).partition("/")
    project, _, group = rest.partition("/")
    if not entity or not project:
        raise EyasError(f"{place}: expected wandb:ENTITY/PROJECT or wandb:ENTITY/PROJECT/GROUP")
    try:
        found = wandb.Api().runs(f"{entity}/{project}", filters={"group": group} if group else {})
        runs = [(_logged(run), run.url) for run in found]
    except (wandb.Error, ValueError, OSError) as error:
        raise EyasError(f"{place}: Weights & Biases did not give it ({' '.join(str(error).split())})") from None
    entries = [as_entry(run, url) for run, url in runs if is_ours(run)]
    if not entries:
        raise EyasError(f"{place} holds no run of Eyas ({len(runs)} runs of others)")
    return entries


def _logged(run: Any) -> LoggedRun:
    """What the service has of a run, in our words."""
    history = [dict(row) for row in run.scan_history()]
    return LoggedRun(run.id, run.name, run.group or "", dict(run.config), dict(run.summary), history)


def is_ours(run: LoggedRun) -> bool:
    """Whether Eyas logged it."""
    return "eyas" in run.config and "training" in run.config


def as_entry(run: LoggedRun, place: str) -> Entry:
    """The entry that the run's directory would give.

    Raises:
        EyasError: it isn't Eyas that logged it.
    """
    if not is_ours(run):
        raise EyasError(f"{place} is a run of Weights & Biases that Eyas did not log")
    metrics = [row for logged in run.history if (row := _metrics(logged))]
    evaluation = run.summary.get("evaluation", {})
    done = evaluation or any("val/tau_sim" in row for row in metrics)
    return Entry(
        name=run.name,
        place=place,
        config=flatten({key: value for key, value in run.config.items() if key not in ("_wandb", "eyas")}),
        metrics=metrics,
        evaluation=evaluation,
        cost=run.summary.get("cost", {}),
        tokens=run.config["eyas"]["tokens"],
        problem="" if done else "nothing measured, and no validation yet",
    )


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    values = {key: value for key, value in row.items() if key.startswith(("train/", "val/"))}
    return {"step": row[STEP], **values} if values else {}
