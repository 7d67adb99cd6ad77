"""What the unroll's predictions cost: head, loss and its gradient, for a few targets at a time.

The draft's logits, and the teacher's over the whole vocabulary, are by far the largest things in a step. They never exist for
more than one chunk of targets: while the teacher's distribution for these is there, the rows of *all* steps that they are the
targets of are judged together, and the gradient with respect to their states is made at once. Backwards it is only multiplied.

Shapes: K unroll steps, R rows of all steps that have a target, N of them in a chunk, H hidden size, D draft vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.data.positions import UnrollPlan
from eyas.draft.loss import PositionLoss
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
    hit_R: Tensor
    """Which rows say the verifier's own token."""


def judge(
    state_RH: Tensor,
    head_DH: Tensor,
    targets: Callable[[slice], Targets],
    plan: UnrollPlan,
    loss: PositionLoss,
    weight_K: Tensor,
) -> Judged:
    """Judge the rows of all steps, step after step.

    Args:
        targets: What the teacher says, for a slice of the plan's targets.
        weight_K: What each step counts in `Judged.loss`.
    """
    return Judged(*_Judge.apply(state_RH, head_DH, targets, plan, loss, weight_K))  # type: ignore[no-untyped-call]


class _Judge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        state_RH: Tensor,
        head_DH: Tensor,
        targets: Callable[[slice], Targets],
        plan: UnrollPlan,
        loss: PositionLoss,
        weight_K: Tensor,
    ) -> tuple[Tensor, ...]:
        wide = torch.promote_types(head_DH.dtype, torch.float32)
        d_state_RH = torch.zeros_like(state_RH)
        d_head_DH = torch.zeros_like(head_DH, dtype=wide) if ctx.needs_input_grad[1] else None
        hit_R = torch.zeros(len(state_RH), dtype=torch.bool, device=state_RH.device)
        loss_K, trained_K = torch.zeros_like(weight_K, dtype=wide), torch.zeros_like(weight_K, dtype=wide)
        for chunk in plan.chunks:
            state_NH, step_NK = state_RH.index_select(0, chunk.row_N), chunk.step_NK.to(wide)
            mine = targets(chunk.targets).take(chunk.target_N)
            token_N, loss_N, d_logits_ND = loss((state_NH @ head_DH.T).to(wide), mine)
            hit_R.index_copy_(0, chunk.row_N, token_N == mine.token_N)
            trained_N = (mine.token_N >= 0).to(wide)
            trained_K += trained_N @ step_NK
            loss_K += (loss_N * trained_N) @ step_NK
            if not any(ctx.needs_input_grad):  # a validation
                continue
            d_logits_ND = d_logits_ND.to(head_DH.dtype)
            weight_N1 = (trained_N * (step_NK @ weight_K.to(wide)))[:, None].to(head_DH.dtype)
            d_state_RH.index_copy_(0, chunk.row_N, (d_logits_ND @ head_DH) * weight_N1)
            if d_head_DH is not None:
                d_head_DH += d_logits_ND.T @ (state_NH * weight_N1)
        ctx.save_for_backward(d_state_RH, *([] if d_head_DH is None else [d_head_DH.to(head_DH.dtype)]))
        ctx.mark_non_differentiable(loss_K, trained_K, hit_R)
        return (loss_K * weight_K).sum(), loss_K, trained_K, hit_R

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        d_state_RH, *d_head = (it * d_total.to(it.dtype) for it in ctx.saved_tensors)
        return d_state_RH, (d_head[0] if d_head else None), None, None, None, None
