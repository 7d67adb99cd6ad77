"""The teacher: from a captured last state to the verifier's logits, with the verifier's own arithmetic.

The last slot of the captured states is the residual stream *before* the final norm. The verifier would go on with
`logits = head(norm(h))`; so does the teacher, reading only those two tensors of the checkpoint.

Shapes: N positions, H hidden size, V verifier vocabulary, D draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import VerifierFacts

POSITIONS_AT_ONCE = 1024
"""Logits over the whole vocabulary exist for this many positions at a time."""


@dataclass(frozen=True)
class Targets:
    """What the draft should say at N positions."""

    log_probs_ND: Tensor
    """The teacher's distribution, restricted to the draft vocabulary and renormalised, as log-probabilities."""
    draft_token_N: Tensor
    """The verifier's greedy token in the draft vocabulary; -1 where it is outside, where no draft can be right."""


class Teacher(nn.Module):
    """The verifier's final norm and head, frozen. `forward` maps states [N, H] to float32 logits [N, V]."""

    def __init__(self, norm_H: Tensor, head_VH: Tensor, eps: float) -> None:
        super().__init__()
        self.norm = nn.Parameter(norm_H, requires_grad=False)
        self.head = nn.Parameter(head_VH, requires_grad=False)
        self.eps = eps

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, facts: VerifierFacts, dtype: torch.dtype) -> "Teacher":
        """Read the norm and the head (the embedding, where it is tied) in `dtype`."""
        return cls(
            checkpoint.tensor(facts.norm_key).to(dtype), checkpoint.tensor(facts.head_key).to(dtype), facts.norm_eps
        )

    def forward(self, state_NH: Tensor) -> Tensor:
        # RMSNorm as Llama writes it: statistics in float32, the weight applied in the model's own type.
        state = state_NH.float()
        state = state * torch.rsqrt(state.square().mean(-1, keepdim=True) + self.eps)
        logits_NV: Tensor = (self.norm * state.to(self.norm.dtype)) @ self.head.T
        return logits_NV.float()

    @torch.no_grad()
    def targets(self, state_NH: Tensor, draft_ids_D: Tensor) -> Targets:
        """The distribution over `draft_ids_D` (sorted ids of the verifier's vocabulary) and the greedy token.

        The greedy token is searched in the whole vocabulary: what serving will compare the draft with.
        """
        log_probs, tokens = [], []
        for chunk in state_NH.split(POSITIONS_AT_ONCE):
            logits_NV = self(chunk)
            tokens.append(logits_NV.argmax(-1))
            log_probs.append(logits_NV[:, draft_ids_D].log_softmax(-1))
        if not tokens:
            empty = draft_ids_D.new_empty(0)
            return Targets(state_NH.new_empty((0, len(draft_ids_D)), dtype=torch.float32), empty)
        token_N = torch.cat(tokens)
        position_N = torch.searchsorted(draft_ids_D, token_N).clamp_max(len(draft_ids_D) - 1)
        inside_N = draft_ids_D[position_N] == token_N
        return Targets(torch.cat(log_probs), torch.where(inside_N, position_N, -1))
