"""What one prediction of the draft costs, per position, in float32. N positions, D draft vocabulary."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from eyas.config import Loss

PositionLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(draft logits [N, D], teacher log-probabilities [N, D], teacher's token [N]) -> loss [N]."""


def kl(logits_ND: Tensor, teacher_ND: Tensor, token_N: Tensor) -> Tensor:
    """KL(teacher || draft): the whole distribution, as EAGLE-3 (arXiv 2503.01840) up to the teacher's entropy."""
    return kl_div(logits_ND.float().log_softmax(-1), teacher_ND, reduction="none", log_target=True).sum(-1)


def ce(logits_ND: Tensor, teacher_ND: Tensor, token_N: Tensor) -> Tensor:
    """Cross-entropy with the teacher's most likely token: all that greedy verification looks at."""
    return cross_entropy(logits_ND.float(), token_N, reduction="none")


LOSSES: dict[Loss, PositionLoss] = {Loss.kl: kl, Loss.ce: ce}
