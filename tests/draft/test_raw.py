"""The raw Eagle3 format: what is written is read by `draft.init` as the same draft, and what it can't hold is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import SHAPE, options

from eyas.config import Config
from eyas.draft.model import Draft, draft_config
from eyas.draft.raw import compare_raw, save_raw
from eyas.draft.schema import DraftArchitecture
from eyas.draft.shape import Shape, check_raw, misfits
from eyas.errors import EyasError

OFF = {"norm_before_residual": False, "norm_before_fc": False, "norm_output": False}
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}


def written(tiny: Callable[..., Config], directory: Path, **changes: Any) -> tuple[Config, Shape, Draft]:
    """A random draft in the raw format, with the configuration and the shape that it belongs to."""
    sizes = {key: changes.pop(key) for key in ("rope_parameters", "draft_vocab_size") if key in changes}
    shape = replace(SHAPE, **{"draft_vocab_size": 32, **sizes})
    chosen = options(**{**OFF, "layer_ids": shape.layer_ids, **changes})
    ids_D = torch.arange(shape.draft_vocab_size) * (96 // shape.draft_vocab_size)
    draft = Draft(draft_config(chosen, shape, verifier="somewhere", unroll_steps=3), ids_D)
    for parameter in draft.parameters():
        parameter.data = torch.randn(parameter.shape).bfloat16()
    save_raw(draft, directory)
    return replace(tiny(), draft=chosen), shape, draft


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"norm_output": True, "fc_norm": True}, id="eagle-3.1"),
        pytest.param({"draft_vocab_size": 96}, id="whole-vocabulary"),
        pytest.param({"rope_parameters": {**YARN, "original_max_position_embeddings": 128}}, id="scaled-positions"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, id="other-base"),
    ],
)
def test_round_trip(tiny: Callable[..., Config], tmp_path: Path, changes: dict[str, Any]) -> None:
    config, shape, draft = written(tiny, tmp_path / "raw", **changes)
    compare_raw(config, shape, draft, tmp_path / "raw")


def test_names_and_ids_are_those_of_the_raw_format(tiny: Callable[..., Config], tmp_path: Path) -> None:
    written(tiny, tmp_path / "raw")
    names = load_file(tmp_path / "raw" / "model.safetensors").keys()
    assert {"midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight", "fc.weight", "d2t", "t2d"} <= names
    assert not any(name.startswith("layers.") for name in names)
    config = json.loads((tmp_path / "raw" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]  # ours are 2, 4, 5
    assert "eagle_aux_hidden_state_layer_ids" not in config, "at the top level vLLM would take them for its own"
    assert (config["rope_theta"], config["rope_scaling"]) == (10000.0, None)
    assert (config["draft_vocab_size"], config["torch_dtype"]) == (32, "bfloat16")


def change_tensor(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def change_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((directory / "config.json").read_text())
    change(config)
    (directory / "config.json").write_text(json.dumps(config))


FAULTS = [
    pytest.param(change_tensor, lambda it: it["fc.weight"].add_(1), "fc.weight .* is not the trained", id="tensor"),
    pytest.param(change_tensor, lambda it: it.pop("embed_tokens.weight"), "not in both", id="embedding"),
    pytest.param(change_tensor, lambda it: it.pop("d2t"), "it has 96|another draft vocabulary", id="vocabulary"),
    pytest.param(
        change_config,
        lambda it: it["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[2, 4, 5]),
        r"layer_ids=\[2, 4, 5\] but it has \[3, 5, 6\]",
        id="ids-not-lowered",
    ),
    pytest.param(change_config, lambda it: it.update(rope_theta=5.0), "rope_parameters reads as", id="positions"),
    pytest.param(change_config, lambda it: it.update(rms_norm_eps=1e-2), "rms_norm_eps reads as 0.01", id="epsilon"),
]


@pytest.mark.parametrize(("where", "fault", "message"), FAULTS)
def test_what_was_not_written_as_meant_is_noticed(
    tiny: Callable[..., Config], tmp_path: Path, where: Callable[..., None], fault: Callable[..., object], message: str
) -> None:
    config, shape, draft = written(tiny, tmp_path / "raw")
    where(tmp_path / "raw", fault)
    with pytest.raises(EyasError, match=message):
        compare_raw(config, shape, draft, tmp_path / "raw")


MISFITS = [
    pytest.param({"norm_before_residual": True}, {}, "draft.norm_before_residual=true", id="residual"),
    pytest.param({"norm_before_fc": True}, {}, "draft.norm_before_fc=true", id="norm-before-fc"),
    pytest.param({"architecture": DraftArchitecture.qwen3}, {}, "draft.architecture=qwen3", id="qwen3"),
    pytest.param({"num_layers": 2}, {}, "draft.num_layers=2", id="two-layers"),
    pytest.param({}, {"layer_ids": [0, 4, 5]}, "draft.layer_ids=[0, 4, 5] (three, none of them 0)", id="embeddings"),
    pytest.param({}, {"layer_ids": [1, 2, 3, 4]}, "draft.layer_ids=[1, 2, 3, 4] (three, none of them 0)", id="four"),
]


@pytest.mark.parametrize(("changes", "shape", "expected"), MISFITS)
def test_what_it_has_no_place_for_is_refused(changes: dict[str, Any], shape: dict[str, Any], expected: str) -> None:
    chosen, shape_ = options(**{**OFF, **changes}), replace(SHAPE, **shape)
    assert misfits(chosen, shape_) == [expected]
    with pytest.raises(EyasError, match=r"export\.formats has sglang.*set export\.formats=\[vllm\]"):
        check_raw(chosen, shape_)


def test_a_plain_draft_fits() -> None:
    check_raw(options(**OFF), SHAPE)


@pytest.mark.parametrize("formats", ["[]", "[sglang]", "[vllm,vllm]"])
def test_formats_without_what_is_measured_are_refused(tiny: Callable[..., Config], formats: str) -> None:
    with pytest.raises(EyasError, match=r"export\.formats=.*expected vllm"):
        tiny(f"export.formats={formats}")
