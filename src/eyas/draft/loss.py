"""What one prediction of the draft costs, and the gradient of that: per position, in float32.

Each loss is of p, the teacher's distribution over the draft vocabulary, and q, the draft's. Verification accepts a drafted token
with probability alpha, the sum of min(p, q).

Shapes: N positions, D draft vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from eyas.training.schema import Loss
from eyas.verifier.teacher import Targets


@dataclass(frozen=True)
class Predicted:
    """What the draft says at N positions."""

    logits_ND: Tensor
    probs_ND: Tensor
    lse_N: Tensor
    """Log-sum-exp of the logits."""
    token_N: Tensor
    """The likeliest token."""

    @classmethod
    def of(cls, logits_ND: Tensor) -> Self:
        probs_ND = logits_ND.softmax(-1)
        top_N, token_N = probs_ND.max(-1)
        # A second pass of exponentials would say the same.
        lse_N = logits_ND.gather(1, token_N[:, None])[:, 0] - top_N.log()
        return cls(logits_ND, probs_ND, lse_N, token_N)


PositionLoss = Callable[[Tensor, Targets], tuple[Tensor, Tensor, Tensor]]
"""(logits [N, D], their targets) -> (the likeliest token [N], loss [N], its gradient with respect to the logits [N, D]).

Where a target's token is -1, loss and gradient are finite, and aren't used.
"""

SMALLEST_ACCEPTANCE = 1e-7
HYBRID_ETA = 3.0
"""How fast `lk_hybrid` leaves KL for acceptance: the best of its paper."""


def kl(predicted: Predicted, targets: Targets) -> tuple[Tensor, Tensor]:
    """KL(p || q): the whole distribution, as EAGLE-3 (arXiv 2503.01840) up to the teacher's entropy."""
    loss_N = predicted.lse_N - torch.linalg.vecdot(targets.probs_ND, predicted.logits_ND) - targets.entropy_N
    return loss_N, predicted.probs_ND.sub_(targets.probs_ND)


def ce(predicted: Predicted, targets: Targets) -> tuple[Tensor, Tensor]:
    """Cross-entropy with the teacher's most likely token: all that greedy verification looks at."""
    token_N1 = targets.token_N.clamp_min(0)[:, None]
    loss_N = predicted.lse_N - predicted.logits_ND.gather(1, token_N1)[:, 0]
    return loss_N, predicted.probs_ND.scatter_add_(1, token_N1, -torch.ones_like(loss_N)[:, None])


def nla(predicted: Predicted, targets: Targets) -> tuple[Tensor, Tensor]:
    """-log alpha: acceptance itself, with a gradient where little is accepted yet (arXiv 2602.23881)."""
    alpha_N, d_alpha_ND = _acceptance(predicted, targets)
    alpha_N = alpha_N.clamp_min(SMALLEST_ACCEPTANCE)
    return -alpha_N.log(), d_alpha_ND.div_(-alpha_N[:, None])


def lk_hybrid(predicted: Predicted, targets: Targets) -> tuple[Tensor, Tensor]:
    """w KL(p || q) + (1 - w)(1 - alpha), with w = exp(-3 alpha) taken as a constant (arXiv 2602.23881)."""
    alpha_N, d_alpha_ND = _acceptance(predicted, targets)
    weight_N = (-HYBRID_ETA * alpha_N).exp()
    kl_N, d_kl_ND = kl(predicted, targets)
    loss_N = weight_N * kl_N + (1 - weight_N) * (1 - alpha_N)
    return loss_N, d_kl_ND.mul_(weight_N[:, None]).addcmul_(d_alpha_ND, weight_N[:, None] - 1)


def _acceptance(predicted: Predicted, targets: Targets) -> tuple[Tensor, Tensor]:
    """(alpha [N], its gradient with respect to the logits [N, D])."""
    draft_ND = predicted.probs_ND
    alpha_N = torch.minimum(draft_ND, targets.probs_ND).sum(-1)
    below_ND = torch.where(draft_ND < targets.probs_ND, draft_ND, 0)
    return alpha_N, below_ND.sub_(draft_ND * below_ND.sum(-1, keepdim=True))


def position_loss(loss: Loss) -> PositionLoss:
    """The loss of that name. Its gradient is written over what was predicted."""

    def judged(logits_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        predicted = Predicted.of(logits_ND)
        return predicted.token_N, *LOSSES[loss](predicted, targets)

    return judged


LOSSES: dict[Loss, Callable[[Predicted, Targets], tuple[Tensor, Tensor]]] = {
    Loss.kl: kl,
    Loss.ce: ce,
    Loss.nla: nla,
    Loss.lk_hybrid: lk_hybrid,
}
