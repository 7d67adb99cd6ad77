"""The teacher: from a captured last state to the verifier's logits, with the verifier's own arithmetic.

The last slot of the captured states is the residual stream *before* the final norm (`pre_norm`), or what its head reads
(`head_input`). The verifier would go on with norm, head and what stands around them; so does the teacher, reading only
those few tensors of the checkpoint, in the order and the types of `Arithmetic`. A draft learns from a `DraftTeacher`: the
distribution over its own vocabulary, and the verifier's token in the whole one.

Shapes: N positions, H hidden size, V verifier vocabulary, D draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import Arithmetic, Step, VerifierFacts
from eyas.verifier.schema import HeadTransform, NormCast, NormKind, Operator, Target
from eyas.verifier.tensors import StoredTensor, read_tensor

TOKENS_AT_ONCE = 256
"""Logits over the whole vocabulary exist for so many positions at a time."""


@dataclass(frozen=True)
class Targets:
    """What the draft should say at N positions."""

    probs_ND: Tensor
    """The teacher's distribution, restricted to the draft vocabulary and renormalised."""
    entropy_N: Tensor
    """Of that distribution, in nats."""
    token_N: Tensor
    """The verifier's greedy token in the draft vocabulary; -1 where it is outside, where no draft can be right."""

    def take(self, index_M: Tensor) -> "Targets":
        """Those of some of the positions."""
        return Targets(*(it.index_select(0, index_M) for it in (self.probs_ND, self.entropy_N, self.token_N)))


class Teacher(nn.Module):
    """The verifier's final norm and head, frozen. `forward` maps states [N, H] to float32 logits [N, V]."""

    head: nn.Parameter
    norm: nn.Parameter | None
    norm_bias: nn.Parameter | None
    head_bias: nn.Parameter | None

    def __init__(
        self,
        arithmetic: Arithmetic,
        head_VH: Tensor,
        *,
        norm_H: Tensor | None = None,
        norm_bias_H: Tensor | None = None,
        head_bias_V: Tensor | None = None,
    ) -> None:
        super().__init__()
        if arithmetic.head_transform is HeadTransform.l2_rows:
            head_VH = nn.functional.normalize(head_VH)
        self.arithmetic = arithmetic
        self.head = nn.Parameter(head_VH, requires_grad=False)
        for name, tensor in (("norm", norm_H), ("norm_bias", norm_bias_H), ("head_bias", head_bias_V)):
            self.register_parameter(name, None if tensor is None else nn.Parameter(tensor, requires_grad=False))

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, facts: VerifierFacts, dtype: torch.dtype) -> "Teacher":
        """Read the norm and the head (the embedding, where it is tied) in `dtype`."""

        def read(stored: StoredTensor | None) -> Tensor | None:
            return None if stored is None else read_tensor(checkpoint, stored).to(dtype)

        return cls(
            facts.arithmetic,
            read_tensor(checkpoint, facts.head).to(dtype),
            norm_H=read(facts.norm),
            norm_bias_H=read(facts.norm_bias),
            head_bias_V=read(facts.head_bias),
        )

    def forward(self, state_NH: Tensor) -> Tensor:
        state_NH = state_NH.to(self.head.dtype)
        if self.arithmetic.target is Target.pre_norm:
            state_NH = apply(self.arithmetic.pre_head, normalise(state_NH, self.norm, self.norm_bias, self.arithmetic))
        logits_NV: Tensor = linear(state_NH, self.head, self.head_bias)
        return apply(self.arithmetic.post_head, logits_NV).float()

    def over(self, token_ids_D: Tensor) -> "Teacher":
        """The same, of some tokens only: logits [N, D]."""
        bias_V = self.head_bias
        return Teacher(
            replace(self.arithmetic, head_transform=HeadTransform.none),  # the rows are as it left them
            self.head[token_ids_D],
            norm_H=self.norm,
            norm_bias_H=self.norm_bias,
            head_bias_V=None if bias_V is None else bias_V[token_ids_D],
        )


class DraftTeacher:
    """What the verifier tells a draft whose vocabulary is `draft_ids_D` (ascending ids of the verifier's)."""

    def __init__(self, teacher: Teacher, draft_ids_D: Tensor) -> None:
        self.whole, self.part, self.draft_ids_D = teacher, teacher.over(draft_ids_D), draft_ids_D

    def to(self, device: torch.device) -> None:
        """Move it; no module, it is never sharded nor saved with a draft."""
        self.whole.to(device)
        self.part.to(device)
        self.draft_ids_D = self.draft_ids_D.to(device)

    @torch.no_grad()
    def token(self, state_NH: Tensor) -> Tensor:
        """The verifier's own token [N], searched in the whole vocabulary: what serving will compare the draft with.

        The dearest product of a step where the vocabulary is large, so it is made once for each position
        (`data/verifier_tokens.py`).
        """
        tokens = [self.whole(part_NH).argmax(-1) for part_NH in state_NH.split(TOKENS_AT_ONCE)]
        return torch.cat(tokens) if tokens else state_NH.new_empty(0, dtype=torch.long)

    @torch.no_grad()
    def targets(self, state_NH: Tensor, token_N: Tensor) -> Targets:
        """The distribution over the draft vocabulary, and where in it the verifier's own tokens are."""
        logits_ND = self.part(state_NH)
        probs_ND = logits_ND.softmax(-1)
        lse_N = logits_ND.amax(-1) - probs_ND.amax(-1).log()
        entropy_N = lse_N - torch.linalg.vecdot(probs_ND, logits_ND)
        place_N = torch.searchsorted(self.draft_ids_D, token_N).clamp_max(len(self.draft_ids_D) - 1)
        return Targets(probs_ND, entropy_N, torch.where(self.draft_ids_D[place_N] == token_N, place_N, -1))


def normalise(state_NH: Tensor, weight_H: Tensor | None, bias_H: Tensor | None, arithmetic: Arithmetic) -> Tensor:
    """The final norm: statistics in float32, the result in the state's type."""
    kind, dtype = arithmetic.norm, state_NH.dtype
    if kind is NormKind.none:
        return state_NH
    state_NH = state_NH.float()
    if kind in (NormKind.rms, NormKind.rms_plus_one, NormKind.rms_no_weight):
        state_NH = state_NH * torch.rsqrt(state_NH.square().mean(-1, keepdim=True) + arithmetic.eps)
    else:
        state_NH = layer_norm(state_NH, state_NH.shape[-1:], eps=arithmetic.eps)
    if arithmetic.cast is NormCast.before_weight:
        state_NH = state_NH.to(dtype)
    if weight_H is not None:
        weight_H = weight_H.to(state_NH.dtype)
        state_NH = state_NH * (
            1 + weight_H if kind in (NormKind.rms_plus_one, NormKind.layernorm_plus_one) else weight_H
        )
    if bias_H is not None:
        state_NH = state_NH + bias_H.to(state_NH.dtype)
    return state_NH.to(dtype)


def apply(steps: Sequence[Step], x: Tensor) -> Tensor:
    """The operations in order, in the tensor's own type, as the verifier does them."""
    for step in steps:
        if step.op is Operator.multiply:
            x = x * step.by
        elif step.op is Operator.divide:
            x = x / step.by
        else:
            x = torch.tanh(x / step.by) * step.by
    return x
