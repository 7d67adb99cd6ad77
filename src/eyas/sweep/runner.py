"""Runs the jobs of a sweep in slots: each a fresh `eyas train`, with a log of its own and lines here that say how it goes."""

import shlex
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eyas.process import (
    GRACE_SECONDS,
    INTERRUPTED,
    PREEMPTED,
    Child,
    how_it_ended,
    leave,
    passing_sigterm_on,
    start,
    stop,
    wait,
)
from eyas.progress import duration
from eyas.sweep.jobs import Job, Sweep
from eyas.sweep.record import Record, Row, State
from eyas.sweep.results import result_of
from eyas.sweep.slots import Slot

POLL_SECONDS = 0.2
SAY_SECONDS = 10.0
TAIL_BYTES = 1 << 16


class Queue(Protocol):
    """Where jobs come from."""

    def next(self) -> Job | None:
        """The next job to start; None where there is none (now)."""

    def gives_up(self, job: Job) -> bool:
        """Whether a running job shall end."""

    def ended(self, job: Job, row: Row) -> None:
        """A job is done, has failed, or was given up."""


class Listed(deque[Job]):
    """Jobs one after another."""

    def next(self) -> Job | None:
        return self.popleft() if self else None

    def gives_up(self, job: Job) -> bool:
        return False

    def ended(self, job: Job, row: Row) -> None:
        pass


@dataclass
class Running:
    """A job in its slot."""

    job: Job
    slot: Slot
    child: Child
    log: Path
    log_start: int
    """Where in the log this start's lines begin, in bytes."""
    said: str = ""
    ending: bool = False
    given_up: bool = False

    def lines(self) -> list[str]:
        """The end of what this start has printed."""
        return last_lines(self.log, self.log_start)


class Runner:
    """The slots of a sweep, and who is in them."""

    def __init__(self, sweep: Sweep, slots: Sequence[Slot], record: Record, total: int) -> None:
        self.sweep, self.record, self.total = sweep, record, total
        self.free = list(slots)
        self.running: list[Running] = []
        self.children: list[Child] = []
        self.started = 0

    def run(self, queue: Queue) -> None:
        """Until the queue is empty and all slots are.

        Raises:
            SystemExit: at SIGTERM or Ctrl-C, when the jobs have ended; they wait for another launch.
        """
        told: list[int] = []
        try:
            with passing_sigterm_on(self.children) as told:
                self._loop(queue, told)
        except KeyboardInterrupt:  # it reached the jobs as well
            for it in self.running:
                wait(it.child, GRACE_SECONDS)
            raise SystemExit(INTERRUPTED) from None
        finally:
            for it in self.running:
                stop(it.child)
                self._row(it.job).ends(State.waiting)
            self.record.write()
        if told:
            leave("the sweep", PREEMPTED)

    def _loop(self, queue: Queue, told: list[int]) -> None:
        said = time.monotonic()
        while True:
            while self.free and not told and (job := queue.next()) is not None:
                self._start(job)
            if not self.running:
                return
            time.sleep(POLL_SECONDS)
            for it in [it for it in self.running if it.child.poll() is not None]:
                self._end(it, queue, told)
            for it in self.running:
                if not it.ending and (told or queue.gives_up(it.job)):
                    it.ending, it.given_up = True, not told
                    it.child.terminate()  # at SIGTERM too: it may have been started just as that came
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                self._say_progress()

    def _start(self, job: Job) -> None:
        slot = self.free.pop(0)
        log = self.sweep.log(job)
        with slot.entered():
            child, log_start = start_job(job.arguments, log, slot.environment())
        self.children.append(child)
        self.running.append(Running(job, slot, child, log, log_start))
        self.started += 1
        self._row(job).starts(slot.number)
        self.record.write()
        self._say("start", job, slot, f"{self.started} of {self.total}; log: {log}")

    def _end(self, it: Running, queue: Queue, told: list[int]) -> None:
        row, code = self._row(it.job), it.child.returncode
        if code and told:
            row.ends(State.waiting)
        elif code and it.given_up:
            row.ends(State.pruned)
        elif code:
            row.ends(State.failed, reason(it.lines(), code))
        else:
            row.ends(State.done)
        self.running.remove(it)
        self.children.remove(it.child)
        self.free = sorted([*self.free, it.slot], key=lambda slot: slot.number)
        self.record.write()
        queue.ended(it.job, row)
        result = result_of(it.job.run, it.job.config)
        what = row.reason or (result.line if result else "")
        self._say(row.state.name, it.job, it.slot, f"{duration(row.seconds or 0)}  {what}")

    def _say_progress(self) -> None:
        for it in self.running:
            line = (it.lines() or [""])[-1]
            if line != it.said:
                it.said = line
                self._say("", it.job, it.slot, " ".join(line.split())[:120])

    def _say(self, what: str, job: Job, slot: Slot, text: str) -> None:
        print(f"{what:<9}slot {slot.number}  {self.sweep.short(job)}  {text}", flush=True)

    def _row(self, job: Job) -> Row:
        return self.record.row(job.name, job.swept)


def start_job(arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> tuple[Child, int]:
    """Start `eyas train arguments`, which appends to `log` from the place that is returned, in bytes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        stream.write(f"$ eyas train {shlex.join(arguments)}\n".encode())
        stream.flush()
        streams = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": subprocess.STDOUT}
        return start("eyas.cli.main", ["train", *arguments], environment, **streams), stream.tell()


def last_lines(log: Path, log_start: int) -> list[str]:
    """The end of what a start has printed, without empty lines."""
    with log.open("rb") as stream:
        stream.seek(max(log_start, log.stat().st_size - TAIL_BYTES))
        return [line for line in stream.read().decode(errors="replace").splitlines() if line.strip()]


def reason(lines: Sequence[str], code: int) -> str:
    """Why a job has failed: the error it has explained, or else what failed and the last that it said."""
    explained = [line for line in lines if line.startswith("eyas: error: ")]
    if explained:
        return explained[-1].removeprefix("eyas: error: ")
    named = [line.removeprefix("eyas: ").partition("; ")[0] for line in lines if line.startswith("eyas: ")]
    said = [line.strip() for line in lines if not line.startswith("eyas: ")]
    return ": ".join([(named or [how_it_ended(code)])[-1], *said[-1:]])
