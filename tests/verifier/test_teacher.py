"""The teacher's arithmetic: every norm, operation and number against plain loops in float64, and its rounding step by step."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from eyas.cli.auto import verifier_composer
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import Arithmetic, Step, resolve, resolve_arithmetic
from eyas.verifier.schema import HeadTransform, NormCast, NormKind, Operator, Target
from eyas.verifier.teacher import Teacher, apply, normalise

N, H, V = 7, 24, 40
EPS = 0.03
composed = verifier_composer([])


def arithmetic(norm: NormKind = NormKind.rms, cast: NormCast = NormCast.before_weight, **more: Any) -> Arithmetic:
    return Arithmetic(target=Target.pre_norm, norm=norm, eps=EPS, cast=cast, **more)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def naive_norm(kind: NormKind, x: list[float], weight: list[float], bias: list[float]) -> list[float]:
    """One position, by the formulas of `NormKind`."""
    size = len(x)
    if kind is NormKind.none:
        return x
    if kind.name.startswith("rms"):
        scaled = [value / math.sqrt(sum(other**2 for other in x) / size + EPS) for value in x]
    else:
        mean = sum(x) / size
        variance = sum((value - mean) ** 2 for value in x) / size
        scaled = [(value - mean) / math.sqrt(variance + EPS) for value in x]
    plus = 1.0 if kind.name.endswith("plus_one") else 0.0
    if not kind.name.endswith("no_weight"):
        scaled = [value * (w + plus) for value, w in zip(scaled, weight, strict=True)]
    if kind.name in ("layernorm_bias", "layernorm_plus_one"):
        scaled = [value + b for value, b in zip(scaled, bias, strict=True)]
    return scaled


def naive_logits(x: list[float], head: list[list[float]], bias: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(x, row, strict=True)) + b for row, b in zip(head, bias, strict=True)]


def naive_step(op: str, by: float, value: float) -> float:
    return {"multiply": value * by, "divide": value / by, "softcap": math.tanh(value / by) * by}[op]


@pytest.mark.parametrize("cast", NormCast)
@pytest.mark.parametrize("kind", NormKind)
def test_every_norm(kind: NormKind, cast: NormCast) -> None:
    state, weight, bias, head, head_bias = (
        random(N, H) * 3 + 1, random(H, seed=1), random(H, seed=2), random(V, H, seed=3), random(V, seed=4),
    )  # fmt: skip
    teacher = Teacher(
        arithmetic(kind, cast),
        head,
        norm_H=weight if kind.has_weight else None,
        norm_bias_H=bias if kind.has_bias else None,
        head_bias_V=head_bias,
    )
    expected = [
        naive_logits(naive_norm(kind, row, weight.tolist(), bias.tolist()), head.tolist(), head_bias.tolist())
        for row in state.double().tolist()
    ]
    logits = teacher(state)
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("own", "kind", "cast"),
    [
        (LlamaRMSNorm, NormKind.rms, NormCast.before_weight),
        (Olmo2RMSNorm, NormKind.rms, NormCast.after_weight),
        (Gemma2RMSNorm, NormKind.rms_plus_one, NormCast.after_weight),
    ],
)
def test_bfloat16_is_rounded_where_the_model_rounds(
    own: Callable[..., torch.nn.Module], kind: NormKind, cast: NormCast
) -> None:
    state, weight = (random(200, 256) * 3).bfloat16(), random(256, seed=1).bfloat16()
    module = own(256, eps=EPS).bfloat16()
    with torch.no_grad():
        module.weight.copy_(weight)
        theirs = module(state)
    ours = normalise(state, weight, None, arithmetic(kind, cast))
    assert ours.dtype is torch.bfloat16
    assert torch.equal(ours, theirs)
    other = NormCast.after_weight if cast is NormCast.before_weight else NormCast.before_weight
    assert not torch.equal(normalise(state, weight, None, arithmetic(kind, other)), theirs)


@pytest.mark.parametrize("kind", [kind for kind in NormKind if kind.has_weight])
def test_bfloat16_by_the_declared_order_one_number_at_a_time(kind: NormKind) -> None:
    """Statistics in float32; then rounded, weighted, rounded (before), or weighted and rounded once (after)."""
    state, weight, bias = (random(N, H) * 3).bfloat16(), random(H, seed=1).bfloat16(), random(H, seed=2).bfloat16()
    plain = normalise(state.float(), None, None, arithmetic(kind))
    weight = 1 + weight if kind.name.endswith("plus_one") else weight
    stated = (1 + random(H, seed=1).bfloat16().float()) if kind.name.endswith("plus_one") else weight.float()
    before, after = plain.bfloat16() * weight, plain * stated
    if kind.has_bias:
        before, after = before + bias, after + bias.float()
    given = (random(H, seed=1).bfloat16(), bias if kind.has_bias else None)
    assert torch.equal(normalise(state, *given, arithmetic(kind, NormCast.before_weight)), before)
    assert torch.equal(normalise(state, *given, arithmetic(kind, NormCast.after_weight)), after.bfloat16())


@pytest.mark.parametrize("field", ["pre_head", "post_head"])
@pytest.mark.parametrize("op", Operator)
def test_every_operation_at_both_places(op: Operator, field: str) -> None:
    state, weight, head = random(N, H) * 3, random(H, seed=1), random(V, H, seed=3)
    teacher = Teacher(arithmetic(**{field: (Step(op=op, by=2.5),)}), head, norm_H=weight)
    expected = []
    for row in state.double().tolist():
        x = naive_norm(NormKind.rms, row, weight.tolist(), [])
        if field == "pre_head":
            x = [naive_step(op.name, 2.5, value) for value in x]
        logits = naive_logits(x, head.tolist(), [0.0] * V)
        if field == "post_head":
            logits = [naive_step(op.name, 2.5, value) for value in logits]
        expected.append(logits)
    torch.testing.assert_close(teacher(state).double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-4)


def test_operations_run_in_their_order() -> None:
    x = random(50) * 4
    multiply, cap = Step(op=Operator.multiply, by=3.0), Step(op=Operator.softcap, by=2.0)
    torch.testing.assert_close(apply((multiply, cap), x), torch.tanh(x * 3 / 2) * 2)
    torch.testing.assert_close(apply((cap, multiply), x), torch.tanh(x / 2) * 6)
    assert (apply((multiply, cap), x) - apply((cap, multiply), x)).abs().max() > 1
    assert apply((), x) is x


def test_operations_are_done_in_the_models_own_type() -> None:
    logits = (random(50) * 4).bfloat16()
    divided = apply((Step(op=Operator.divide, by=3.0),), logits)
    assert divided.dtype is torch.bfloat16
    assert torch.equal(divided, logits / 3.0)


def test_rows_of_the_head_are_divided_by_their_length() -> None:
    state, head = random(N, H), random(V, H, seed=3)
    given = head.clone()
    teacher = Teacher(arithmetic(NormKind.none, head_transform=HeadTransform.l2_rows), head)
    lengths = [math.sqrt(sum(value**2 for value in row)) for row in head.tolist()]
    expected = state @ (head / torch.tensor(lengths)[:, None]).T
    torch.testing.assert_close(teacher(state), expected)
    assert torch.equal(head, given)


def test_at_the_heads_input_norm_and_pre_head_are_behind_us() -> None:
    state, head, bias = random(N, H), random(V, H, seed=3), random(V, seed=4)
    there = replace(
        arithmetic(post_head=(Step(op=Operator.softcap, by=2.0),), pre_head=(Step(op=Operator.divide, by=9.0),)),
        target=Target.head_input,
    )
    teacher = Teacher(there, head, norm_H=random(H, seed=1), head_bias_V=bias)
    torch.testing.assert_close(teacher(state), torch.tanh((state @ head.T + bias) / 2) * 2)


def test_nothing_of_the_teacher_is_trained() -> None:
    teacher = Teacher(arithmetic(), random(V, H), norm_H=random(H), head_bias_V=random(V))
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


# What stands in the YAML and the config becomes these numbers.

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": H,
    "num_hidden_layers": 8,
    "layers_block_type": ["attention", "mamba"] * 3,
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0,
    "no_cap": None,
    "dim_model_base": 6,
    "mup": {"width": 2.0},
    "nothing": 0,
    "flag": True,
    "word": "many",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    save_file({"model.norm.weight": random(H)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return Checkpoint(tmp_path)


def steps(checkpoint: Checkpoint, op: str, by: dict[str, Any]) -> list[float]:
    verifier = composed("arch/llama", {"name": "it", "post_head": [{"op": op, "by": by}]})
    return [step.by for step in resolve_arithmetic(verifier, checkpoint).post_head]


NUMBERS = {
    "value": ({"value": 0.125}, 0.125),
    "config": ({"config": "final_logit_softcapping"}, 30.0),
    "dotted": ({"config": "mup.width"}, 2.0),
    "per": ({"config": "hidden_size", "per": "dim_model_base"}, 4.0),
    "power": ({"config": "hidden_size", "power": 0.5}, math.sqrt(24)),
    "times": ({"config": "hidden_size", "times": 0.25}, 6.0),
    "per-then-power-then-times": ({"config": "hidden_size", "per": "dim_model_base", "power": 0.5, "times": 3.0}, 6.0),
    "times-of-a-value": ({"value": 5.0, "power": 2.0, "times": 2.0}, 50.0),
    "first-of-two-names": ({"config": "rms_norm_eps | norm_eps"}, 1e-6),
    "second-of-two-names": ({"config": "layernorm_epsilon | rms_norm_eps"}, 1e-6),
    "length-of-a-list": ({"config": "layers_block_type"}, 6.0),
    "default-unused": ({"config": "mup.width", "default": 9.0}, 2.0),
    "default-used": ({"config": "mup.height", "default": 9.0}, 9.0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str, checkpoint: Checkpoint) -> None:
    by, expected = NUMBERS[name]
    assert steps(checkpoint, "multiply", by) == [pytest.approx(expected, rel=1e-12)]


REFUSED = {
    "absent": ({"config": "logit_scale"}, r"verifier\.post_head: config.json has no 'logit_scale' \(it has: "),
    "both-absent": ({"config": "logit_scale | logits_scale"}, "has no 'logit_scale | logits_scale'"),
    "two-names-that-differ": (
        {"config": "hidden_size | num_hidden_layers"},
        r"has hidden_size \| num_hidden_layers, and they differ: \[24, 8\]",
    ),
    "null": ({"config": "no_cap"}, "no_cap is null in config.json"),
    "true": ({"config": "flag"}, "flag is True in config.json, expected a number"),
    "word": ({"config": "word"}, "word is 'many' in config.json, expected a number"),
    "mapping": ({"config": "mup"}, "mup is .*'width'.* in config.json, expected a number"),
    "per-absent": ({"config": "hidden_size", "per": "base"}, "has no 'base'"),
    "per-null": ({"config": "hidden_size", "per": "no_cap"}, r"verifier\.post_head.* no_cap is null in config.json"),
    "per-zero": ({"config": "hidden_size", "per": "nothing"}, r"verifier\.post_head.* nothing is 0 in config.json"),
    "neither": ({}, "config=None and value=None: exactly one must be set"),
    "both": ({"config": "hidden_size", "value": 1.0}, "config=hidden_size and value=1.0: exactly one must be set"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_are_none(name: str, checkpoint: Checkpoint) -> None:
    by, message = REFUSED[name]
    with pytest.raises(EyasError, match=message):
        steps(checkpoint, "divide", by)


@pytest.mark.parametrize("op", ["divide", "softcap"])
@pytest.mark.parametrize("by", [{"value": 0.0}, {"config": "nothing"}], ids=["value", "config"])
def test_zero_divides_nothing(op: str, by: dict[str, Any], checkpoint: Checkpoint) -> None:
    with pytest.raises(EyasError, match=r"verifier\.post_head.* 0"):
        steps(checkpoint, op, by)


@pytest.mark.parametrize(
    "by",
    [{"config": "no_cap"}, {"config": "cap", "default": math.inf}, {"value": math.inf}],
    ids=["null", "default", "inf"],
)
def test_a_cap_of_nothing_caps_nothing(by: dict[str, Any], checkpoint: Checkpoint) -> None:
    assert steps(checkpoint, "softcap", by) == []


def test_a_cap_that_the_config_states_is_taken_whatever_the_default(checkpoint: Checkpoint) -> None:
    assert steps(checkpoint, "softcap", {"config": "final_logit_softcapping", "default": math.inf}) == [30.0]


def test_facts_carry_the_arithmetic_in_order(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": random(V, H),
        "model.norm.weight": random(H),
        "lm_head.weight": random(V, H, seed=1),
        "lm_head.bias": random(V),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    values = {
        "name": "it",
        "norm.kind": "rms_plus_one",
        "norm.cast": "after_weight",
        "keys.head_bias": ["lm_head.bias"],
        "pre_head": [{"op": "divide", "by": {"config": "hidden_size", "per": "dim_model_base"}}],
        "post_head": [
            {"op": "multiply", "by": {"value": 2.0}},
            {"op": "softcap", "by": {"config": "no_cap"}},
            {"op": "softcap", "by": {"config": "final_logit_softcapping"}},
        ],
    }
    facts = resolve(composed("arch/llama", values), Checkpoint(tmp_path))
    assert facts.arithmetic == Arithmetic(
        target=Target.pre_norm,
        norm=NormKind.rms_plus_one,
        eps=1e-6,
        cast=NormCast.after_weight,
        pre_head=(Step(op=Operator.divide, by=4.0),),
        post_head=(Step(op=Operator.multiply, by=2.0), Step(op=Operator.softcap, by=30.0)),
    )
    state = random(N, H, seed=5)
    x = state / (state.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + tensors["model.norm.weight"]) / 4
    logits = (x @ tensors["lm_head.weight"].T + tensors["lm_head.bias"]) * 2
    teacher = Teacher.from_checkpoint(Checkpoint(tmp_path), facts, torch.float32)
    torch.testing.assert_close(teacher(state), torch.tanh(logits / 30) * 30)
