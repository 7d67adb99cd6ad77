"""The training-time test of EAGLE-3 (arXiv 2503.01840, section 3.2): the draft, unrolled as it will be served.

One packed row holds several documents. Row position i at unroll step k (from 0) reads token x(i+1+k) together with the
hidden state of position i (the verifier's at step 0, the draft's own after that) and predicts x(i+2+k). Its target is
what the verifier says at position i+1+k.

Position i is supervised at step k iff i .. i+2+k lie in one document and i+1 .. i+2+k were all written by the verifier:
the first answer token is input only (the prefill makes it), and nothing after the closing token is learnt. A target
outside the draft vocabulary can't be learnt; it counts as a miss.

Step k attends to the true prefix (the keys of step 0) and to its own position's keys of steps 1..k, which is what a
served draft sees: true history, then its own guesses.

Shapes: T positions of a packed row, H hidden size, D draft vocabulary, K unroll steps, N positions picked out of T;
in attention: h key-value heads, g query heads per key-value head, d head dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eyas.draft.loss import PositionLoss
from eyas.verifier.teacher import Targets

DraftStep = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""(tokens [T], hidden [T, H], step) -> (hidden for the next step [T, H], normalised state for the head [T, H])."""


@dataclass(frozen=True)
class Unrolled:
    """What an unroll adds up to, per step."""

    loss_K: Tensor
    """Sum of the loss over trained positions; carries the gradient."""
    trained_K: Tensor
    """Supervised positions whose target is inside the draft vocabulary."""
    supervised_K: Tensor
    reached_K: Tensor
    """Supervised positions where every earlier step was right: this step would be verified."""
    accepted_K: Tensor
    """Those where this step is right too: the joint prefix hits."""


def unroll(
    draft_step: DraftStep,
    head: Callable[[Tensor], Tensor],
    hidden_TH: Tensor,
    input_ids_T: Tensor,
    run_T: Tensor,
    document_ids_T: Tensor,
    targets: Targets,
    loss: PositionLoss,
    num_steps: int,
) -> Unrolled:
    """Unroll the draft over one packed row. `run_T` is `answer_run`; `targets` are the teacher's at `target_positions`."""
    is_target_T = target_positions(run_T, document_ids_T)
    slot_T = is_target_T.long().cumsum(0) - 1  # position -> its entry in `targets`
    expressible_T = torch.zeros_like(is_target_T)
    expressible_T[is_target_T] = targets.draft_token_N >= 0

    reached_T = torch.ones_like(is_target_T)
    sums: list[list[Tensor]] = []
    for step in range(num_steps):
        hidden_TH, normed_TH = draft_step(shift(input_ids_T, 1 + step), hidden_TH, step)
        supervised_T = supervised(run_T, document_ids_T, step)
        trained_N = (supervised_T & shift(expressible_T, 1 + step)).nonzero()[:, 0]
        target_N = slot_T[trained_N + 1 + step]

        logits_ND = head(normed_TH[trained_N])
        token_N = targets.draft_token_N[target_N]
        loss_sum = loss(logits_ND, targets.log_probs_ND[target_N], token_N).sum()

        accepted_T = torch.zeros_like(reached_T)
        accepted_T[trained_N] = logits_ND.argmax(-1) == token_N
        accepted_T &= reached_T
        counts = [supervised_T, supervised_T & reached_T, accepted_T]
        sums.append([loss_sum, loss_sum.new_tensor(len(trained_N)), *(count.sum() for count in counts)])
        reached_T = accepted_T
    return Unrolled(*(torch.stack(values) for values in zip(*sums, strict=True)))


def answer_run(loss_mask_T: Tensor, document_ids_T: Tensor) -> Tensor:
    """How many consecutive positions from here on, itself included, the verifier wrote in this document [T]."""
    goes_on_T = loss_mask_T & shift(loss_mask_T, 1) & _next_is_same_document(document_ids_T)
    position_T = torch.arange(len(loss_mask_T), device=loss_mask_T.device)
    end_T = torch.where(goes_on_T, len(loss_mask_T), position_T).flip(0).cummin(0).values.flip(0)
    return (end_T - position_T + 1) * loss_mask_T


def supervised(run_T: Tensor, document_ids_T: Tensor, step: int) -> Tensor:
    """Which positions have a target at this unroll step [T] (see the top of this file)."""
    return _next_is_same_document(document_ids_T) & (shift(run_T, 1) >= step + 2)


def target_positions(run_T: Tensor, document_ids_T: Tensor) -> Tensor:
    """The positions whose teacher is a target at some step [T]: what supervised positions look at in step 0, and later in turn."""
    at_first_step_T = supervised(run_T, document_ids_T, 0)
    return shift(at_first_step_T, -1)


def shift(values_T: Tensor, by: int) -> Tensor:
    """Value i is that of i + by; zero (false) beyond the row's ends."""
    shifted_T = torch.zeros_like(values_T)
    if 0 <= by < len(values_T):
        shifted_T[: len(values_T) - by] = values_T[by:]
    elif -len(values_T) < by < 0:
        shifted_T[-by:] = values_T[:by]
    return shifted_T


def causal_in_document(document_ids_T: Tensor) -> Tensor:
    """Which position (row) may look at which (column): itself and earlier ones of its document [T, T]."""
    return (document_ids_T[:, None] == document_ids_T[None, :]).tril()


def prefix_and_diagonal_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention of unroll step k, as transformers calls it: query [1, h*g, T, d], key and value [1, h, (k+1)*T, d].

    The first T keys are the prefix, under `attention_mask` [T, T]; of each later step only the query's own position is seen.
    Returns [1, T, h*g, d].
    """
    num_heads, num_positions = key.shape[1], query.shape[2]
    query_hgTd = query[0].unflatten(0, (num_heads, -1))
    key_shTd = key[0].unflatten(1, (-1, num_positions)).transpose(0, 1)
    value_shTd = value[0].unflatten(1, (-1, num_positions)).transpose(0, 1)

    prefix_hgTT = (query_hgTd @ key_shTd[0, :, None].mT) * scaling
    prefix_hgTT = prefix_hgTT.float().masked_fill(~attention_mask, -torch.inf)
    diagonal_hgTs = torch.einsum("hgtd,shtd->hgts", query_hgTd, key_shTd[1:]).float() * scaling
    weights = torch.cat([prefix_hgTT, diagonal_hgTs], dim=-1).softmax(-1).to(value.dtype)

    output_hgTd = weights[..., :num_positions] @ value_shTd[0, :, None]
    output_hgTd = output_hgTd + torch.einsum("hgts,shtd->hgtd", weights[..., num_positions:], value_shTd[1:])
    return output_hgTd.flatten(0, 1).transpose(0, 1)[None], None


def _next_is_same_document(document_ids_T: Tensor) -> Tensor:
    same_T = torch.zeros_like(document_ids_T, dtype=torch.bool)
    same_T[:-1] = document_ids_T[:-1] == document_ids_T[1:]
    return same_T
