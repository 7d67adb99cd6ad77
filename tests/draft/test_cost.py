"""What a step costs, counted: no matrix product and no attention grows faster than it must."""

from itertools import pairwise
from typing import Any

import torch
from small import Documents, new_draft
from torch.utils.flop_counter import FlopCounterMode

from eyas.verifier.teacher import Teacher

DOCUMENT = (40, 10)
"""Tokens, and those of the prompt."""


def attention(query: Any, key: Any, *_: Any, is_causal: bool = False, **__: Any) -> int:
    """Of the forward: scores, and what they weigh."""
    _, heads, rows, size = query
    return int(4 * heads * rows * key[2] * size)


def attention_backward(_: Any, query: Any, key: Any, *__: Any, **___: Any) -> int:
    return attention(query, key) * 5 // 2


KERNELS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
}


def cost(teacher: Teacher, row: Documents, num_steps: int = 3, **changes: Any) -> int:
    """Operations of matrix products and attention, forward and backward."""
    draft = new_draft(**changes)
    draft.freeze(trainable_head=True)
    with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
        row.unroll(draft, teacher, weights=[1.0] * num_steps).loss.backward()
    return int(counter.get_total_flops())


def test_twice_the_row_costs_twice(teacher: Teacher) -> None:
    one, two, four = (cost(teacher, Documents.random(*[DOCUMENT] * number)) for number in (2, 4, 8))
    assert two == 2 * one
    assert four == 4 * one


def test_a_further_unroll_step_costs_no_more_than_the_one_before(teacher: Teacher) -> None:
    row = Documents.random(*[DOCUMENT] * 2)
    costs = [cost(teacher, row, steps) for steps in range(1, 9)]
    added = [after - before for before, after in pairwise(costs)]
    assert all(later < earlier for earlier, later in pairwise(added))  # each has fewer rows
    assert added[-1] > 0.7 * added[0]


def test_what_is_not_supervised_costs_its_keys_and_values_alone(teacher: Teacher) -> None:
    fused, of_token, of_state = 96 * 32, 2 * 32 * 16, 2 * 32 * 16
    expected = (
        40 * (fused + of_token + of_state) * 2 * 3
    )  # a multiplication and an addition; forward, and both gradients
    assert cost(teacher, Documents.random((40, 40))) == expected


def test_with_a_window_a_long_document_costs_what_its_length_is(teacher: Teacher) -> None:
    one, two = (cost(teacher, Documents.random((length, 0)), sliding_window=32) for length in (1024, 2048))
    assert two < 2.1 * one
    full, twice = (cost(teacher, Documents.random((length, 0))) for length in (1024, 2048))
    assert twice > 2.5 * full
