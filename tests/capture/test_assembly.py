"""Which rows are asked for, in which order, and how much is on its way and in memory."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from eyas.capture.assembly import Assembly
from eyas.data.store import plan_shards


class Rows:
    """Tokens of rows of these lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def row(self, index: int) -> tuple[Tensor, Tensor]:
        length = self.lengths[index]
        return torch.full((length,), index), torch.ones(length, dtype=torch.bool)


def assembly(lengths: list[int], per_shard: int, **limits: int) -> Assembly:
    tokens: Any = Rows(lengths)
    shards = dict(enumerate(plan_shards(lengths, per_shard)))
    return Assembly(shards, tokens, **{"max_in_flight": 10**6, "max_kept": 10**6} | limits)


def states(length: int) -> Tensor:
    return torch.zeros(length, 2, 4)


def test_shard_by_shard_and_the_longest_first() -> None:
    rows = assembly([3, 5, 2, 4, 9, 1], per_shard=10)
    assert [request.key for request in rows] == [1, 0, 2, 3, 4, 5]
    assert rows.shards == {0: range(3), 1: range(3, 4), 2: range(4, 6)}


def test_a_request_is_the_row_and_one_token() -> None:
    request = next(assembly([3], per_shard=10))
    assert (request.path, request.body["prompt"], request.body["max_tokens"]) == ("/v1/completions", [0, 0, 0], 1)


def test_tokens_in_flight_are_bounded() -> None:
    rows = assembly([4] * 6, per_shard=100, max_in_flight=9)
    assert [request.key for request in rows] == [0, 1], "it stops,"
    assert rows.add(0, states(4)) is None
    assert [request.key for request in rows] == [2], "and goes on."
    one_long_row = assembly([50, 2], per_shard=100, max_in_flight=9)
    assert [request.key for request in one_long_row] == [0], "a row longer than the limit goes alone"


def test_documents_in_memory_are_bounded() -> None:
    """Of each shard the first row doesn't come: only so much of the others piles up, and all of it goes on when they do."""
    rows = assembly([5] * 40, per_shard=20, max_in_flight=60, max_kept=40)
    most, whole = 0, set()
    in_flight = [request.key for request in rows]
    while in_flight:
        arrived = next((row for row in in_flight if row % 4), in_flight[0])
        in_flight.remove(arrived)
        if made := rows.add(arrived, states(5)):
            whole.add(made[0])
        most = max(most, rows.tokens_kept)
        in_flight += [request.key for request in rows]
    assert rows.is_done
    assert whole == {*range(10)}
    assert 40 <= most <= 40 + 60


def test_a_shard_is_whole_with_its_last_row() -> None:
    rows = assembly([3, 5, 2, 4], per_shard=10)
    list(rows)
    assert rows.add(2, states(2)) is None
    assert rows.add(3, states(4)) is not None, "another shard, of one row"
    assert rows.add(0, states(3)) is None
    whole = rows.add(1, states(5))
    assert whole is not None
    index, documents = whole
    assert index == 0
    assert [document.input_ids_T.tolist() for document in documents] == [[0] * 3, [1] * 5, [2] * 2]
    assert documents[0].hidden_TLH.shape == (3, 1, 4)
    assert documents[0].last_TH.shape == (3, 4)
    assert rows.is_done
    assert rows.tokens_kept == rows.tokens_in_flight == 0


@pytest.mark.parametrize("number", [1, 3])
def test_rows_that_were_lost_come_next(number: int) -> None:
    rows = assembly([3, 5, 2, 4, 9], per_shard=10)
    sent = [request.key for request in islice(rows, number)]
    rows.ask_again(*rows.in_flight)
    assert not rows.in_flight
    assert [request.key for request in rows] == [1, 0, 2, 3, 4]
    assert sent == [1, 0, 2][:number]
