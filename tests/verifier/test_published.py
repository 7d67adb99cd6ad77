"""Every named verifier composes, and reads a published checkpoint's config and names as that checkpoint's makers meant them.

A fixture in `published/` holds a published config.json reduced to what matters, the names in the weights, and what they
mean, written from the source it names. The shards are sparse: right headers, and no byte of a tensor.
"""

import json
import math
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.compose import compose
from eyas.config import Config
from eyas.errors import EyasError
from eyas.verifier.facts import VerifierFacts, resolve
from eyas.verifier.library import read_library
from eyas.verifier.locate import locate

CONF = Path(__file__).parents[2] / "conf" / "verifier"
NAMED = sorted(file.stem for file in CONF.glob("*.yaml"))
FIXTURES = {file.stem: file for file in sorted((Path(__file__).parent / "published").glob("*.json"))}
BYTES = {"BF16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}

Tensors = dict[str, tuple[str, list[int]]]


@cache
def composed(name: str) -> Config:
    """The configuration that a user gets; `verifier.path` is set later, as composing is what takes the time here."""
    return compose([f"verifier={name}", "verifier.path=none", "data.path=none.jsonl"], [])


def load(name: str) -> Any:
    return json.loads(FIXTURES[name].read_text())


def write_checkpoint(directory: Path, fixture: Any) -> None:
    """The fixture as a directory: its config, an index where there are several shards, and sparse shards."""
    directory.mkdir(parents=True)
    (directory / fixture.get("config_file", "config.json")).write_text(json.dumps(fixture["config"]))
    layers, shards = fixture["expected"]["num_layers"], fixture["shards"]
    contents: list[Tensors] = [{} for _ in range(shards)]
    for layer in range(layers):
        contents[layer * shards // layers] |= {name.format(layer): it for name, it in fixture["per_layer"].items()}
    for number, (name, tensor) in enumerate(fixture["tensors"].items()):
        contents[0 if number == 0 else -1][name] = tensor  # the embedding first, norm and head at the end
    file_of = {}
    for number, tensors in enumerate(contents, 1):
        file = "model.safetensors" if shards == 1 else f"model-{number:05}-of-{shards:05}.safetensors"
        file = fixture.get("weights", file)
        write_sparse(directory / file, tensors)
        file_of |= dict.fromkeys(tensors, file)
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))


def write_sparse(file: Path, tensors: Tensors) -> None:
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + end)


def read_as(name: str, directory: Path) -> VerifierFacts:
    verifier = replace(composed(name).verifier, path=str(directory))
    return resolve(verifier, locate(verifier))


@pytest.mark.parametrize("name", FIXTURES)
def test_a_published_checkpoint_is_read_as_its_source_says(name: str, tmp_path: Path) -> None:
    fixture = load(name)
    write_checkpoint(tmp_path / name, fixture)
    facts, verifier = read_as(name, tmp_path / name), composed(name).verifier
    arithmetic = facts.arithmetic
    assert verifier.name == name
    assert {
        "hidden_size": facts.hidden_size,
        "num_layers": facts.num_layers,
        "vocab_size": facts.vocab_size,
        "tied": facts.head is facts.embedding,
        "embedding": facts.embedding.key,
        "norm_kind": arithmetic.norm.name,
        "norm_eps": arithmetic.eps,
        "norm": facts.norm and facts.norm.key,
        "head": facts.head.key,
        "pre_head": [[step.op.name, step.by] for step in arithmetic.pre_head],
        "post_head": [[step.op.name, step.by] for step in arithmetic.post_head],
    } == fixture["expected"]
    assert facts.warnings == ()
    assert all(value is not None for value in vars(verifier.published).values())
    shape = {key: value or facts.language_config.get(key) for key, value in vars(verifier.draft).items()}
    assert shape["intermediate_size"], "neither the YAML nor the config says how wide the draft's MLP is"
    assert shape["num_attention_heads"] % (shape["num_key_value_heads"] or 1) == 0


@pytest.mark.parametrize("name", [name for name in NAMED if name not in FIXTURES])
def test_a_verifier_without_a_published_config_composes(name: str) -> None:
    assert composed(name).verifier.name == name


@pytest.mark.parametrize("name", NAMED)
def test_a_header_says_what_it_is_and_how_to_run_it(name: str) -> None:
    first, *rest = (CONF / f"{name}.yaml").read_text().splitlines()
    assert first.startswith("# ")
    if name not in ("smollm2_135m", "tiny_llama"):  # these come without a path
        comments = [line for line in rest if line.startswith("#")]
        assert comments[0].startswith(f"#   python train.py verifier={name} verifier.path="), "the command comes second"
        assert any(line.startswith("# Evidence: ") for line in comments)


def test_no_model_type_is_listed_twice() -> None:
    listed = [model_type for entry in read_library() for model_type in entry.model_types]
    assert sorted(listed) == sorted(set(listed))


def test_a_head_that_nvidia_packed_is_refused(tmp_path: Path) -> None:
    fixture = load("qwen3_6_35b_a3b")
    fixture["tensors"] |= {
        "lm_head.weight": ("U8", [248320, 1024]),
        "lm_head.weight_scale": ("F8_E4M3", [248320, 128]),
        "lm_head.weight_scale_2": ("F32", []),
    }
    write_checkpoint(tmp_path / "packed", fixture)
    with pytest.raises(EyasError, match=r"lm_head\.weight"):
        read_as("qwen3_6_35b_a3b", tmp_path / "packed")


def test_gemma3_without_vocabulary_and_epsilon_takes_the_classs(tmp_path: Path) -> None:
    fixture = load("gemma3_27b")
    del fixture["config"]["text_config"]["vocab_size"], fixture["config"]["text_config"]["rms_norm_eps"]
    write_checkpoint(tmp_path / "early", fixture)
    facts = read_as("gemma3_27b", tmp_path / "early")
    assert (facts.vocab_size, facts.arithmetic.eps) == (262208, 1e-6)
    assert len(facts.warnings) == 2
