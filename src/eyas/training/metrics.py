"""What an unroll's sums mean: loss, acceptance per step, and the tau they predict. S sums, K unroll steps."""

import torch
from torch import Tensor

from eyas.draft.unroll import Unrolled

FIELDS = ("loss", "trained", "supervised", "reached", "accepted")


def stacked(unrolled: Unrolled) -> Tensor:
    """An unroll's sums as one tensor [S, K] in the order of FIELDS, without gradient."""
    return torch.stack([getattr(unrolled, f"{field}_K").detach().float() for field in FIELDS])


def acceptance(totals_SK: Tensor, step_weights_K: Tensor) -> dict[str, Tensor]:
    """Loss per target, and acceptance per step: joint (this and all earlier steps right) and conditional.

    tau_sim counts tokens per verifier forward: 1 + the sum of joint prefix hits, teacher-forced; a target outside the
    draft vocabulary is a miss.
    """
    loss_K, trained_K, supervised_K, reached_K, accepted_K = totals_SK
    joint_K, conditional_K = accepted_K / supervised_K.clamp_min(1), accepted_K / reached_K.clamp_min(1)
    steps = range(len(joint_K))
    return {
        "loss": (loss_K * step_weights_K).sum() / (trained_K * step_weights_K).sum().clamp_min(1),
        **{f"acceptance_{step}": joint_K[step] for step in steps},
        **{f"acceptance_cond_{step}": conditional_K[step] for step in steps},
        "tau_sim": 1 + joint_K.sum(),
    }
