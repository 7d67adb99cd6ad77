"""Checkpoint, facts and teacher, on real checkpoints."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import rms_teacher
from transformers import AutoModelForCausalLM

from eyas.cli.compose import compose
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import resolve
from eyas.verifier.teacher import DraftTeacher, Teacher
from eyas.verifier.tokenizer import tokenizer_identity


@pytest.fixture
def copied(tiny_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint.directory, tmp_path / "copy"))


def facts_of(directory: Path, *overrides: str):  # type: ignore[no-untyped-def]
    return resolve(compose(["verifier=tiny_llama", *overrides], []).verifier, Checkpoint(directory))


@pytest.mark.parametrize("name", ["tiny_llama", "smollm2_135m"])
def test_teacher_is_the_verifiers_own_arithmetic(
    name: str, tiny_checkpoint: Checkpoint, smollm2_checkpoint: Checkpoint
) -> None:
    checkpoint = {"tiny_llama": tiny_checkpoint, "smollm2_135m": smollm2_checkpoint}[name]
    model = AutoModelForCausalLM.from_pretrained(checkpoint.directory, dtype=torch.float32)
    states = []
    model.model.norm.register_forward_pre_hook(lambda _, args: states.append(args[0][0]))
    with torch.no_grad():
        logits = model(torch.arange(10, 40)[None]).logits[0]
    teacher = Teacher.from_checkpoint(
        checkpoint, resolve(compose([f"verifier={name}"], []).verifier, checkpoint), torch.float32
    )
    assert torch.allclose(teacher(states[0]), logits, atol=1e-4)


def test_targets_are_restricted_renormalised_and_searched_in_the_whole_vocabulary() -> None:
    torch.manual_seed(0)
    teacher, states, ids = (
        rms_teacher(torch.ones(8), torch.randn(20, 8), 1e-6),
        torch.randn(50, 8),
        torch.tensor([1, 5, 7, 19]),
    )
    of_draft = DraftTeacher(teacher, ids)
    targets = of_draft.targets(states, of_draft.token(states))
    logits = teacher(states)
    for position in range(50):
        expected = logits[position, ids].softmax(-1)
        assert torch.allclose(targets.probs_ND[position], expected, atol=1e-6)
        best = int(logits[position].argmax())
        assert int(targets.token_N[position]) == (ids.tolist().index(best) if best in ids else -1)


def test_only_needed_tensors_are_named_by_exact_key(tiny_checkpoint: Checkpoint) -> None:
    facts = facts_of(tiny_checkpoint.directory)
    assert [stored.key for stored in facts.tensors] == [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]
    assert facts.default_layer_ids == [2, 4, 5]


def test_an_in_place_change_of_one_layer_is_another_verifier(copied: Path) -> None:
    before = Checkpoint(copied).identity
    tensors = load_file(copied / "model.safetensors")
    tensors["model.layers.3.self_attn.q_proj.weight"] += 1e-3
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    assert Checkpoint(copied).identity != before


def test_a_moved_checkpoint_is_the_same_verifier(tiny_checkpoint: Checkpoint, copied: Path) -> None:
    assert Checkpoint(copied).identity == tiny_checkpoint.identity
    verifier = compose(["verifier=tiny_llama"], []).verifier
    assert tokenizer_identity(verifier, Checkpoint(copied)) == tokenizer_identity(verifier, tiny_checkpoint)


def test_directory_without_weights(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    with pytest.raises(EyasError, match=r"holds no \*\.safetensors weights"):
        facts_of(copied)


def test_index_naming_a_missing_shard(copied: Path) -> None:
    (copied / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    )
    with pytest.raises(EyasError, match="names files that are missing: model-00001-of-00002"):
        facts_of(copied)


def test_truncated_weights(copied: Path) -> None:
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(EyasError, match="is truncated"):
        facts_of(copied)


WRONG_FACTS = [
    pytest.param("verifier.tied=true", "the checkpoint holds a head", id="tied"),
    pytest.param(
        "verifier.keys.norm=[model.final_norm.weight]",
        r"similar keys there: \['model.norm.weight'\]|similar keys",
        id="key",
    ),
    pytest.param("verifier.config.hidden_size.config=d_model", "config.json has no 'd_model'", id="field"),
    pytest.param(
        "verifier.config.path=text_config", "config.json has no text_config there; .* seems to be at ''", id="path"
    ),
    pytest.param("verifier.config.hidden_size.config=intermediate_size", "has shape", id="shape"),
    pytest.param("verifier.norm.eps.config=layer_norm_eps", "config.json has no 'layer_norm_eps'", id="eps"),
]


@pytest.mark.parametrize(("override", "message"), WRONG_FACTS)
def test_wrong_facts_are_refused(tiny_checkpoint: Checkpoint, override: str, message: str) -> None:
    with pytest.raises(EyasError, match=message):
        facts_of(tiny_checkpoint.directory, override)


def test_head_missing_where_yaml_says_untied(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EyasError, match=r"set verifier\.tied: true"):
        facts_of(copied)


def test_integer_head_is_refused(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EyasError, match="is stored as I8"):
        facts_of(copied)
