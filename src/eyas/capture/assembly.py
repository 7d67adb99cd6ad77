"""Rows on their way through a server: which to ask for next, and which shard is whole.

Shapes: T tokens, L chosen layers and the last state.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from eyas.data.store import Document
from eyas.data.tokens import Tokens
from eyas.serving.client import Request


class Queue(Iterator[Request], Protocol):
    """Requests for rows, the next one as soon as there is room for it; who takes them says what became of each."""

    in_flight: set[int]
    """Rows that were asked for."""

    @property
    def is_done(self) -> bool:
        """Nothing is left, or on its way."""

    def ask_again(self, *rows: int) -> None:
        """These rows, which were on their way, come next."""


@dataclass
class Assembly(Iterator[Request]):
    """An iterator over the requests of all missing rows, shard by shard and the longest first.

    It stops while enough is on its way or kept, and goes on when asked again: so neither the files that the server has
    written and nobody has read yet, nor the documents that wait for the rest of their shard, grow with the data.
    """

    shards: Mapping[int, range]
    tokens: Tokens
    max_in_flight: int
    """Tokens that may be on their way; one row always may."""
    max_kept: int
    """Tokens that may wait for the rest of their shard."""
    waiting: list[int] = field(init=False)
    """Rows to be asked for, the next one last."""
    in_flight: set[int] = field(init=False, default_factory=set)
    kept: dict[int, dict[int, Document]] = field(init=False, default_factory=dict)
    """Documents by shard and row."""

    def __post_init__(self) -> None:
        lengths = self.tokens.lengths
        order = [row for rows in self.shards.values() for row in sorted(rows, key=lambda row: (-lengths[row], row))]
        self.waiting = order[::-1]
        self.shard_of = {row: index for index, rows in self.shards.items() for row in rows}
        self.tokens_in_flight = self.tokens_kept = 0

    @property
    def is_done(self) -> bool:
        return not self.waiting and not self.in_flight

    def __next__(self) -> Request:
        if not self.waiting:
            raise StopIteration
        length = self.tokens.lengths[self.waiting[-1]]
        if self.in_flight and (
            self.tokens_in_flight + length > self.max_in_flight or self.tokens_kept >= self.max_kept
        ):
            raise StopIteration
        row = self.waiting.pop()
        self.in_flight.add(row)
        self.tokens_in_flight += length
        return request(row, self.tokens.row(row)[0])

    def add(self, row: int, states_TLH: Tensor) -> tuple[int, list[Document]] | None:
        """Keep a row's states; if its shard is whole with them, give that back: (index, its documents in order)."""
        self._landed(row)
        index = self.shard_of[row]
        ids_T, mask_T = self.tokens.row(row)
        kept = self.kept.setdefault(index, {})
        kept[row] = Document(ids_T, mask_T, states_TLH[:, :-1], states_TLH[:, -1])
        self.tokens_kept += len(ids_T)
        if len(kept) < len(self.shards[index]):
            return None
        del self.kept[index]
        self.tokens_kept -= sum(self.tokens.lengths[row] for row in kept)
        return index, [kept[row] for row in self.shards[index]]

    def ask_again(self, *rows: int) -> None:
        """These rows, which were on their way, come next."""
        for row in sorted(rows, key=lambda row: (-self.shard_of[row], self.tokens.lengths[row])):
            self._landed(row)
            self.waiting.append(row)

    def _landed(self, row: int) -> None:
        self.in_flight.remove(row)
        self.tokens_in_flight -= self.tokens.lengths[row]


def request(key: object, ids_T: Tensor, **more: object) -> Request:
    """Run the verifier over these tokens; the one token that it must write is not used."""
    body = {"prompt": ids_T.tolist(), "max_tokens": 1, "temperature": 0, **more}
    return Request(key, "/v1/completions", body)
