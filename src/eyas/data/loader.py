"""The training data: packed rows from the hidden-state store. One batch = one optimizer step's rows of this rank."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.data.plan import Plan
from eyas.data.store import States


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


def read_row(store: States, documents: Sequence[int], row_length: int) -> PackedRow:
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

    def __init__(self, store: States, plan: Plan, *, row_length: int, rank: int = 0, num_ranks: int = 1) -> None:
        self.store, self.plan, self.row_length = store, plan, row_length
        self.rank, self.num_ranks = rank, num_ranks
        self.step = 0

    def __len__(self) -> int:
        return self.plan.num_steps

    def __iter__(self) -> Iterator[StepRows]:
        with ThreadPoolExecutor(max_workers=1) as reader:
            ahead = reader.submit(self._read, self.step)
            for step in range(self.step, len(self)):
                started = time.monotonic()
                rows = ahead.result()
                waited = time.monotonic() - started
                if step + 1 < len(self):
                    ahead = reader.submit(self._read, step + 1)
                self.step = step + 1
                yield StepRows(rows, waited)

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]

    def _read(self, step: int) -> list[PackedRow]:
        rows = self.plan.rows_of(step, rank=self.rank, num_ranks=self.num_ranks)
        return [read_row(self.store, self.plan.rows[row], self.row_length) for row in rows]


class ValidationLoader:
    """Yields the held-out documents in packed rows, dealt to the ranks.

    Every rank gets as many rows, since each costs a collective; beyond the last one it is a row without supervision.
    """

    def __init__(
        self, store: States, rows: Sequence[Sequence[int]], *, row_length: int, rank: int = 0, num_ranks: int = 1
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
