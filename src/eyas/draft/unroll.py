"""The training-time test of EAGLE-3 (arXiv 2503.01840, section 3.2): the draft, unrolled as it will be served.

One packed row holds several documents. Position i at unroll step k (from 0) reads token x(i+1+k) together with the hidden
state of position i (the verifier's at step 0, the draft's own after that) and predicts x(i+2+k). Its target is what the
verifier says at position i+1+k. A target outside the draft vocabulary can't be learnt; it counts as a miss.

Step k attends to the true prefix (the keys of step 0) and to its own position's keys of steps 1..k, which is what a served
draft sees: true history, then its own guesses.

Which positions are computed, and why no others, is in `data/positions.py`; how in `layers.py` and `attention.py`; what it costs in
`judge.py`. Here they meet.

Shapes: T positions of a packed row, K unroll steps, N rows of a step, M of them that have a target, H hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.data.positions import Rows, UnrollPlan
from eyas.draft.judge import Judged

DraftStep = Callable[[Tensor, Rows, int], tuple[Tensor, Tensor]]
"""(hidden [T, H] at step 0, else [N, H]; rows; step) -> (hidden for the next step [N, H], normalised state for the head [N, H])."""


@dataclass(frozen=True)
class Unrolled:
    """What an unroll adds up to, per step."""

    loss: Tensor
    """The steps' losses, each times its weight, summed; carries the gradient."""
    loss_K: Tensor
    """Sum of the loss over trained positions."""
    trained_K: Tensor
    """Supervised positions whose target is inside the draft vocabulary."""
    supervised_K: Tensor
    reached_K: Tensor
    """Supervised positions where every earlier step was right: this step would be verified."""
    accepted_K: Tensor
    """Those where this step is right too: the joint prefix hits."""


def unroll(draft_step: DraftStep, judge: Callable[[Tensor], Judged], hidden_TH: Tensor, plan: UnrollPlan) -> Unrolled:
    """Unroll the draft over one packed row, and judge every step's predictions."""
    states = []
    hidden = hidden_TH
    for step, rows in enumerate(plan.steps):
        hidden, normed_NH = draft_step(hidden.index_select(0, rows.kept_N) if step else hidden, rows, step)
        states.append(normed_NH.index_select(0, rows.judged_M))
    judged = judge(torch.cat(states))

    reached_N, counts = None, []
    for rows, hit_M in zip(plan.steps, judged.hit_R.split([len(rows.judged_M) for rows in plan.steps]), strict=True):
        reached_M = torch.ones_like(hit_M) if reached_N is None else reached_N[rows.kept_N]
        accepted_M = reached_M & hit_M
        counts.append(torch.stack([reached_M.sum(), accepted_M.sum()]))
        reached_N = torch.zeros(len(rows.positions_N), dtype=torch.bool, device=hit_M.device)
        reached_N[rows.judged_M] = accepted_M
    return Unrolled(judged.loss, judged.loss_K, judged.trained_K, plan.supervised_K, *torch.stack(counts, dim=1))
