"""The training data: packed rows from the hidden-state store. One batch = one optimizer step's rows of this rank.

Shapes: T positions of a packed row, L captured layers and the last state, H hidden size, J targets.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.data.plan import Plan
from eyas.data.positions import UnrollPlan
from eyas.data.store import States
from eyas.data.verifier_tokens import VerifierTokens
from eyas.tensors import map_tensors


@dataclass(frozen=True)
class PackedRow:
    """Documents one after another, and how the unroll goes through them."""

    number: int
    """The plan's packed rows are numbered: those to train on, then the held-out ones."""
    input_ids_T: Tensor
    position_ids_T: Tensor
    """Positions inside the document, from 0."""
    states_TLH: Tensor
    """The captured layers', then the last state."""
    unroll: UnrollPlan
    token_J: Tensor | None
    """The verifier's own token at each of the plan's targets, where it is known."""

    def to(self, device: torch.device) -> "PackedRow":
        """The same on another device."""
        return map_tensors(lambda it: it.to(device, non_blocking=True), self)


class StepRows(NamedTuple):
    """What one rank works through in one optimizer step."""

    rows: list[PackedRow]
    wait_seconds: float
    """How long the step waited for these rows."""

    @property
    def num_tokens(self) -> int:
        return sum(len(row.input_ids_T) for row in self.rows)


@dataclass(frozen=True)
class RowReader:
    """Makes packed rows, with all that the step needs to know of them; in a thread beside it."""

    states: States
    verifier_tokens: VerifierTokens
    row_length: int
    unroll: Callable[[Tensor, Tensor], UnrollPlan]
    """(loss_mask_T, document_ids_T) -> the plan of the unroll."""
    pinned: bool = False
    """In memory that a GPU copies from while it computes."""

    def read(self, number: int, documents: Sequence[int], *, supervised: bool = True) -> PackedRow:
        """Documents in one row, each cut at the row's length."""
        parts = [self.states.read(document) for document in documents]
        lengths = [min(len(part.input_ids_T), self.row_length) for part in parts]
        ends = list(accumulate(lengths))
        input_ids_T, loss_mask_T = (
            torch.cat([getattr(part, field)[:length] for part, length in zip(parts, lengths, strict=True)])
            for field in ("input_ids_T", "loss_mask_T")
        )
        document_ids_T = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(lengths))
        like_TLH = parts[0].hidden_TLH
        states_TLH = like_TLH.new_empty(ends[-1], like_TLH.shape[1] + 1, like_TLH.shape[2], pin_memory=self.pinned)
        for part, end, length in zip(parts, ends, lengths, strict=True):
            states_TLH[end - length : end, :-1] = part.hidden_TLH[:length]
            states_TLH[end - length : end, -1] = part.last_TH[:length]
        unroll = self.unroll(loss_mask_T & supervised, document_ids_T)
        row = PackedRow(
            number=number,
            input_ids_T=input_ids_T,
            position_ids_T=torch.cat([torch.arange(length) for length in lengths]),
            states_TLH=states_TLH,
            unroll=unroll,
            token_J=self.verifier_tokens.known(number, len(unroll.targets_J)),
        )
        return map_tensors(Tensor.pin_memory, row) if self.pinned else row


class PackedLoader:
    """Yields a `StepRows` per optimizer step, the next one read in a thread meanwhile.

    Its state is the number of steps that were yielded: the same on every rank, and for any number of ranks.
    """

    def __init__(self, reader: RowReader, plan: Plan, *, rank: int = 0, num_ranks: int = 1) -> None:
        self.reader, self.plan = reader, plan
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
        return [self.reader.read(row, self.plan.rows[row]) for row in rows]


class ValidationLoader:
    """Yields the held-out documents in packed rows, dealt to the ranks.

    Every rank gets as many rows, since each costs a collective; beyond the last one it is a row without supervision.
    """

    def __init__(self, reader: RowReader, plan: Plan, *, rank: int = 0, num_ranks: int = 1) -> None:
        self.reader, self.plan = reader, plan
        self.rank, self.num_ranks = rank, num_ranks

    def __len__(self) -> int:
        return -(-len(self.plan.held_out_rows) // self.num_ranks)

    def __iter__(self) -> Iterator[StepRows]:
        rows, first = self.plan.held_out_rows, len(self.plan.rows)
        for position in range(self.rank, len(self) * self.num_ranks, self.num_ranks):
            index = min(position, len(rows) - 1)
            yield StepRows([self.reader.read(first + index, rows[index], supervised=position == index)], 0.0)
