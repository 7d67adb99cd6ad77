"""The teacher: from a captured last state to the verifier's logits, with the verifier's own arithmetic.

The last slot of the captured states is the residual stream *before* the final norm (`pre_norm`), or what its head reads
(`head_input`). The verifier would go on with norm, head and what stands around them; so does the teacher, reading only
those few tensors of the checkpoint, in the order and the types of `Arithmetic`.

Shapes: N positions, H hidden size, V verifier vocabulary, D draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import Arithmetic, Step, VerifierFacts
from eyas.verifier.schema import HeadTransform, NormCast, NormKind, Operator, Target
from eyas.verifier.tensors import StoredTensor, read_tensor


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
        return Targets(self.probs_ND[index_M], self.entropy_N[index_M], self.token_N[index_M])


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

    @torch.no_grad()
    def targets(self, state_NH: Tensor, draft_ids_D: Tensor) -> Targets:
        """The distribution over `draft_ids_D` (sorted ids of the verifier's vocabulary) and the greedy token.

        The greedy token is searched in the whole vocabulary: what serving will compare the draft with.
        """
        logits_NV = self(state_NH)
        token_N = logits_NV.argmax(-1)
        log_probs_ND = logits_NV[:, draft_ids_D].log_softmax(-1)
        position_N = torch.searchsorted(draft_ids_D, token_N).clamp_max(len(draft_ids_D) - 1)
        inside_N = draft_ids_D[position_N] == token_N
        probs_ND = log_probs_ND.exp()
        entropy_N = -torch.linalg.vecdot(probs_ND, log_probs_ND)
        return Targets(probs_ND, entropy_N, torch.where(inside_N, position_N, -1))


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
