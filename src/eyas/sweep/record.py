"""sweep.json: what has become of each job of a sweep."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

from eyas.artifact import locked, write_file
from eyas.errors import EyasError
from eyas.run import Run

SWEEP_FILE = "sweep.json"


class State(Enum):
    """What has become of a job."""

    waiting = "waiting"
    running = "running"
    done = "done"
    failed = "failed"
    pruned = "pruned"  # a search has seen enough of it


@dataclass
class Row:
    """A job, as it stands."""

    name: str
    """Its run: outputs/<name>."""
    overrides: dict[str, str]
    state: State = State.waiting
    reason: str | None = None
    """Why it has failed, in one line."""
    seconds: float | None = None
    """How long its last start took."""
    slot: int | None = None
    started: float | None = None
    """Of its last start, in seconds since 1970."""
    ended: float | None = None

    def starts(self, slot: int | None) -> None:
        self.state, self.reason, self.slot = State.running, None, slot
        self.started, self.ended, self.seconds = time.time(), None, None

    def ends(self, state: State, reason: str | None = None) -> None:
        self.state, self.reason, self.ended = state, reason, time.time()
        self.seconds = round(self.ended - (self.started or self.ended), 1)


@dataclass
class Record:
    """The rows of a sweep, by name, and the file that has them; jobs of earlier launches stay."""

    name: str
    directory: Path
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.directory / SWEEP_FILE

    @classmethod
    def read(cls, name: str, directory: Path) -> "Record":
        """The record as it was left; what ran then waits now."""
        record = cls(name, directory)
        if record.file.exists():
            for saved in json.loads(record.file.read_text())["jobs"]:
                row = Row(**{**saved, "state": State[saved["state"]]})
                row.state = State.waiting if row.state is State.running else row.state
                record.rows[row.name] = row
        return record

    def write(self) -> None:
        jobs = [{**asdict(row), "state": row.state.name} for row in self.rows.values()]
        write_file(self.file, json.dumps({"name": self.name, "jobs": jobs}, indent=1) + "\n")

    def row(self, name: str, overrides: dict[str, str]) -> Row:
        """The row of a job; a new one where there is none, or one that was made of other overrides."""
        if name not in self.rows or self.rows[name].overrides != overrides:
            self.rows[name] = Row(name, overrides)
        return self.rows[name]


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Make a sweep's directory and hold it: one launch at a time.

    Raises:
        EyasError: it is a run's, or another launch is at work in it.
    """
    if Run(directory).exists():
        raise EyasError(f"{directory} is a run, not a sweep; name the sweep: name=NAME")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with locked(directory, wait=False):
            yield
    except BlockingIOError:
        raise EyasError(
            f"{directory} is a sweep that another process runs; wait for it, or choose another name=..."
        ) from None
