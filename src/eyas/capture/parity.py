"""Parity: are the logits that the teacher makes of captured states the verifier's own?

It is the one proof that no wrong reading passes: another norm, a forgotten scale, a norm applied twice all have the right
shapes and train a bad draft. So the declared reading must match, and every other reading of the same tensors must not.

A server does not give its logits away, only the log-probabilities of its K most likely tokens (`Reported`): the same
judgement is made on these.

Shapes: N positions, H hidden size, V verifier vocabulary, K tokens that a server reports.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from eyas.capture.modules import Modules
from eyas.capture.tap import Tap
from eyas.errors import EyasError
from eyas.verifier.facts import Arithmetic, Step
from eyas.verifier.schema import NormKind, Target, VerifierConfig
from eyas.verifier.teacher import Teacher, apply, normalise

CLEAR_GAP = 0.5
"""In bfloat16 the two best tokens may trade places where their logits are nearer than this."""
TIMES_WORSE = 5.0
"""How much further from the verifier every other reading must be."""


@dataclass(frozen=True)
class Parity:
    """How near rebuilt logits are to the verifier's own over N positions."""

    num_positions: int
    argmax: float
    """Share of positions (bfloat16: of those with a clear gap) with the same best token."""
    kl: float
    """Mean KL divergence from the verifier's distribution, in nats."""
    difference: float
    """Relative difference of the logits."""

    def holds(self, dtype: torch.dtype) -> bool:
        return self.argmax == 1.0 and self.kl < (1e-3 if dtype is torch.float32 else 5e-3)

    def __str__(self) -> str:
        return f"argmax {self.argmax:.1%} of {self.num_positions} positions, KL {self.kl:.1e}, logits differ by {self.difference:.1e}"


@dataclass(frozen=True)
class Alternative:
    """Another reading of the same tensors, and how far it is from the verifier."""

    name: str
    kl: float


@torch.inference_mode()
def own_logits(
    model: PreTrainedModel, modules: Modules, verifier: VerifierConfig, prompts: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """(what enters layer 0 [N, H], last state [N, H], the verifier's own logits [N, V]) of prompts, run one by one."""
    tap = Tap(modules, [0], verifier)
    firsts, states, logits = [], [], []
    for ids_S in prompts:
        ids_1S = ids_S.long()[None].to(model.device)
        with tap:
            logits.append(model(input_ids=ids_1S, attention_mask=torch.ones_like(ids_1S), use_cache=False).logits[0])
            first_1SLH, last_1SH = tap.take()
            firsts.append(first_1SLH[0, :, 0])
            states.append(last_1SH[0])
    return torch.cat(firsts), torch.cat(states), torch.cat(logits).float()


def embeds(embedding_VH: Tensor, steps: Sequence[Step], ids_N: Tensor, first_NH: Tensor) -> float:
    """Relative difference between what enters layer 0 and the embedding's rows after `steps`."""
    ours_NH = apply(steps, embedding_VH[ids_N].to(first_NH.dtype)).float()
    return float((ours_NH - first_NH.float()).norm() / first_NH.float().norm())


@torch.inference_mode()
def compare(rebuilt_NV: Tensor, own_NV: Tensor, dtype: torch.dtype) -> Parity:
    """Measure rebuilt logits against the verifier's own; `dtype` is what the verifier computed in."""
    best = own_NV.topk(2).values
    clear_N = (best[:, 0] - best[:, 1]) > (0.0 if dtype is torch.float32 else CLEAR_GAP)
    same_N = rebuilt_NV.argmax(-1) == own_NV.argmax(-1)
    return Parity(
        num_positions=len(own_NV),
        argmax=float(same_N[clear_N].float().mean()) if clear_N.any() else 1.0,
        kl=divergence(own_NV, rebuilt_NV),
        difference=float((rebuilt_NV - own_NV).norm() / own_NV.norm()),
    )


@dataclass(frozen=True)
class Reported:
    """What a server says of N positions: its K most likely next tokens there, best first, in nats."""

    ids_NK: Tensor
    logprobs_NK: Tensor

    def divergence(self, rebuilt_NV: Tensor) -> float:
        """Mean KL from the server's distribution, with all tokens that it does not name taken as one; at most the true KL."""
        ours_NK = self._of(rebuilt_NV)
        theirs_NK = self.logprobs_NK.double()
        rest_N, our_rest_N = ((1 - it.exp().sum(-1)).clamp_min(1e-9) for it in (theirs_NK, ours_NK))
        named_N = (theirs_NK.exp() * (theirs_NK - ours_NK)).sum(-1)
        return max(0.0, float((named_N + rest_N * (rest_N / our_rest_N).log()).mean()))

    def compare(self, rebuilt_NV: Tensor, dtype: torch.dtype) -> Parity:
        """As `compare`; the difference is that of the log-probabilities."""
        clear_N = (self.logprobs_NK[:, 0] - self.logprobs_NK[:, 1]) > (0.0 if dtype is torch.float32 else CLEAR_GAP)
        same_N = rebuilt_NV.argmax(-1) == self.ids_NK[:, 0]
        return Parity(
            num_positions=len(self.ids_NK),
            argmax=float(same_N[clear_N].float().mean()) if clear_N.any() else 1.0,
            kl=self.divergence(rebuilt_NV),
            difference=float((self._of(rebuilt_NV) - self.logprobs_NK).norm() / self.logprobs_NK.norm()),
        )

    def _of(self, rebuilt_NV: Tensor) -> Tensor:
        return rebuilt_NV.double().log_softmax(-1).gather(-1, self.ids_NK)


@torch.inference_mode()
def alternatives(teacher: Teacher, state_NH: Tensor, own: Tensor | Callable[[Tensor], float]) -> list[Alternative]:
    """Every other reading that gives other logits than the teacher's; those that don't are no mistake.

    Args:
        own: The verifier's own logits [N, V], or what measures the divergence of rebuilt ones from them.
    """
    ours_NV = teacher(state_NH)
    found = []
    for name, other_NV in _other_readings(teacher, state_NH):
        if divergence(ours_NV, other_NV) > 1e-7:
            kl = divergence(own, other_NV) if isinstance(own, Tensor) else own(other_NV)
            found.append(Alternative(name, kl))
    return found


def prove(teacher: Teacher, state_NH: Tensor, own_NV: Tensor) -> Parity:
    """The teacher makes the verifier's own logits [N, V] out of captured last states.

    Raises:
        EyasError: it doesn't: a wrong hook, norm or head, which no loss curve would show.
    """
    own_NV, dtype = own_NV[:, : len(teacher.head)], teacher.head.dtype
    parity = compare(teacher(state_NH), own_NV, dtype)
    refuse_another_reading(parity, alternatives(teacher, state_NH, own_NV), dtype)
    return parity


def refuse_another_reading(parity: Parity, others: Sequence[Alternative], dtype: torch.dtype) -> None:
    """Stop where the teacher is not the verifier, or where another reading of its tensors might be.

    Raises:
        EyasError: a wrong hook, norm or head, which no loss curve would show.
    """
    nearer = [it.name for it in confusable(others, parity)]
    if nearer or not parity.holds(dtype):
        hint = f" (nearer: {', '.join(nearer)})" if nearer else ""
        raise EyasError(
            f"the teacher's logits are not the verifier's own: {parity}{hint}; "
            "verifier.norm, verifier.post_head, verifier.keys or verifier.transformers is not what this model does, "
            "eyas doctor shows more"
        )


def confusable(others: Sequence[Alternative], parity: Parity) -> list[Alternative]:
    """The readings that are not clearly worse than the one that was measured."""
    return [it for it in others if it.kl < TIMES_WORSE * parity.kl]


def divergence(p_NV: Tensor, q_NV: Tensor) -> float:
    """Mean KL(p || q) of two sets of logits, in float64: near zero its float32 error is larger than it."""
    p_NV, q_NV = p_NV.double().log_softmax(-1), q_NV.double().log_softmax(-1)
    return max(0.0, float((p_NV.exp() * (p_NV - q_NV)).sum(-1).mean()))


def _other_readings(teacher: Teacher, state_NH: Tensor) -> Iterator[tuple[str, Tensor]]:
    arithmetic = teacher.arithmetic
    state_NH = state_NH.to(teacher.head.dtype)
    for field in ("pre_head", "post_head"):
        steps = getattr(arithmetic, field)
        for index, step in enumerate(steps):
            without = steps[:index] + steps[index + 1 :]
            yield (
                f"without {step.op.name} {step.by:g}",
                _with(teacher, replace(arithmetic, **{field: without}))(state_NH),
            )
    if arithmetic.target is not Target.pre_norm or arithmetic.norm is NormKind.none:
        return
    once_NH = normalise(state_NH, teacher.norm, teacher.norm_bias, arithmetic)
    yield "norm applied twice", teacher(once_NH)
    yield "norm left out", _with(teacher, replace(arithmetic, norm=NormKind.none))(state_NH)
    has = (arithmetic.norm.has_weight, arithmetic.norm.has_bias)
    for kind in set(NormKind) - {NormKind.none, arithmetic.norm}:
        if (kind.has_weight, kind.has_bias) == has:
            yield f"norm {kind.name}", _with(teacher, replace(arithmetic, norm=kind))(state_NH)


def _with(teacher: Teacher, arithmetic: Arithmetic) -> nn.Module:
    return Teacher(
        arithmetic, teacher.head, norm_H=teacher.norm, norm_bias_H=teacher.norm_bias, head_bias_V=teacher.head_bias
    )
