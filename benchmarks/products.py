"""The bound: the matrix products that a step can't do without, run alone, in the sizes in which the step has them.

Attention isn't among them (its kernel is no plain product), nor is anything that goes through memory once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from eyas.data.positions import UnrollPlan
from eyas.draft.shape import Shape

Product = tuple[int, int, int]
"""[rows, inputs] x [inputs, outputs]."""


def products(plan: UnrollPlan, sizes: Shape) -> Iterator[Product]:
    """Of one step over one packed row with a frozen head and known tokens of the verifier."""
    num_positions, hidden_size = len(plan.steps[0].document_T), sizes.hidden_size
    queries = sizes.num_attention_heads * sizes.head_dim
    keys = sizes.num_key_value_heads * sizes.head_dim
    first = len(plan.steps[0].positions_N)

    yield from _trained(num_positions, hidden_size * len(sizes.layer_ids), hidden_size)
    yield from _trained(first, hidden_size, queries)
    for _ in ("keys", "values"):
        yield from _trained(num_positions, hidden_size, keys)
    for step, rows in enumerate(plan.steps):
        num_rows = len(rows.positions_N)
        yield from _trained(num_rows, hidden_size, queries)
        for _ in ("keys", "values"):
            yield from _trained(num_rows if step else num_positions, hidden_size, keys)
        yield from _trained(num_rows, queries, hidden_size)
        for _ in ("gate", "up"):
            yield from _trained(num_rows, hidden_size, sizes.intermediate_size)
        yield from _trained(num_rows, sizes.intermediate_size, hidden_size)
    for chunk in plan.chunks:
        yield chunk.targets.stop - chunk.targets.start, hidden_size, sizes.draft_vocab_size
        yield len(chunk.row_N), hidden_size, sizes.draft_vocab_size
        yield len(chunk.row_N), sizes.draft_vocab_size, hidden_size


def _trained(rows: int, inputs: int, outputs: int) -> Iterator[Product]:
    """A projection, the gradient of its weight, and that of what it reads: a trained norm stands before each."""
    yield rows, inputs, outputs
    yield outputs, rows, inputs
    yield rows, outputs, inputs


class Products:
    """All products of a step, with their operands at hand."""

    def __init__(self, plans: list[UnrollPlan], sizes: Shape, dtype: torch.dtype, device: torch.device) -> None:
        self.steps = [list(products(plan, sizes)) for plan in plans]
        self.operands: dict[tuple[int, int], Tensor] = {}
        for rows, inputs, outputs in (product for step in self.steps for product in step):
            for shape in ((rows, inputs), (outputs, inputs)):
                if shape not in self.operands:
                    self.operands[shape] = torch.randn(shape, device=device).to(dtype)

    def run(self, number: int) -> None:
        for rows, inputs, outputs in self.steps[number % len(self.steps)]:
            _ = self.operands[rows, inputs] @ self.operands[outputs, inputs].T
