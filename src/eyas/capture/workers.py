"""Capture by several processes, one per device; each has the whole verifier and takes the next shard that nobody has.

Batches are planned per shard, so it doesn't matter who writes it: the bytes are those of one process. The stage holds the
artifact, starts the workers and watches; what passes between them is in one directory, which is gone when they are:

    config.yaml        what is captured
    NNNNN.claimed      a worker has taken that shard
    worker-N.log       what a worker wrote to stderr

The first worker proves how the verifier is read, and only then are the others started: nothing is stored before.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from eyas.artifact import remove, write_file
from eyas.capture.stage import SCRATCH, progress_over, tokens_of
from eyas.config import Config, config_yaml
from eyas.data.store import shard_name
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.process import (
    EXPLAINED,
    GRACE_SECONDS,
    PREEMPTED,
    Child,
    how_it_ended,
    passing_sigterm_on,
    start,
    stop,
    wait,
)
from eyas.stages import num_capture_workers, parity_file
from eyas.training.schema import Accelerator
from eyas.verifier.locate import locate

MODULE = "eyas.capture.worker"
CONFIG = "config.yaml"
POLL_SECONDS = 0.1


def written_by_workers(config: Config, tokens: Tokens, missing: Mapping[int, range], directory: Path) -> None:
    """Start the workers and wait until every missing shard is there.

    Raises:
        EyasError: a worker failed; the shards that are whole stay.
        SystemExit: it has said why itself, or this process was told to end.
    """
    orders, proved = directory / SCRATCH, directory / parity_file(config).name
    remove(orders)  # what a killed one has left
    orders.mkdir()
    write_file(orders / CONFIG, config_yaml(config))
    locate(config.verifier).fetch_all()  # once, not by each of them
    proved.unlink(missing_ok=True)
    wanted = min(num_capture_workers(config), len(missing))
    workers: list[Child] = []
    try:
        with passing_sigterm_on(workers) as told:
            workers.append(_start(config, orders, 0))
            while not (told or proved.exists() or workers[0].poll() is not None):
                time.sleep(POLL_SECONDS)
            if proved.exists() and not told:
                workers += [_start(config, orders, number) for number in range(1, wanted)]
            codes = _watch(workers, told, missing, tokens, directory)
        if told:
            raise SystemExit(PREEMPTED)
        for number, code in enumerate(codes):
            if code:
                _leave(code, f"worker {number} of {wanted}", _log(orders, number))
        print(_log(orders, 0).read_text(errors="replace"), end="", file=sys.stderr)  # the others say the same
    except KeyboardInterrupt:  # it reached them as well
        for worker in workers:
            wait(worker, GRACE_SECONDS)
        raise
    finally:
        for worker in workers:
            stop(worker)
        remove(orders)


def _watch(
    workers: Sequence[Child], told: Sequence[int], missing: Mapping[int, range], tokens: Tokens, directory: Path
) -> list[int | None]:
    """Say how far all of them are, until they have ended, one has failed, or all are told to end; the exit codes."""
    left, progress = dict(missing), progress_over(missing, tokens)
    while True:
        codes = [worker.poll() for worker in workers]  # before the shards, so that the last ones aren't overlooked
        done = {index: rows for index, rows in left.items() if (directory / shard_name(index)).exists()}
        for index in done:
            del left[index]
        if done:
            progress.advance(tokens_of(done, tokens))
        if told or any(codes):
            return codes
        if None not in codes:
            assert not left
            return codes
        time.sleep(POLL_SECONDS)


def _start(config: Config, orders: Path, number: int) -> Child:
    with _log(orders, number).open("wb") as log:
        return start(MODULE, orders, device_of(config, number), stderr=log)


def device_of(config: Config, number: int) -> dict[str, str]:
    """The variables by which a worker sees its own device alone; more workers than devices share them."""
    if config.trainer.accelerator is Accelerator.cpu:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(config.trainer.devices)))
    devices = visible.split(",")[: config.trainer.devices]
    return {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]}


def _leave(code: int, name: str, log: Path) -> NoReturn:
    """Say what a worker said, and how it ended."""
    print(log.read_text(errors="replace"), end="", file=sys.stderr, flush=True)
    if code == EXPLAINED:
        raise SystemExit(EXPLAINED)
    raise EyasError(f"capture: {name} {how_it_ended(code)}; the same command carries on from what is complete")


def _log(orders: Path, number: int) -> Path:
    return orders / f"worker-{number}.log"


def claimed(missing: Mapping[int, range], orders: Path) -> Iterator[tuple[int, range]]:
    """Of the missing shards (index: rows) those that this worker has, one after another as it comes to them."""
    for index, rows in missing.items():
        try:
            (orders / f"{index:05d}.claimed").touch(exist_ok=False)
        except FileExistsError:
            continue
        yield index, rows
