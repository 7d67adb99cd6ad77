"""Reads `run-ID.wandb`, what Weights & Biases writes for a run, without its program: a log of protobuf records.

The log is LevelDB's: blocks of 32 KiB with fragments in them, each after 4 bytes of checksum, 2 of length and 1 of type. Its
first block begins with 7 bytes of their own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from eyas.errors import EyasError

MAGIC = b":W&B"
START, BLOCK, HEADER = 7, 32 * 1024, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class LoggedRun:
    """What was logged of one run, over all of its starts."""

    id: str = ""
    name: str = ""
    group: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


def read_into(run: LoggedRun, file: Path) -> None:
    """Add what a file says, later over earlier; what a killed process has left half-written at its end is not there.

    Raises:
        EyasError: it is no such file.
    """
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")  # here, since wandb takes a second to import
    for content in fragments(file):
        record = messages.Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id, run.name, run.group = record.run.run_id, record.run.display_name, record.run.run_group
            _update(run.config, record.run.config.update)
        elif kind == "config":
            _update(run.config, record.config.update)
        elif kind == "summary":
            _update(run.summary, record.summary.update)
        elif kind == "history":
            row: dict[str, Any] = {}
            _update(row, record.history.item)
            run.history.append(row)


def _update(values: dict[str, Any], items: Any) -> None:
    for item in items:
        *path, last = list(item.nested_key) or [item.key]
        place = values
        for key in path:
            place = place.setdefault(key, {})
        place[last] = json.loads(item.value_json)


def fragments(file: Path) -> Iterator[bytes]:
    """The records of the log.

    Raises:
        EyasError: the file is no log of wandb's.
    """
    content = file.read_bytes()
    if not content.startswith(MAGIC):
        raise EyasError(f"{file} is no file of Weights & Biases (it begins with {content[:4]!r}, expected {MAGIC!r})")
    place, record = START, b""
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:  # too little for a header: the block's end is empty
            place += left
            continue
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        kind, place = content[place + 6], place + HEADER
        if place + length > len(content) or not WHOLE <= kind <= LAST:
            return
        part, place = content[place : place + length], place + length
        record = part if kind in (WHOLE, FIRST) else record + part
        if kind in (WHOLE, LAST):
            yield record
