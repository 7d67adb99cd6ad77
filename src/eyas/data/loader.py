"""The training data: packed rows from the hidden-state store. One batch = one optimizer step's rows of this rank."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.data.packing import permutation
from eyas.data.store import StateStore


class PackedRow(NamedTuple):
    """Documents one after another. T positions, L captured layers, H hidden size."""

    input_ids_T: Tensor
    loss_mask_T: Tensor
    document_ids_T: Tensor
    position_ids_T: Tensor
    """Positions inside the document, from 0."""
    hidden_TLH: Tensor
    last_TH: Tensor


class StepRows(NamedTuple):
    """What one rank works through in one optimizer step."""

    rows: list[PackedRow]
    wait_seconds: float
    """How long the step waited for these rows."""

    @property
    def num_tokens(self) -> int:
        return sum(len(row.input_ids_T) for row in self.rows)


def read_row(store: StateStore, documents: Sequence[int], row_length: int) -> PackedRow:
    """Read documents from the store into one row, each cut at `row_length`."""
    parts = [store.read(document) for document in documents]
    lengths = [min(len(part.input_ids_T), row_length) for part in parts]

    def joined(field: str) -> Tensor:
        return torch.cat([getattr(part, field)[:length] for part, length in zip(parts, lengths, strict=True)])

    return PackedRow(
        input_ids_T=joined("input_ids_T"),
        loss_mask_T=joined("loss_mask_T"),
        document_ids_T=torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(lengths)),
        position_ids_T=torch.cat([torch.arange(length) for length in lengths]),
        hidden_TLH=joined("hidden_TLH"),
        last_TH=joined("last_TH"),
    )


class PackedLoader:
    """Yields a `StepRows` per optimizer step, the next one read in a thread meanwhile.

    Its state is the number of steps that were yielded: the same on every rank, and for any number of ranks.
    """

    def __init__(
        self,
        store: StateStore,
        rows: Sequence[Sequence[int]],
        *,
        row_length: int,
        rows_per_step: int,
        num_steps: int,
        seed: int,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self.store, self.rows, self.row_length = store, rows, row_length
        self.rows_per_step, self.num_steps, self.seed = rows_per_step, num_steps, seed
        self.rank, self.num_ranks = rank, num_ranks
        self.step = 0
        self._order = lru_cache(maxsize=2)(lambda epoch: permutation(len(rows), seed, epoch))

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[StepRows]:
        with ThreadPoolExecutor(max_workers=1) as reader:
            ahead = reader.submit(self._read, self.step)
            for step in range(self.step, self.num_steps):
                started = time.monotonic()
                rows = ahead.result()
                waited = time.monotonic() - started
                if step + 1 < self.num_steps:
                    ahead = reader.submit(self._read, step + 1)
                self.step = step + 1
                yield StepRows(rows, waited)

    def rows_of(self, step: int) -> list[int]:
        """This rank's rows in one step, out of the endless stream of shuffled passes."""
        positions = range(step * self.rows_per_step, (step + 1) * self.rows_per_step)
        return [
            self._order(position // len(self.rows))[position % len(self.rows)]
            for position in positions[self.rank :: self.num_ranks]
        ]

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]

    def _read(self, step: int) -> list[PackedRow]:
        return [read_row(self.store, self.rows[row], self.row_length) for row in self.rows_of(step)]


class ValidationLoader:
    """Yields the held-out documents in packed rows, dealt to the ranks.

    Every rank gets as many rows, since each costs a collective; beyond the last one it is a row without supervision.
    """

    def __init__(
        self, store: StateStore, rows: Sequence[Sequence[int]], *, row_length: int, rank: int = 0, num_ranks: int = 1
    ) -> None:
        self.store, self.rows, self.row_length = store, rows, row_length
        self.rank, self.num_ranks = rank, num_ranks

    def __len__(self) -> int:
        return -(-len(self.rows) // self.num_ranks)

    def __iter__(self) -> Iterator[StepRows]:
        for index in range(len(self)):
            position = index * self.num_ranks + self.rank
            row = read_row(self.store, self.rows[min(position, len(self.rows) - 1)], self.row_length)
            if position >= len(self.rows):
                row = row._replace(loss_mask_T=torch.zeros_like(row.loss_mask_T))
            yield StepRows([row], 0.0)
