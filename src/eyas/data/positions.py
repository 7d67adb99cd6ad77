"""Which positions of a packed row the unroll computes at each step, and where each finds its target: known before the step.

Position i is supervised at step k iff i .. i+2+k lie in one document and i+1 .. i+2+k were all written by the verifier: the
first answer token is input only (the prefill makes it), and nothing after the closing token is learnt. So a position that is
supervised at step k was supervised at every step before, and an unsupervised one needs nothing but its keys and values of step 0.
All of this is made on the CPU, beside the training, so that nobody waits for a GPU.

Shapes: T positions of a packed row, N rows of a step or of a chunk, M rows of a step that have a target, R those of all
steps, J targets of all steps, K steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

TARGETS_AT_ONCE = 128
"""Teacher and draft logits exist for so many targets at a time, at all their steps: few enough for the cache of a CPU."""
TARGETS_AT_ONCE_ON_GPU = 256


@dataclass(frozen=True)
class Span:
    """Rows of a step that stand side by side in one document."""

    document: int
    """Where their document begins."""
    start: int
    stop: int
    """Their positions."""
    first: int
    """The row of the first of them."""

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.stop - self.start)


@dataclass(frozen=True)
class Rows:
    """What one step computes."""

    positions_N: Tensor
    """Ascending."""
    kept_N: Tensor
    """Which rows of the step before they are."""
    ahead_N: Tensor
    """Which row of step 0 is as many positions ahead as there were steps: it reads the same token."""
    judged_M: Tensor
    """Which of the rows have a target: after step 0 all of them."""
    target_M: Tensor
    """Which target that is; ascending."""
    document_T: Tensor
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Chunk:
    """Targets that are judged together, and the rows of all steps that they are for."""

    targets: slice
    row_N: Tensor
    """Those rows, among the rows with a target of one step after the other."""
    step_NK: Tensor
    """Which step each is of."""
    target_N: Tensor
    """Which of the chunk's targets each has."""


@dataclass(frozen=True)
class UnrollPlan:
    """All steps of an unroll over one packed row."""

    steps: tuple[Rows, ...]
    targets_J: Tensor
    """The positions whose teacher is a target at some step."""
    supervised_K: Tensor
    """Rows of each step that have a target."""
    chunks: tuple[Chunk, ...]


def plan_unroll(
    loss_mask_T: Tensor,
    document_ids_T: Tensor,
    num_steps: int,
    *,
    whole_first_step: bool = False,
    targets_at_once: int = TARGETS_AT_ONCE,
) -> UnrollPlan:
    """The plan for one packed row.

    Args:
        whole_first_step: Compute every position in step 0: a second layer needs what the first makes of them.
        targets_at_once: Targets that are judged together: their logits exist at the same time.
    """
    run_T = answer_run(loss_mask_T, document_ids_T)
    targets_J = target_positions(run_T, document_ids_T).nonzero()[:, 0]
    judged = [supervised(run_T, document_ids_T, step).nonzero()[:, 0] for step in range(num_steps)]
    computed = [torch.arange(len(loss_mask_T)) if whole_first_step else judged[0], *judged[1:]]
    steps = tuple(
        Rows(
            positions_N=computed[step],
            kept_N=torch.searchsorted(computed[max(step - 1, 0)], computed[step]),
            ahead_N=torch.searchsorted(computed[0], computed[step] + step),
            judged_M=torch.searchsorted(computed[step], judged[step]),
            target_M=torch.searchsorted(targets_J, judged[step] + 1 + step),
            document_T=document_ids_T,
            spans=tuple(_spans(computed[step], document_ids_T)),
        )
        for step in range(num_steps)
    )
    supervised_K = torch.tensor([len(rows.judged_M) for rows in steps])
    return UnrollPlan(steps, targets_J, supervised_K, tuple(_chunks(steps, len(targets_J), targets_at_once)))


def answer_run(loss_mask_T: Tensor, document_ids_T: Tensor) -> Tensor:
    """How many consecutive positions from here on, itself included, the verifier wrote in this document [T]."""
    goes_on_T = loss_mask_T & shift(loss_mask_T, 1) & _next_is_same_document(document_ids_T)
    position_T = torch.arange(len(loss_mask_T))
    end_T = torch.where(goes_on_T, len(loss_mask_T), position_T).flip(0).cummin(0).values.flip(0)
    return (end_T - position_T + 1) * loss_mask_T


def supervised(run_T: Tensor, document_ids_T: Tensor, step: int) -> Tensor:
    """Which positions have a target at this unroll step [T] (see the top of this file)."""
    return _next_is_same_document(document_ids_T) & (shift(run_T, 1) >= step + 2)


def target_positions(run_T: Tensor, document_ids_T: Tensor) -> Tensor:
    """The positions whose teacher is a target at some step [T]: what supervised positions look at in step 0, and later in turn."""
    return shift(supervised(run_T, document_ids_T, 0), -1)


def shift(values_T: Tensor, by: int) -> Tensor:
    """Value i is that of i + by; zero (false) beyond the row's ends."""
    shifted_T = torch.zeros_like(values_T)
    if 0 <= by < len(values_T):
        shifted_T[: len(values_T) - by] = values_T[by:]
    elif -len(values_T) < by < 0:
        shifted_T[-by:] = values_T[:by]
    return shifted_T


def _next_is_same_document(document_ids_T: Tensor) -> Tensor:
    same_T = torch.zeros_like(document_ids_T, dtype=torch.bool)
    same_T[:-1] = document_ids_T[:-1] == document_ids_T[1:]
    return same_T


def _spans(positions_N: Tensor, document_ids_T: Tensor) -> Iterator[Span]:
    if not len(positions_N):
        return
    breaks = (positions_N.diff() != 1) | document_ids_T[positions_N].diff().bool()
    firsts = [0, *(breaks.nonzero()[:, 0] + 1).tolist(), len(positions_N)]
    begins_T = torch.ones_like(document_ids_T, dtype=torch.bool)
    begins_T[1:] = document_ids_T[1:] != document_ids_T[:-1]
    begin_T = torch.where(begins_T, torch.arange(len(document_ids_T)), 0).cummax(0).values
    for first, after in pairwise(firsts):
        start = int(positions_N[first])
        yield Span(document=int(begin_T[start]), start=start, stop=start + after - first, first=first)


def _chunks(steps: tuple[Rows, ...], num_targets: int, targets_at_once: int) -> Iterator[Chunk]:
    target_R = torch.cat([rows.target_M for rows in steps])
    sizes_K = torch.tensor([len(rows.target_M) for rows in steps])
    step_R = torch.repeat_interleave(torch.arange(len(steps)), sizes_K)
    order_R = torch.argsort(target_R // targets_at_once, stable=True)  # by chunk, then by step
    starts = range(0, num_targets, targets_at_once)
    ends = torch.searchsorted(target_R[order_R] // targets_at_once, torch.arange(len(starts)), right=True).tolist()
    for start, (first, after) in zip(starts, pairwise([0, *ends]), strict=True):
        row_N = order_R[first:after]
        step_NK = step_R[row_N][:, None] == torch.arange(len(steps))
        yield Chunk(slice(start, min(start + targets_at_once, num_targets)), row_N, step_NK, target_R[row_N] - start)
