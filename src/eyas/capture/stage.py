"""The states stage, whichever engine runs the verifier.

Rows are dealt to shards before anything is run, and a shard is written whole or not at all: a capture that was killed goes
on with the shards that are missing.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch

from eyas.artifact import building, complete, remove, sha256_of_each, write_file
from eyas.capture.parity import Parity
from eyas.config import Config, to_dict
from eyas.data.store import Document, plan_shards, shard_name, write_shard
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.stages import draft_shape, parity_file, states_artifact, tokens_artifact, verifier_facts


class Engine(Protocol):
    """A verifier that is loaded and runs."""

    def prove(self) -> Parity:
        """Show that the teacher makes the verifier's own logits out of what is captured.

        Raises:
            EyasError: it doesn't.
        """

    def shards(self, missing: Mapping[int, range], progress: Progress) -> Iterator[tuple[int, list[Document]]]:
        """The documents of each missing shard (index: rows), in any order of the shards; counts tokens in `progress`."""


SCRATCH = "engine"
"""In the artifact's directory, for files that an engine removes when it is done with them; a killed one leaves them."""

Start = Callable[[Config, Tokens, Path], AbstractContextManager[Engine]]
"""Starts an engine; the directory is the artifact's, for what the engine leaves beside the states."""

Write = Callable[[Config, Tokens, Mapping[int, range], Path], None]
"""Proves how the verifier is read, then writes the missing shards (index: rows) into the artifact's directory."""


def capture(config: Config, start: Start, *, write: Write | None = None, moves: bool = False) -> None:
    """Write the states artifact of the tokens artifact, unless it exists, and prove how the verifier is read.

    Args:
        write: How the shards come; None: one after another, from an engine in this process.
        moves: The engine removes what it hands out: no more disk is needed than there is now.
    """
    artifact, file = states_artifact(config), parity_file(config)
    tokens = Tokens(tokens_artifact(config).directory)
    with building(artifact) as partial:
        if partial is not None:
            _write_missing(config, tokens, partial, write or written_here(start), moves)
            shards = plan_shards(tokens.lengths, config.capture.tokens_per_shard)
            entries = _entries(partial, shards, tokens)
            remove(partial / SCRATCH)
            complete(artifact, partial, {"tokens": sum(tokens.lengths), "shards": entries})
    if not file.exists():  # the states were there, but nobody has read them this way
        with start(config, tokens, artifact.directory) as engine:
            write_file(file, proof(config, engine))


def _write_missing(config: Config, tokens: Tokens, partial: Path, write: Write, moves: bool) -> None:
    """Capture every shard that is not there yet."""
    missing = missing_shards(config, tokens, partial)
    num_missing, total = tokens_of(missing, tokens), sum(tokens.lengths)
    if num_missing < total:
        print(f"capture  resumes after {total - num_missing:,} of {total:,} tokens", flush=True)
    if not missing:
        return
    if not moves:
        refuse_full_disk(config, num_missing, partial)
    write(config, tokens, missing, partial)


def written_here(start: Start) -> Write:
    """By one engine, in this process."""

    def write(config: Config, tokens: Tokens, missing: Mapping[int, range], directory: Path) -> None:
        with start(config, tokens, directory) as engine:
            write_file(directory / parity_file(config).name, proof(config, engine))
            progress = progress_over(missing, tokens)
            for index, documents in engine.shards(missing, progress):
                write_shard(directory / shard_name(index), documents)

    return write


def missing_shards(config: Config, tokens: Tokens, directory: Path) -> dict[int, range]:
    """The shards (index: rows) that aren't in the artifact's directory."""
    shards = plan_shards(tokens.lengths, config.capture.tokens_per_shard)
    return {index: rows for index, rows in enumerate(shards) if not (directory / shard_name(index)).exists()}


def tokens_of(shards: Mapping[int, range], tokens: Tokens) -> int:
    return sum(tokens.lengths[row] for rows in shards.values() for row in rows)


def progress_over(missing: Mapping[int, range], tokens: Tokens) -> Progress:
    """Of all tokens; those of shards that are there count as done."""
    total = sum(tokens.lengths)
    return Progress("capture", total, "tokens", done=total - tokens_of(missing, tokens))


def proof(config: Config, engine: Engine) -> str:
    """The proof (JSON) that the teacher's logits are the verifier's own."""
    parity = engine.prove()
    print(f"capture  parity {parity}", flush=True)
    return json.dumps({**vars(parity), "arithmetic": to_dict(verifier_facts(config).arithmetic)}, indent=2) + "\n"


def token_bytes(config: Config) -> int:
    """What one token takes in the store: its chosen layers and its last state."""
    slots = len(draft_shape(config).layer_ids) + 1
    dtype: torch.dtype = getattr(torch, config.capture.dtype.name)
    return slots * verifier_facts(config).hidden_size * dtype.itemsize


def refuse_full_disk(config: Config, num_tokens: int, directory: Path) -> None:
    """Before the verifier is loaded: is there room for what it will produce?"""
    needed, free = num_tokens * token_bytes(config), shutil.disk_usage(directory).free
    if needed > free:
        raise EyasError(
            f"the states of {num_tokens:,} tokens take {needed / 1e9:.1f} GB ({token_bytes(config):,} bytes a token), and "
            f"{math.floor(free / 1e8) / 10:.1f} GB are free in {directory}; set outputs to a larger disk, or use less data"
        )


def _entries(directory: Path, shards: Sequence[range], tokens: Tokens) -> list[dict[str, object]]:
    """What the manifest says of each shard."""
    files = [directory / shard_name(index) for index in range(len(shards))]
    return [
        {
            "file": file.name,
            "sha256": sha256,
            "first_row": rows.start,
            "lengths": tokens.lengths[rows.start : rows.stop],
        }
        for file, rows, sha256 in zip(files, shards, sha256_of_each(files, "checksum"), strict=True)
    ]
