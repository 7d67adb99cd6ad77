"""The plan of a training: which documents each optimizer step works through, known before the first one.

The rows of the steps are one endless stream of shuffled passes over the same packed rows. So whoever knows the plan, a rank
or a capture that goes on beside the training, knows what comes next.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache

from eyas.config import Config
from eyas.data.packing import num_steps, pack, permutation

NAMED = 12
"""So many documents are named one by one."""


class Plan:
    """Documents are numbered as in the tokens artifact: those to train on first, the held-out ones after them."""

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        held_out_rows: Sequence[Sequence[int]] = (),
        *,
        rows_per_step: int,
        num_steps: int,
        seed: int,
    ) -> None:
        self.rows, self.held_out_rows = rows, held_out_rows
        self.rows_per_step, self.num_steps = rows_per_step, num_steps
        self._order = lru_cache(maxsize=2)(lambda epoch: permutation(len(rows), seed, epoch))
        self._place = lru_cache(maxsize=2)(lambda epoch: _inverse(self._order(epoch)))

    @classmethod
    def of(cls, config: Config, lengths: Sequence[int], num_train_rows: int) -> "Plan":
        """The plan for a tokens artifact's documents, of which the first `num_train_rows` are trained on."""
        training = config.training
        rows = pack(lengths[:num_train_rows], training.row_length)
        held_out = pack(lengths[num_train_rows:], training.row_length)
        held_out = [[num_train_rows + document for document in row] for row in held_out]
        steps = num_steps(len(rows), training.rows_per_step, max_steps=training.max_steps, epochs=training.epochs)
        return cls(rows, held_out, rows_per_step=training.rows_per_step, num_steps=steps, seed=config.seed)

    def rows_of(self, step: int, *, rank: int = 0, num_ranks: int = 1) -> list[int]:
        """A rank's rows in one step."""
        positions = range(step * self.rows_per_step, (step + 1) * self.rows_per_step)
        return [
            self._order(position // len(self.rows))[position % len(self.rows)]
            for position in positions[rank::num_ranks]
        ]

    def documents_of(self, step: int) -> list[int]:
        """Every document of one step."""
        return [document for row in self.rows_of(step) for document in self.rows[row]]

    def named(self, step: int) -> str:
        """The documents of one step, for people; many of them in short."""
        documents = sorted(self.documents_of(step))
        named = ", ".join(map(str, documents[:NAMED]))
        return (
            f"documents {named}{f' and {len(documents) - NAMED} more' if len(documents) > NAMED else ''} of the tokens"
        )

    def next_step(self, document: int, after: int) -> int:
        """The first step later than `after` that needs a document; past the end of the training where none does."""
        row = self._row_of[document]
        start = (after + 1) * self.rows_per_step
        for epoch in (start // len(self.rows), start // len(self.rows) + 1):
            position = epoch * len(self.rows) + self._place(epoch)[row]
            if position >= start:
                break
        return position // self.rows_per_step

    @cached_property
    def _row_of(self) -> dict[int, int]:
        return {document: row for row, documents in enumerate(self.rows) for document in documents}


def _inverse(order: Sequence[int]) -> list[int]:
    place = [0] * len(order)
    for position, row in enumerate(order):
        place[row] = position
    return place
