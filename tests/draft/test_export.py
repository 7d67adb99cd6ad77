"""The exported draft is the trained one, and starting from a draft is starting from that draft."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from speculators.models.eagle3 import Eagle3DraftModel

from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.draft.build import build_draft
from eyas.draft.export import compare, load_draft, save
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint

CPU = torch.device("cpu")


@pytest.fixture
def config(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> Config:
    config = tiny("data.max_length=64")
    prepare(config)
    return config


@pytest.fixture
def exported(config: Config, tmp_path: Path) -> Path:
    draft = build_draft(config)
    draft.fc.weight.data += 1
    draft.lm_head.weight.data += torch.arange(128)[:, None]
    save(draft, tmp_path / "draft")
    compare(draft, tmp_path / "draft")
    return tmp_path / "draft"


def test_round_trip(config: Config, exported: Path) -> None:
    assert sorted(path.name for path in exported.iterdir()) == ["config.json", "model.safetensors"]
    written, draft = load_file(exported / "model.safetensors"), load_draft(exported, torch.float32, CPU)
    assert written.keys() == draft.state_dict().keys()
    assert {"embed_tokens.weight", "lm_head.weight", "d2t", "t2d", "fc.weight", "norm.weight"} <= written.keys()
    assert all(torch.equal(tensor, written[name]) for name, tensor in draft.state_dict().items())
    settings = json.loads((exported / "config.json").read_text())
    assert settings["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert (settings["architectures"], settings["speculators_model_type"]) == (["Eagle3DraftModel"], "eagle3")
    assert "auto_map" not in settings


def test_speculators_own_class_loads_it(exported: Path) -> None:
    model = Eagle3DraftModel.from_pretrained(exported)
    written = load_file(exported / "model.safetensors")
    for name, tensor in model.state_dict().items():
        if not name.startswith("verifier_"):
            assert torch.equal(tensor, written[name]), name


FAULTS = [
    pytest.param(lambda tensors: tensors.pop("embed_tokens.weight"), "not in both", id="missing"),
    pytest.param(lambda tensors: tensors["fc.weight"].add_(1), "fc.weight .* is not the trained tensor", id="changed"),
    pytest.param(
        lambda tensors: tensors.update({"_orig_mod.norm.weight": tensors.pop("norm.weight")}),
        "not in both",
        id="renamed",
    ),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_wrong_tensor_is_noticed(
    exported: Path, fault: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    draft = load_draft(exported, torch.float32, CPU)
    tensors = load_file(exported / "model.safetensors")
    fault(tensors)
    save_file(tensors, exported / "model.safetensors")
    with pytest.raises(EyasError, match=message):
        compare(draft, exported)


def test_nested_layer_ids_are_noticed(exported: Path) -> None:
    draft = load_draft(exported, torch.float32, CPU)
    settings = json.loads((exported / "config.json").read_text())
    settings["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": settings.pop("eagle_aux_hidden_state_layer_ids")}
    (exported / "config.json").write_text(json.dumps(settings))
    with pytest.raises(EyasError, match="layer ids are not at the top level"):
        compare(draft, exported)


def started(config: Config, **changes: object) -> Config:
    for key, value in changes.items():
        setattr(config.draft, key, value)
    return config


def test_init_keeps_every_weight_and_the_vocabulary(config: Config, exported: Path) -> None:
    draft = build_draft(started(config, init=str(exported)))
    for name, tensor in load_file(exported / "model.safetensors").items():
        assert torch.equal(draft.state_dict()[name], tensor), name


def test_init_from_the_raw_format(config: Config, exported: Path, tmp_path: Path) -> None:
    raw, tensors = Path(shutil.copytree(exported, tmp_path / "raw")), load_file(exported / "model.safetensors")
    renamed = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in tensors.items()
        if name != "input_norm.weight"
    }
    save_file(renamed, raw / "model.safetensors")
    settings = json.loads((exported / "config.json").read_text())
    flat = {**settings["transformer_layer_config"], "draft_vocab_size": 128}
    flat["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}  # one lower than ours
    (raw / "config.json").write_text(json.dumps(flat))
    off = {"norm_before_residual": False, "norm_before_fc": False, "norm_output": False}

    draft = build_draft(started(config, init=str(raw), **off))
    for name, tensor in tensors.items():
        if name != "input_norm.weight":
            assert torch.equal(draft.state_dict()[name], tensor), name
    with pytest.raises(EyasError, match=r"draft\.norm_output=True but it has False"):
        build_draft(started(config, norm_output=True))


def test_init_with_another_vocabulary_carries_rows_over_by_token(config: Config, exported: Path) -> None:
    old = load_draft(exported, torch.float32, CPU)
    with pytest.raises(EyasError, match=r"draft\.vocab_size=200 but it has 128; draft\.init_vocabulary=remap"):
        build_draft(started(config, init=str(exported), vocab_size=200))
    draft = build_draft(started(config, init_vocabulary=type(config.draft.init_vocabulary).remap))
    fresh = build_draft(started(config, init=None))
    row_of = {int(token): row for row, token in enumerate(old.draft_ids_D)}
    for row, token in enumerate(draft.draft_ids_D.tolist()):
        expected = old.lm_head.weight[row_of[token]] if token in row_of else fresh.lm_head.weight[row]
        assert torch.equal(draft.lm_head.weight[row], expected)
    assert torch.equal(draft.fc.weight, old.fc.weight)


CONFLICTS = [
    pytest.param({"layer_ids": [2, 4, 6]}, r"draft\.layer_ids=\[2, 4, 6\] but it has \[2, 4, 5\]", id="layer-ids"),
    pytest.param({"norm_output": False}, r"draft\.norm_output=False but it has True", id="flag"),
    pytest.param({"num_layers": 2}, "missing .*layers.1", id="layers"),
    pytest.param({"init": "nowhere/at/all"}, "there is no such directory", id="no-directory"),
]


@pytest.mark.parametrize(("changes", "message"), CONFLICTS)
def test_conflicts_are_refused_by_name(
    config: Config, exported: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(EyasError, match=message):
        build_draft(started(config, **{"init": str(exported), **changes}))
