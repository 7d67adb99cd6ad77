"""What the unroll's predictions cost: head, loss and its gradient, for a few targets at a time.

The draft's logits, and the teacher's over the whole vocabulary, are by far the largest things in a step. They never exist for
more than one chunk of targets: while the teacher's distribution for these is there, the rows of *all* steps that they are the
targets of are judged, and the gradient with respect to their states is made at once. Backwards it is only multiplied.

Shapes: K unroll steps, M rows of a step that have a target, N of them in a chunk, H hidden size, D draft vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.draft.loss import PositionLoss
from eyas.draft.positions import UnrollPlan
from eyas.verifier.teacher import Targets


@dataclass(frozen=True)
class Judged:
    """The verdict on all rows that have a target."""

    loss: Tensor
    """The steps' losses, each times its weight, summed; carries the gradient."""
    loss_K: Tensor
    """The sum over the rows whose target is in the draft vocabulary."""
    trained_K: Tensor
    """How many these are."""
    hits: list[Tensor]
    """For each step, which rows say the verifier's own token [M]."""


def judge(
    states: Sequence[Tensor],
    head_DH: Tensor,
    targets: Callable[[slice], Targets],
    plan: UnrollPlan,
    loss: PositionLoss,
    weight_K: Sequence[float],
) -> Judged:
    """Judge each step's states [M, H].

    Args:
        targets: What the teacher says, for a slice of the plan's targets.
        weight_K: What each step counts in `Judged.loss`.
    """
    total, loss_K, trained_K, *hits = _Judge.apply(  # type: ignore[no-untyped-call]
        head_DH, targets, plan, loss, weight_K, *states
    )
    return Judged(total, loss_K, trained_K, hits)


class _Judge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        head_DH: Tensor,
        targets: Callable[[slice], Targets],
        plan: UnrollPlan,
        loss: PositionLoss,
        weight_K: Sequence[float],
        *states: Tensor,
    ) -> tuple[Tensor, ...]:
        wide = torch.promote_types(head_DH.dtype, torch.float32)
        d_head_DH = torch.zeros_like(head_DH, dtype=wide) if ctx.needs_input_grad[0] else None
        d_states = [torch.zeros_like(state_MH) for state_MH in states]
        hits = [torch.zeros(len(state_MH), dtype=torch.bool, device=head_DH.device) for state_MH in states]
        loss_K, trained_K = (torch.zeros(len(states), dtype=wide, device=head_DH.device) for _ in range(2))
        for chunk in plan.chunks:
            of_chunk = targets(chunk.targets)
            for step, rows in enumerate(chunk.rows_K):
                state_NH = states[step][rows]
                mine = of_chunk.take(plan.steps[step].target_M[rows] - chunk.targets.start)
                logits_ND = (state_NH @ head_DH.T).to(wide)
                hits[step][rows] = logits_ND.argmax(-1) == mine.token_N
                is_trained_N = mine.token_N >= 0
                loss_N, d_logits_ND = loss(logits_ND, mine)
                loss_K[step] += (loss_N * is_trained_N).sum()
                trained_K[step] += is_trained_N.sum()
                if not any(ctx.needs_input_grad):  # a validation
                    continue
                d_logits_ND = d_logits_ND.to(head_DH.dtype)
                weight_N1 = (is_trained_N * weight_K[step])[:, None].to(head_DH.dtype)
                d_states[step][rows] = (d_logits_ND @ head_DH) * weight_N1
                if d_head_DH is not None:
                    d_head_DH += d_logits_ND.T @ (state_NH * weight_N1)
        ctx.num_steps = len(states)
        ctx.save_for_backward(*d_states, *([] if d_head_DH is None else [d_head_DH.to(head_DH.dtype)]))
        ctx.mark_non_differentiable(loss_K, trained_K, *hits)
        return (loss_K * loss_K.new_tensor(weight_K)).sum(), loss_K, trained_K, *hits

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        scaled = [it * d_total.to(it.dtype) for it in ctx.saved_tensors]
        d_states, d_head = scaled[: ctx.num_steps], scaled[ctx.num_steps :]
        return (d_head[0] if d_head else None), None, None, None, None, *d_states
