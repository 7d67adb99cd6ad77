"""What one prediction of the draft costs, and the gradient of that: per position, in float32.

Each loss is of p, the teacher's distribution over the draft vocabulary, and q, the draft's. Verification accepts a drafted token
with probability alpha, the sum of min(p, q).

Shapes: N positions, D draft vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from eyas.config import Loss
from eyas.verifier.teacher import Targets

PositionLoss = Callable[[Tensor, Targets], tuple[Tensor, Tensor]]
"""(draft logits [N, D], their targets) -> (loss [N], its gradient with respect to the logits [N, D]).

The logits may be overwritten. Where a target's token is -1, what comes back is finite, and isn't used.
"""

SMALLEST_ACCEPTANCE = 1e-7
HYBRID_ETA = 3.0
"""How fast `lk_hybrid` leaves KL for acceptance: the best of its paper."""


def kl(logits_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """KL(p || q): the whole distribution, as EAGLE-3 (arXiv 2503.01840) up to the teacher's entropy."""
    lse_N = logits_ND.logsumexp(-1)
    loss_N = lse_N - torch.linalg.vecdot(targets.probs_ND, logits_ND) - targets.entropy_N
    return loss_N, logits_ND.sub_(lse_N[:, None]).exp_().sub_(targets.probs_ND)


def ce(logits_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Cross-entropy with the teacher's most likely token: all that greedy verification looks at."""
    token_N1 = targets.token_N.clamp_min(0)[:, None]
    lse_N = logits_ND.logsumexp(-1)
    loss_N = lse_N - logits_ND.gather(1, token_N1)[:, 0]
    gradient_ND = logits_ND.sub_(lse_N[:, None]).exp_()
    return loss_N, gradient_ND.scatter_add_(1, token_N1, -torch.ones_like(lse_N)[:, None])


def nla(logits_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """-log alpha: acceptance itself, with a gradient where little is accepted yet (arXiv 2602.23881)."""
    alpha_N, d_alpha_ND = _acceptance(logits_ND, targets)
    alpha_N = alpha_N.clamp_min(SMALLEST_ACCEPTANCE)
    return -alpha_N.log(), d_alpha_ND.div_(-alpha_N[:, None])


def lk_hybrid(logits_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """w KL(p || q) + (1 - w)(1 - alpha), with w = exp(-3 alpha) taken as a constant (arXiv 2602.23881)."""
    alpha_N, d_alpha_ND = _acceptance(logits_ND, targets)
    weight_N = (-HYBRID_ETA * alpha_N).exp()
    kl_N, d_kl_ND = kl(logits_ND, targets)
    loss_N = weight_N * kl_N + (1 - weight_N) * (1 - alpha_N)
    return loss_N, d_kl_ND.mul_(weight_N[:, None]).addcmul_(d_alpha_ND, weight_N[:, None] - 1)


def _acceptance(logits_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """(alpha [N], its gradient with respect to the logits [N, D])."""
    draft_ND = logits_ND.softmax(-1)
    alpha_N = torch.minimum(draft_ND, targets.probs_ND).sum(-1)
    below_ND = torch.where(draft_ND < targets.probs_ND, draft_ND, 0)
    return alpha_N, below_ND.sub_(draft_ND.mul_(below_ND.sum(-1, keepdim=True)))


LOSSES: dict[Loss, PositionLoss] = {Loss.kl: kl, Loss.ce: ce, Loss.nla: nla, Loss.lk_hybrid: lk_hybrid}
