"""The ranks of a training on this machine: one process per device, started together and ended together. Torch-free.

What goes wrong on one rank breaks the others, each with a traceback of its own. So several ranks write their stderr to a file
each, and only that of the rank that began it is shown, with a line that names it.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from eyas.config import Config
from eyas.process import (
    GRACE_SECONDS,
    INTERRUPTED,
    NO_COMPILER,
    PREEMPTED,
    Child,
    how_it_ended,
    leave,
    passing_sigterm_on,
    start,
    stop,
    wait,
)
from eyas.run import Run
from eyas.training.schema import Accelerator

MODULE = "eyas.training"

LOST = 3
"""Exit code of a rank that another one left alone, or let wait."""

VICTIMS = (LOST, -signal.SIGABRT, PREEMPTED, 0)
"""How ranks end for which another is to blame, or nobody; NCCL aborts a process that has waited too long."""

POLL_SECONDS = 0.1
SETTLE_SECONDS = 10.0
"""So long after the first rank that lost another one, all that wait for that one have noticed."""


def launch(
    run: Run,
    config: Config,
    meeting: tuple[str, int],
    machine: int = 0,
    *,
    beside: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `python -m eyas.training RUN_DIR` on every device of this machine, until all have ended.

    Args:
        meeting: Address and port at which the ranks of all machines find each other.
        machine: Number of this one.
        beside: A module that runs at the same time, with the same argument; it may end before, and is ended afterwards.
        environment: More variables for the ranks.

    Raises:
        SystemExit: with the exit code of what failed.
    """
    helper = start(beside, run.directory) if beside else None
    ranks = start_ranks(run, config, meeting, machine, environment or {})
    try:
        with passing_sigterm_on(ranks) as told:
            codes, helper_code = watch(ranks, helper)
    except KeyboardInterrupt:  # it reached them as well
        for rank in ranks:
            wait(rank, GRACE_SECONDS)
        raise SystemExit(INTERRUPTED) from None
    finally:
        for rank in ranks:
            rank.kill()  # one that hangs hears nothing else
            rank.wait()
        if helper:
            stop(helper)
    if told and set(codes) <= {*VICTIMS, None, -signal.SIGTERM}:
        leave(MODULE, PREEMPTED)
    if helper_code:
        leave(beside or "", helper_code)
    if any(codes):
        explain(codes, run, config, machine)


def start_ranks(
    run: Run, config: Config, meeting: tuple[str, int], machine: int, environment: Mapping[str, str]
) -> list[Child]:
    """One process per device of this machine."""
    number = config.trainer.devices
    world = number * config.trainer.num_nodes
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // number)))
    where = {"MASTER_ADDR": meeting[0], "MASTER_PORT": str(meeting[1]), "NODE_RANK": str(machine)}
    shared = {**environment, **where, "WORLD_SIZE": str(world)}
    if config.training.compile or config.trainer.accelerator is Accelerator.cuda:  # FlexAttention is compiled there
        shared[NO_COMPILER] = "0"
    if world == 1:
        return [start(MODULE, run.directory, {**shared, "RANK": "0", "LOCAL_RANK": "0"})]
    run.logs.mkdir(exist_ok=True)
    ranks = []
    for local in range(number):
        rank = machine * number + local
        with run.log_of_rank(rank).open("wb") as log:
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(local), "OMP_NUM_THREADS": threads}
            ranks.append(start(MODULE, run.directory, variables, stderr=log))
    return ranks


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def watch(ranks: Sequence[Child], helper: Child | None) -> tuple[list[int | None], int]:
    """Until all have ended, or something has failed: the exit codes (None: still running), and the helper's."""
    while None in (codes := [rank.poll() for rank in ranks]):
        if any(codes):
            return settled(ranks), 0
        if helper and (code := helper.poll()):
            return codes, code
        time.sleep(POLL_SECONDS)
    if helper and not any(codes):
        wait(helper, GRACE_SECONDS)
    return codes, 0


def settled(ranks: Sequence[Child]) -> list[int | None]:
    """The exit codes when it shows who is to blame: at once, or when all that wait for the same rank have noticed."""
    started = time.monotonic()
    while True:
        codes = [rank.poll() for rank in ranks]
        patience = GRACE_SECONDS if PREEMPTED in codes else SETTLE_SECONDS  # what all have agreed on, all do
        if None not in codes or not set(codes) <= {None, *VICTIMS} or time.monotonic() - started > patience:
            return codes
        time.sleep(POLL_SECONDS)


def blamed(codes: Sequence[int | None]) -> int:
    """The rank for which the others failed: one that was killed, that failed by itself, or else one that hangs."""

    def innocence(code: int | None) -> int:
        if code is None:
            return 2
        return 3 + (code == 0) if code in VICTIMS else int(code > 0)

    return min(range(len(codes)), key=lambda rank: innocence(codes[rank]))


def explain(codes: Sequence[int | None], run: Run, config: Config, machine: int) -> NoReturn:
    """Say which rank it was and what it said, and leave with its exit code."""
    world = len(codes) * config.trainer.num_nodes
    if world == 1:
        leave(MODULE, codes[0] or 0)
    local = blamed(codes)
    code, rank = codes[local], machine * len(codes) + local
    print(run.log_of_rank(rank).read_text(errors="replace"), end="", file=sys.stderr, flush=True)
    name = f"rank {rank} of {world}"
    if code is None:
        timeout = f"trainer.timeout_seconds={config.trainer.timeout_seconds:g}"
        leave(name, 1, f"hung: the others waited for it for {timeout}")
    leave(name, code, "lost the others" if code == LOST else how_it_ended(code))
