"""The tokens artifact: rows of `input_ids` and `loss_mask`, in files that are mapped, never read whole.

`shard-NNNNN.safetensors` holds what a fixed part of the conversations became: `input_ids`, `loss_mask`, `offsets` of its
rows, and `held_out` for each row. `counts.safetensors` says how often the verifier wrote each token in the training rows:
the draft vocabulary is chosen from these.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor

from eyas.artifact import publish, read_manifest
from eyas.data.render import Row
from eyas.data.store import shard_name
from eyas.errors import EyasError

COUNTS = "counts.safetensors"
PLAIN_PROMPT = 32
"""Tokens of a row of plain text that stand for its prompt."""


@dataclass(frozen=True)
class TokenShard:
    """One file."""

    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    """Row r is [offsets[r], offsets[r + 1])."""
    held_out: NDArray[np.bool_]
    """For each row."""
    counts: dict[str, int]
    """What became of the shard's conversations."""
    refused: dict[str, str]
    """Of each source, the first conversation that the chat template refused."""

    @classmethod
    def of(
        cls, rows: Sequence[Row], held_out: Sequence[bool], counts: dict[str, int], refused: dict[str, str]
    ) -> "TokenShard":
        return cls(
            input_ids=np.fromiter((token for row in rows for token in row.input_ids), np.int32),
            loss_mask=np.fromiter((mask for row in rows for mask in row.loss_mask), np.bool_),
            offsets=np.cumsum([0, *(len(row.input_ids) for row in rows)], dtype=np.int64),
            held_out=np.array(held_out, np.bool_),
            counts=counts,
            refused=refused,
        )


_TENSORS = ("input_ids", "loss_mask", "offsets", "held_out")
_NOTES = ("counts", "refused")


def write_token_shard(file: Path, shard: TokenShard) -> None:
    """Write one shard completely or not at all; the same rows make the same bytes."""
    tensors = {name: getattr(shard, name) for name in _TENSORS}
    notes = {name: json.dumps(getattr(shard, name), sort_keys=True) for name in _NOTES}
    partial = file.with_suffix(".partial")
    save_file(tensors, partial, metadata={"notes": json.dumps(notes)})
    publish(partial, file)


def read_token_shard(file: Path) -> TokenShard:
    with safe_open(file, framework="np") as opened:
        notes = json.loads(opened.metadata()["notes"])
        return TokenShard(
            **{name: opened.get_tensor(name) for name in _TENSORS}, **{name: json.loads(notes[name]) for name in _NOTES}
        )


def _rows_of(file: Path) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """`offsets` and `held_out` of a shard; its tokens stay on the disk."""
    with safe_open(file, framework="np") as opened:
        return opened.get_tensor("offsets"), opened.get_tensor("held_out")


class Tokens:
    """Random access to the rows of a complete tokens artifact: training rows first, held-out rows after them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        manifest = read_manifest(directory)
        if not manifest:
            raise EyasError(f"{directory} is no complete tokens directory: its manifest.json is missing")
        self.counts: dict[str, Any] = manifest["counts"]
        self.num_train_rows: int = self.counts["train_rows"]
        self._shards: dict[int, Any] = {}
        files = [directory / shard_name(index) for index in range(self.counts["shards"])]
        offsets, held_out = zip(*map(_rows_of, files), strict=True)
        shard_R = np.repeat(np.arange(len(files)), [len(of_shard) for of_shard in held_out])
        start_R = np.concatenate([of_shard[:-1] for of_shard in offsets])
        length_R = np.concatenate([np.diff(of_shard) for of_shard in offsets])
        order_R = np.argsort(np.concatenate(held_out), kind="stable")
        self._shard_R, self._start_R, self._length_R = shard_R[order_R], start_R[order_R], length_R[order_R]

    @property
    def num_rows(self) -> int:
        return len(self._length_R)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        lengths: list[int] = self._length_R.tolist()
        return lengths

    @cached_property
    def counts_V(self) -> Tensor:
        """How often the verifier wrote each token in the training rows."""
        return load_file(self.directory / COUNTS)["counts"]

    def row(self, index: int) -> tuple[Tensor, Tensor]:
        """(input_ids, loss_mask) of a row."""
        shard = int(self._shard_R[index])
        if shard not in self._shards:
            self._shards[shard] = safe_open(self.directory / shard_name(shard), framework="pt")
        start = int(self._start_R[index])
        end = start + int(self._length_R[index])
        input_ids, loss_mask = (self._shards[shard].get_slice(name)[start:end] for name in ("input_ids", "loss_mask"))
        return input_ids, loss_mask

    def held_out_prompts(self) -> list[list[int]]:
        """The prompt of each held-out row."""
        prompts: list[list[int]] = []
        for index in range(self.num_train_rows, self.num_rows):
            input_ids, loss_mask = self.row(index)
            prompts.append(prompt_of(input_ids.tolist(), loss_mask.tolist()))
        return prompts


def prompt_of(input_ids: list[int], loss_mask: list[bool]) -> list[int]:
    """A row up to the verifier's first answer; of plain text, which is all answer, the beginning."""
    first = loss_mask.index(True)
    return input_ids[: first if first > 1 else min(PLAIN_PROMPT, len(input_ids) // 2)]
