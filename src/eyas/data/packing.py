"""Packing documents into rows, and dealing rows to optimizer steps: both known before the first step."""

import random
from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Documents (by index) into rows of at most `row_length` tokens: best fit, longest first; deterministic.

    A document longer than a row has one for itself; the reader cuts it.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for document in sorted(range(len(lengths)), key=lambda document: (-lengths[document], document)):
        length = min(lengths[document], row_length)
        fit = bisect_left(room, (length, -1))
        if fit < len(room):
            left, row = room.pop(fit)
        else:
            left, row = row_length, len(rows)
            rows.append([])
        rows[row].append(document)
        insort(room, (left - length, row))
    return rows


def permutation(num_rows: int, seed: int, epoch: int) -> list[int]:
    """The order of the rows in one pass."""
    order = list(range(num_rows))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def num_steps(num_rows: int, rows_per_step: int, *, max_steps: int | None, epochs: float | None) -> int:
    """The run's length in optimizer steps."""
    if max_steps is not None:
        return max_steps
    assert epochs is not None  # the configuration has exactly one of them
    return max(1, int(epochs * num_rows / rows_per_step))
