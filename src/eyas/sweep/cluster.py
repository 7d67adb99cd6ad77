"""Jobs of a sweep on other machines: what one of them runs there, and what has become of it. Nothing here knows the scheduler."""

import time
from collections.abc import Sequence
from pathlib import Path

from eyas.process import stop
from eyas.sweep.jobs import Job, is_complete
from eyas.sweep.record import Row, State
from eyas.sweep.runner import last_lines, reason, start_job

Outcome = tuple[int, str, float]
"""An exit code, why it isn't 0, and how many seconds it took."""


def run_there(arguments: Sequence[str], log: Path) -> Outcome:
    """Run `eyas train` to its end. When this process is told to end, so is the run, in order."""
    started = time.monotonic()
    child, log_start = start_job(arguments, log)
    try:
        code = child.wait()
    finally:
        stop(child)
    return code, reason(last_lines(log, log_start), code) if code else "", round(time.monotonic() - started, 1)


def judge(job: Job, row: Row, outcome: Outcome | None, lost: str) -> None:
    """A job's state: by what it has returned, or, where that is nothing (`lost`: why), by its run."""
    if outcome is None:
        done = is_complete(job)
        row.ends(State.done if done else State.failed, None if done else lost)
    else:
        code, why, seconds = outcome
        row.ends(State.failed if code else State.done, why or None)
        row.seconds = seconds  # without the time in the queue
