"""Quantised embeddings and heads: each rule against a loop in plain Python, through a file, and as a teacher's logits."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.cli.auto import verifier_composer
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.dequantize import fp8, packed_int4
from eyas.verifier.facts import VerifierFacts, resolve
from eyas.verifier.teacher import Teacher
from eyas.verifier.tensors import read_tensor

V, H = 131, 72  # neither is a multiple of a block or of eight times a group
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": H,
    "num_hidden_layers": 8,
    "rms_norm_eps": 1e-6,
}
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
SMALL_BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 48]}}

composed = verifier_composer([])


def e4m3(rows: int, columns: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(dtype)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(2)) + 0.5


def pack(values: list[list[int]]) -> Tensor:
    """Each row's numbers -8..7 as offset nibbles, eight to an int32, the first in the low bits."""
    packed = []
    for row in values:
        words = []
        for start in range(0, len(row), 8):
            word = sum((value + 8) << (4 * place) for place, value in enumerate(row[start : start + 8]))
            words.append(word - 2**32 if word >= 2**31 else word)
        packed.append(words)
    return torch.tensor(packed, dtype=torch.int32)


def int4(rows: int, columns: int) -> list[list[int]]:
    return torch.randint(-8, 8, (rows, columns), generator=torch.Generator().manual_seed(3)).tolist()


def naive_blocks(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    rows, columns = weight.shape
    return torch.tensor(
        [
            [float(weight[r, c].float()) * float(scale[r // block[0], c // block[1]]) for c in range(columns)]
            for r in range(rows)
        ]
    )


def naive_groups(values: list[list[int]], scale: Tensor) -> Tensor:
    group = len(values[0]) // scale.shape[1]
    return torch.tensor(
        [[value * float(scale[r, c // group]) for c, value in enumerate(row)] for r, row in enumerate(values)]
    )


@dataclass(frozen=True)
class Stored:
    """A head as a checkpoint holds it (without `lm_head.`), and what it means."""

    parts: dict[str, Tensor]
    plain: Tensor
    rule: str
    config: dict[str, Any] = field(default_factory=dict)


def per_tensor(suffix: str = "weight_scale", scale: Tensor | None = None) -> Stored:
    weight, scale = e4m3(V, H), torch.tensor(0.37) if scale is None else scale
    return Stored({"weight": weight, suffix: scale}, naive_blocks(weight, scale.reshape(1, 1), (V, H)), "fp8")


def per_row(shape: tuple[int, ...] = (V, 1), dtype: torch.dtype = torch.float8_e4m3fn) -> Stored:
    weight, scale = e4m3(V, H, dtype), scales(*shape)
    return Stored({"weight": weight, "weight_scale": scale}, naive_blocks(weight, scale.reshape(V, 1), (1, H)), "fp8")


def per_block(config: dict[str, Any], suffix: str = "weight_scale_inv") -> Stored:
    block = config["quantization_config"]["weight_block_size"]
    weight, scale = e4m3(V, H), scales(-(-V // block[0]), -(-H // block[1]))
    return Stored({"weight": weight, suffix: scale}, naive_blocks(weight, scale, tuple(block)), "fp8", config)


def per_group(groups: int) -> Stored:
    values, scale = int4(V, H), scales(V, groups).bfloat16()
    parts = {"weight_packed": pack(values), "weight_scale": scale, "weight_shape": torch.tensor([V, H])}
    return Stored(parts, naive_groups(values, scale), "packed_int4")


STORED: dict[str, Callable[[], Stored]] = {
    "fp8-per-tensor": per_tensor,
    "fp8-per-tensor-inv": lambda: per_tensor("weight_scale_inv"),
    "fp8-per-tensor-one-number": lambda: per_tensor(scale=torch.tensor([0.37])),
    "fp8-per-row": per_row,
    "fp8-per-row-flat": lambda: per_row((V,)),
    "fp8-e5m2-per-row": lambda: per_row(dtype=torch.float8_e5m2),
    "fp8-per-block-of-128": lambda: per_block(BLOCKS),
    "fp8-per-block-of-16-by-48": lambda: per_block(SMALL_BLOCKS, "weight_scale"),
    "int4-one-group": lambda: per_group(1),
    "int4-groups-of-24": lambda: per_group(3),
    "int4-groups-of-8": lambda: per_group(9),
}


def write(directory: Path, parts: dict[str, Tensor], config: dict[str, Any]) -> Checkpoint:
    """A checkpoint of an embedding, a norm, and a head in `parts`."""
    generator = torch.Generator().manual_seed(4)
    tensors = {
        "model.embed_tokens.weight": torch.randn(V, H, generator=generator),
        "model.norm.weight": torch.rand(H, generator=generator) + 0.5,
        **{f"lm_head.{name}": tensor for name, tensor in parts.items()},
    }
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    return Checkpoint(directory)


def facts_of(checkpoint: Checkpoint, rule: str = "none", **values: Any) -> VerifierFacts:
    return resolve(composed("arch/llama", {"name": "it", "quantization.dequantize": rule, **values}), checkpoint)


@pytest.mark.parametrize("name", STORED)
def test_a_quantised_head_is_read_as_what_it_means(name: str, tmp_path: Path) -> None:
    stored = STORED[name]()
    checkpoint = write(tmp_path, stored.parts, stored.config)
    facts = facts_of(checkpoint, stored.rule)
    head = read_tensor(checkpoint, facts.head)
    assert head.dtype is torch.float32
    assert head.shape == (V, H)
    torch.testing.assert_close(head, stored.plain, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["fp8-per-block-of-128", "int4-groups-of-24"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_teacher_of_a_quantised_head_says_what_the_dequantised_one_would(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    stored = STORED[name]()
    checkpoint = write(tmp_path, stored.parts, stored.config)
    facts = facts_of(checkpoint, stored.rule)
    teacher = Teacher.from_checkpoint(checkpoint, facts, dtype)
    plain = Teacher(facts.arithmetic, stored.plain.to(dtype), norm_H=checkpoint.tensor("model.norm.weight").to(dtype))
    state_NH = torch.randn(5, H).to(dtype)
    assert torch.equal(teacher(state_NH), plain(state_NH))
    assert teacher(state_NH).std() > 0.1


def test_a_quantised_embedding_that_is_the_head(tmp_path: Path) -> None:
    weight, scale = e4m3(V, H), scales(V, 1)
    checkpoint = write(tmp_path, {}, {})
    tensors = {"model.norm.weight": torch.ones(H), "model.embed_tokens.weight": weight}
    save_file({**tensors, "model.embed_tokens.weight_scale": scale}, tmp_path / "model.safetensors")
    facts = facts_of(checkpoint, "fp8", tied=True)
    assert facts.head is facts.embedding
    assert torch.equal(read_tensor(checkpoint, facts.head), weight.float() * scale)


def test_rows_of_a_quantised_embedding_beyond_the_head_are_not_read(tmp_path: Path) -> None:
    weight, scale = e4m3(V + 5, H), scales(V + 5, 1)
    checkpoint = write(tmp_path, {"weight": torch.randn(V, H)}, {})
    tensors = {key: checkpoint.tensor(key) for key in ("model.norm.weight", "lm_head.weight")}
    tensors |= {"model.embed_tokens.weight": weight, "model.embed_tokens.weight_scale": scale}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    embedding = read_tensor(checkpoint, facts_of(checkpoint, "fp8").embedding)
    assert torch.equal(embedding, (weight.float() * scale)[:V])


@pytest.mark.parametrize(
    ("rows", "columns", "block"), [(5, 7, (2, 3)), (4, 6, (2, 3)), (1, 1, (128, 128)), (130, 3, (128, 2))]
)
def test_blocks_that_do_not_divide(rows: int, columns: int, block: tuple[int, int]) -> None:
    weight, scale = e4m3(rows, columns), scales(-(-rows // block[0]), -(-columns // block[1]))
    assert torch.equal(fp8(weight, scale, block), naive_blocks(weight, scale, block))


def test_every_int4_is_where_it_belongs() -> None:
    values = [[place - 8 for place in range(16)], [7 - place for place in range(16)]]
    scale = torch.tensor([[1.0, 2.0], [0.5, 4.0]])
    assert torch.equal(packed_int4(pack(values), scale, (2, 16)), naive_groups(values, scale))


def test_int4_of_a_width_that_is_no_multiple_of_eight() -> None:
    values, scale = int4(3, 12), scales(3, 4)
    packed = pack([row + [0] * 4 for row in values])
    torch.testing.assert_close(packed_int4(packed, scale, (3, 12)), naive_groups(values, scale))


def test_a_quantised_verifier_whose_three_tensors_are_plain_needs_nothing(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}
    checkpoint = write(tmp_path, {"weight": torch.randn(V, H).bfloat16()}, config)
    layers = {
        "model.layers.0.mlp.up_proj.weight_packed": pack(int4(16, 8)),
        "model.layers.0.mlp.up_proj.weight_scale": scales(16, 1),
        "model.layers.0.self_attn.q_proj.weight": e4m3(16, H),
        "model.layers.0.self_attn.q_proj.weight_scale_inv": scales(1, 1),
    }
    stored = {key: checkpoint.tensor(key) for key in checkpoint.file_of}
    save_file(stored | layers, tmp_path / "model.safetensors")
    facts = facts_of(Checkpoint(tmp_path))
    assert [it.scale_key for it in facts.tensors] == ["", "", ""]
    assert torch.equal(read_tensor(checkpoint, facts.head), stored["lm_head.weight"])


def without(stored: Stored, *names: str) -> dict[str, Tensor]:
    return {name: part for name, part in stored.parts.items() if name not in names}


REFUSED = {
    "fp8-without-a-rule": (per_row().parts, "none", {}, r"F8_E4M3 with lm_head.weight_scale; set .*dequantize: fp8"),
    "fp8-without-a-scale": (without(per_row(), "weight_scale"), "fp8", {}, "F8_E4M3 with no scale beside it"),
    "fp8-and-the-rule-for-int4": (per_row().parts, "packed_int4", {}, r"set verifier\.quantization\.dequantize: fp8"),
    "blocks-of-unknown-size": (per_block(BLOCKS).parts, "fp8", {}, r"lm_head\.weight_scale_inv .*weight_block_size"),
    "fp8-with-scales-of-too-few-rows": (
        {**per_row().parts, "weight_scale": scales(V - 1, 1)}, "fp8", {}, r"lm_head\.weight_scale has shape \[130, 1\]",
    ),
    "fp8-with-a-scale-per-column": (
        {**per_row().parts, "weight_scale": scales(1, H)}, "fp8", {}, r"lm_head\.weight_scale has shape \[1, 72\]",
    ),
    "fp8-with-too-few-blocks": (
        {**per_block(BLOCKS).parts, "weight_scale_inv": scales(2, 2)}, "fp8", BLOCKS, r"lm_head\.weight_scale_inv has shape \[2, 2\]",
    ),
    "plain-floats-with-a-scale": (
        {"weight": torch.randn(V, H), "weight_scale": scales(V, 1)}, "fp8", {}, "F32 with lm_head.weight_scale",
    ),
    "int4-without-a-rule": (per_group(3).parts, "none", {}, r"lm_head\.weight is packed .*dequantize: packed_int4"),
    "int4-with-zero-points": (
        {**per_group(3).parts, "weight_zero_point": pack(int4(3, 136))}, "packed_int4", {}, "zero_point.*reads symmetric int4",
    ),
    "int4-with-reordered-columns": (
        {**per_group(3).parts, "weight_g_idx": torch.arange(H)}, "packed_int4", {}, "g_idx.*reads symmetric int4",
    ),
    "int4-without-a-scale": (without(per_group(3), "weight_scale"), "packed_int4", {}, r"lm_head\.weight_scale \[131, groups\]"),
    "int4-with-scales-of-too-few-rows": (
        {**per_group(3).parts, "weight_scale": scales(V - 1, 3)}, "packed_int4", {}, r"with scales \[130, 3\]",
    ),
    "int4-with-groups-that-do-not-divide": (
        {**per_group(3).parts, "weight_scale": scales(V, 5)}, "packed_int4", {}, r"with scales \[131, 5\]",
    ),
    "int8-in-the-place-of-int4": (
        {**per_group(3).parts, "weight_packed": torch.zeros(V, H // 4, dtype=torch.int32)}, "packed_int4", {},
        r"lm_head\.weight_packed is I32 \[131, 18\]",
    ),
    "gptq": (
        {"qweight": pack(int4(9, V * 8)), "scales": scales(3, V), "qzeros": pack(int4(3, V))}, "packed_int4", {},
        r"but lm_head\.(qweight|qzeros|scales), .*quantised in a layout that nothing here reads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_rule_makes_a_plain_float_is_refused(name: str, tmp_path: Path) -> None:
    parts, rule, config, message = REFUSED[name]
    with pytest.raises(EyasError, match=message) as refused:
        facts_of(write(tmp_path, parts, config), rule)
    assert refused.value.check == "p04_plain_floats"
