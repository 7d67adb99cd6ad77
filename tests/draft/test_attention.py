"""Every backend of the unroll's attention, and its gradients, against dense masks in float64."""

import itertools

import pytest
import torch
from torch import Tensor

from eyas.data.positions import Rows, plan_unroll
from eyas.draft import attention
from eyas.draft.attention import attend, flex_prefix, merge_own

NUM_HEADS, GROUPS, SIZE, SCALE = 2, 3, 8, 0.3

MASKS = {
    "answers": [(4, [0, 0, 1, 1, 1, 1, 1, 1, 1]), (1, [1]), (2, [1, 1]), (3, [0, 1, 1]), (7, [1] * 7)],
    "turns": [(5, [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1]), (9, [1, 1, 1, 0, 1, 1, 1, 1])],
    "long": [(1, [0] * 60 + [1] * 100), (2, [1] * 90)],
}


def rows_of(name: str, step: int, *, whole: bool = False) -> Rows:
    mask = torch.tensor([written for _, document in MASKS[name] for written in document]).bool()
    documents = torch.cat([torch.full((len(document),), number) for number, (_, document) in enumerate(MASKS[name])])
    return plan_unroll(mask, documents, 4, whole_first_step=whole).steps[step]


def states(rows: Rows, step: int) -> list[Tensor]:
    """Queries, keys and values of the prefix, and the rows' own."""
    generator = torch.Generator().manual_seed(step)
    num_rows, num_positions = len(rows.positions_N), len(rows.document_T)
    shapes = [
        (num_rows, NUM_HEADS * GROUPS, SIZE),
        *[(num_positions, NUM_HEADS, SIZE)] * 2,
        *[(step, num_rows, NUM_HEADS, SIZE)] * 2,
    ]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def visible(rows: Rows, reach: int | None) -> Tensor:
    same_NT = rows.document_T[rows.positions_N][:, None] == rows.document_T
    back_NT = rows.positions_N[:, None] - torch.arange(len(rows.document_T))
    return same_NT & (back_NT >= 0) & (back_NT < (reach or 1000))


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    rows: Rows,
    reach: int | None = None,
) -> Tensor:
    key, value, own_key, own_value = (it.repeat_interleave(GROUPS, -2) for it in (key, value, own_key, own_value))
    prefix = torch.einsum("nqd,tqd->nqt", query, key).masked_fill(~visible(rows, reach)[:, None], -torch.inf)
    weights = (torch.cat([prefix, torch.einsum("nqd,snqd->nqs", query, own_key)], -1) * SCALE).softmax(-1)
    seen = weights[..., : len(key)], weights[..., len(key) :]
    return torch.einsum("nqt,tqd->nqd", seen[0], value) + torch.einsum("nqs,snqd->nqd", seen[1], own_value)


def dense_prefix(query: Tensor, key: Tensor, value: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp) over the prefix alone."""
    key, value = (it.repeat_interleave(GROUPS, -2) for it in (key, value))
    scores = torch.einsum("nqd,tqd->nqt", query, key).masked_fill(~visible(rows, None)[:, None], -torch.inf) * SCALE
    return torch.einsum("nqt,tqd->nqd", scores.softmax(-1), value), scores.logsumexp(-1)


CASES = [*itertools.product(MASKS, (0, 1, 3), (False, True), (None, 1, 6, 40))]


@pytest.mark.parametrize(("name", "step", "whole", "reach"), CASES)
def test_the_cpus_kernel_against_dense_masks(
    name: str, step: int, whole: bool, reach: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "WINDOWED_ROWS", 16)
    rows = rows_of(name, step, whole=whole)
    ours, theirs = states(rows, step), states(rows, step)
    found, expected = attend(*ours, rows, SCALE, reach), dense(*theirs, rows, reach)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected.backward(gradient)
    found.backward(gradient)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("name", "step", "whole", "reach"), CASES)
def test_flex_attention_against_dense_masks(name: str, step: int, whole: bool, reach: int | None) -> None:
    """Forward alone: on a CPU it has no backward."""
    rows = rows_of(name, step, whole=whole)
    query, key, value, own_key, own_value = (tensor.detach() for tensor in states(rows, step))
    prefix, lse = flex_prefix(query, key, value, rows, SCALE, reach)
    found, _ = merge_own(query, prefix, lse, own_key, own_value, SCALE)
    expected = dense(query, key, value, own_key, own_value, rows, reach)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("step", [1, 3])
def test_merging_has_the_gradient_of_one_softmax(step: int) -> None:
    """What a GPU's backward goes through after FlexAttention's own."""
    rows = rows_of("turns", step)
    ours, theirs = states(rows, step), states(rows, step)
    prefix, lse = dense_prefix(*ours[:3], rows)
    merge_own(ours[0], prefix, lse, *ours[3:], SCALE)[0].square().sum().backward()
    dense(*theirs, rows).square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_no_rows() -> None:
    rows = plan_unroll(torch.zeros(5).bool(), torch.zeros(5).long(), 1).steps[0]
    tensors = states(rows, 0)
    output = attend(*tensors, rows, SCALE)
    assert output.shape == (0, NUM_HEADS * GROUPS, SIZE)
    output.sum().backward()
    assert all(not tensor.grad.any() for tensor in tensors)
