"""The hidden-state store: a few large safetensors files, read by slice.

`shard-NNNNN.safetensors` holds whole rows, concatenated: `hidden` [tokens, layers + 1, H] (the chosen layers in ascending
order, then the last state before the final norm), `input_ids`, `loss_mask` and `offsets`. The manifest holds each shard's
sha256.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from eyas.artifact import publish, read_manifest, sha256_of_each
from eyas.errors import EyasError


@dataclass(frozen=True)
class Document:
    """One row of the store. T tokens, L chosen layers, H hidden size."""

    input_ids_T: Tensor
    loss_mask_T: Tensor
    hidden_TLH: Tensor
    last_TH: Tensor


class States(Protocol):
    """Whatever hands out the states of a tokens artifact's rows."""

    def verify(self) -> None:
        """Whether they are what was captured.

        Raises:
            EyasError: they aren't.
        """

    def read(self, row: int) -> Document:
        """One document."""


def plan_shards(lengths: Sequence[int], tokens_per_shard: int) -> list[range]:
    """Consecutive rows per shard, decided before the first one is written, so that a resumed capture is the same."""
    shards: list[range] = []
    start = tokens = 0
    for row, length in enumerate(lengths):
        if row > start and tokens + length > tokens_per_shard:
            shards.append(range(start, row))
            start, tokens = row, 0
        tokens += length
    return [*shards, range(start, len(lengths))]


def shard_name(index: int) -> str:
    return f"shard-{index:05d}.safetensors"


def write_shard(file: Path, documents: Sequence[Document]) -> None:
    """Write one shard completely or not at all.

    Raises:
        EyasError: states that no verifier can have meant (not finite, or all zero).
    """
    hidden = torch.cat([torch.cat([doc.hidden_TLH, doc.last_TH[:, None]], dim=1) for doc in documents])
    if not hidden.isfinite().all():
        raise EyasError(f"the verifier's states for {file.name} are not finite; try capture.dtype=float32")
    if not hidden.any(dim=0).any(dim=-1).all():
        raise EyasError(
            f"a captured layer is all zero in {file.name}: that layer isn't run, or its hook is in the wrong place"
        )
    tensors = {
        "hidden": hidden,
        "input_ids": torch.cat([doc.input_ids_T for doc in documents]).int(),
        "loss_mask": torch.cat([doc.loss_mask_T for doc in documents]),
        "offsets": torch.tensor([0, *(len(doc.input_ids_T) for doc in documents)]).cumsum(0),
    }
    partial = file.with_suffix(".partial")
    try:
        partial.write_bytes(save(tensors))
        publish(partial, file)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk it would take what little room there is
        raise


class StateStore:
    """Random access to a complete states artifact."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        manifest = read_manifest(directory)
        if not manifest:
            raise EyasError(f"{directory} is no complete states directory: its manifest.json is missing")
        self.shards: list[dict[str, Any]] = manifest["counts"]["shards"]
        self.first_rows = [shard["first_row"] for shard in self.shards]
        self.lengths: list[int] = [length for shard in self.shards for length in shard["lengths"]]
        self._open: dict[int, tuple[Any, list[int]]] = {}

    def verify(self) -> None:
        """Read every shard and compare it with its checksum.

        Raises:
            EyasError: a shard that is missing or changed, by name.
        """
        files = [self.directory / shard["file"] for shard in self.shards]
        bad = [(file, "missing") for file in files if not file.exists()]
        if not bad:
            found = zip(files, sha256_of_each(files, "verify"), self.shards, strict=True)
            bad = [
                (file, "changed since it was captured") for file, sha256, shard in found if sha256 != shard["sha256"]
            ]
        for file, state in bad:
            raise EyasError(f"{file} is {state}; delete {self.directory} and the same command captures it again")

    def read(self, row: int) -> Document:
        """One document, by slices of its shard."""
        index = bisect_right(self.first_rows, row) - 1
        if index not in self._open:
            file = safe_open(self.directory / self.shards[index]["file"], framework="pt")
            self._open[index] = (file, file.get_tensor("offsets").tolist())
        file, offsets = self._open[index]
        start, end = offsets[row - self.first_rows[index] :][:2]
        states = file.get_slice("hidden")[start:end]
        return Document(
            file.get_slice("input_ids")[start:end].long(),
            file.get_slice("loss_mask")[start:end],
            states[:, :-1],
            states[:, -1],
        )
