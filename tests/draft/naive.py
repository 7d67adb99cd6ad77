"""The unroll as its definition says it: every position at every step, dense masks, autograd through whole logits."""

from collections.abc import Callable, Sequence

import torch
from small import Documents
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div
from transformers import DynamicCache

from eyas.data.positions import shift
from eyas.draft.model import Draft
from eyas.draft.unroll import Unrolled
from eyas.training.schema import Loss
from eyas.verifier.teacher import Teacher

NaiveLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(draft logits [N, D], teacher log-probabilities [N, D], teacher's token [N]) -> loss [N]."""


def alpha(logits_ND: Tensor, teacher_ND: Tensor) -> Tensor:
    return torch.minimum(logits_ND.softmax(-1), teacher_ND.exp()).sum(-1)


def kl(logits_ND: Tensor, teacher_ND: Tensor, token_N: Tensor) -> Tensor:
    return kl_div(logits_ND.log_softmax(-1), teacher_ND, reduction="none", log_target=True).sum(-1)


def lk_hybrid(logits_ND: Tensor, teacher_ND: Tensor, token_N: Tensor) -> Tensor:
    accepted_N = alpha(logits_ND, teacher_ND)
    weight_N = (-3 * accepted_N.detach()).exp()
    return weight_N * kl(logits_ND, teacher_ND, token_N) + (1 - weight_N) * (1 - accepted_N)


NAIVE_LOSSES: dict[Loss, NaiveLoss] = {
    Loss.kl: kl,
    Loss.ce: lambda logits_ND, _, token_N: cross_entropy(logits_ND, token_N, reduction="none"),
    Loss.nla: lambda logits_ND, teacher_ND, _: -alpha(logits_ND, teacher_ND).log(),
    Loss.lk_hybrid: lk_hybrid,
}


def naive_supervised(mask: Tensor, documents: Tensor, i: int, step: int) -> bool:
    """Position i is supervised at step k iff i .. i+2+k lie in one document and i+1 .. i+2+k carry mask 1."""
    last = i + 2 + step
    if last >= len(mask) or len(set(documents[i : last + 1].tolist())) != 1:
        return False
    return bool(mask[i + 1 : last + 1].all())


def naive_unroll(
    row: Documents, draft: Draft, teacher: Teacher, loss: NaiveLoss, weight_K: Sequence[float]
) -> Unrolled:
    num_positions, cache = len(row.input_ids), DynamicCache()
    log_probs_TD = teacher(row.last)[:, draft.draft_ids_D].log_softmax(-1)
    greedy = teacher(row.last).argmax(-1).tolist()
    ids = draft.draft_ids_D.tolist()
    token_T = torch.tensor([ids.index(token) if token in ids else -1 for token in greedy])
    prefix_TT = (row.document_ids[:, None] == row.document_ids[None, :]).tril()
    own_TT = torch.eye(num_positions, dtype=torch.bool)
    back_TT = torch.arange(num_positions)[:, None] - torch.arange(num_positions)

    hidden_TH = draft.fuse(row.hidden)
    reached_T = torch.ones(num_positions, dtype=torch.bool)
    sums: list[list[Tensor]] = []
    for step, _ in enumerate(weight_K):
        # At step k a row stands k positions further on, and the window with it.
        in_window_TT = back_TT + step < (draft.window or num_positions + step)
        mask = torch.cat([prefix_TT & in_window_TT, *[own_TT] * step], dim=1)[None, None]
        hidden_TH, normed_TH = draft.decode(
            shift(row.input_ids, 1 + step), hidden_TH, row.position_ids + step, mask, cache
        )
        supervised_T = torch.tensor(
            [naive_supervised(row.loss_mask, row.document_ids, i, step) for i in range(num_positions)]
        )
        trained_N = (supervised_T & (shift(token_T + 1, 1 + step) > 0)).nonzero()[:, 0]
        logits_ND, target_N = draft.head(normed_TH[trained_N]), trained_N + 1 + step
        accepted_T = torch.zeros_like(reached_T)
        accepted_T[trained_N] = logits_ND.argmax(-1) == token_T[target_N]
        accepted_T &= reached_T
        loss_sum = loss(logits_ND, log_probs_TD[target_N], token_T[target_N]).sum()
        counts = [supervised_T, supervised_T & reached_T, accepted_T]
        sums.append([loss_sum, torch.tensor(float(len(trained_N))), *(count.sum() for count in counts)])
        reached_T = accepted_T
    loss_K, *others = (torch.stack(values) for values in zip(*sums, strict=True))
    return Unrolled((loss_K * loss_K.new_tensor(weight_K)).sum(), loss_K, *others)
