"""From a checkpoint to its YAML: what the library says, what the weights say, and what a trial finds where neither does."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import logging as transformers_logging

from conformance import tiny
from eyas.cli.auto import verifier_composer
from eyas.cli.compose import compose
from eyas.config import to_dict
from eyas.doctor.trial import try_all
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.detect import Reading, UnlistedError, detect
from eyas.verifier.facts import resolve
from eyas.verifier.library import Entry, arithmetics, entry_for, read_library

LIBRARY = read_library()
composed = verifier_composer([])

Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A directory with a tiny random checkpoint of a model type, its config, tensors or names changed."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)

    @cache
    def pristine(model_type: str) -> Path:
        directory = tmp_path_factory.mktemp(model_type)
        tiny.save(tiny.build(model_type), directory)
        return directory

    def built(
        model_type: str,
        config: dict[str, Any] | None = None,
        tensors: Callable[[dict[str, Tensor]], None] | None = None,
    ) -> Path:
        if config is None and tensors is None:
            return pristine(model_type)
        directory = Path(shutil.copytree(pristine(model_type), tmp_path_factory.mktemp("changed") / model_type))
        content = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(content | (config or {})))
        if tensors is not None:
            stored = load_file(directory / "model.safetensors")
            tensors(stored)
            save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
        return directory

    return built


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    logging.disable()
    with torch.no_grad():
        yield
    logging.disable(logging.NOTSET)


def detected(directory: Path, library: Sequence[Entry] = LIBRARY) -> Reading:
    return detect(Checkpoint(directory), "it", library, composed)


def values_of(reading: Reading) -> dict[str, Any]:
    """Without the name and the place, which every reading has."""
    return {key: value for key, value in reading.values.items() if key not in ("name", "path")}


def test_a_llama_needs_nothing(build: Build) -> None:
    reading = detected(build("llama"))
    assert (reading.option, values_of(reading)) == ("arch/llama", {})
    assert reading.why == (
        "model type llama is listed in verifier/arch/llama.yaml",
        "tied: False, as the weights have a head",
    )
    assert reading.overrides == ["verifier=arch/llama", "verifier.name=it", f"verifier.path={build('llama')}"]


@pytest.mark.parametrize(
    ("model_type", "option", "values"),
    [
        ("llava", "arch/llama", {"config.path": "text_config"}),
        ("kimi_k25", "kimi_k25", {"tied": True}),
        ("gemma2", "arch/gemma2", {"tied": True}),
        ("gpt_neox", "arch/layernorm", {}),
        ("granite", "arch/granite", {}),
        ("deepseek_v4", "arch/hyper_connections", {}),
    ],
)
def test_families_by_their_model_type(model_type: str, option: str, values: dict[str, Any], build: Build) -> None:
    directory = build(model_type)
    reading = detected(directory)
    assert (reading.option, values_of(reading)) == (option, values)
    facts = resolve(composed(reading.option, reading.values), Checkpoint(directory))
    assert (facts.hidden_size, facts.num_layers, facts.vocab_size) == (64, 4, 128)


def test_a_head_makes_it_untied_whatever_the_config_says(build: Build) -> None:
    reading = detected(build("llama", {"tie_word_embeddings": True}))
    assert values_of(reading) == {}
    assert "the config's tie_word_embeddings says otherwise, and is not believed" in reading.why


def test_without_a_head_it_is_tied_where_the_config_agrees(build: Build) -> None:
    reading = detected(build("llama", {"tie_word_embeddings": True}, lambda it: it.pop("lm_head.weight")))
    assert values_of(reading) == {"tied": True}


def test_without_a_head_that_the_config_says_exists_it_is_refused(build: Build) -> None:
    directory = build("llama", {"tie_word_embeddings": False}, lambda it: it.pop("lm_head.weight"))
    with pytest.raises(
        EyasError, match=r"no key begins like a head \(lm_head.weight, .*verifier\.keys\.head.*verifier\.tied: true"
    ):
        detected(directory)


def test_a_packed_head_is_a_head(build: Build) -> None:
    def pack(it: dict[str, Tensor]) -> None:
        del it["lm_head.weight"]
        it |= {"lm_head.qweight": torch.zeros(8, 128, dtype=torch.int32), "lm_head.scales": torch.ones(4, 128)}

    directory = build("llama", {}, pack)
    reading = detected(directory)
    assert "tied" not in reading.values
    with pytest.raises(EyasError, match=r"lm_head\.(qweight|scales).* quantised"):
        resolve(composed(reading.option, reading.values), Checkpoint(directory))


def test_a_head_under_another_name_that_some_yaml_knows(build: Build) -> None:
    directory = build("llama", {}, lambda it: it.update({"embed_out.weight": it.pop("lm_head.weight")}))
    reading = detected(directory)
    assert values_of(reading) == {"keys.head": ["embed_out.weight"]}
    assert "head is called embed_out.weight" in reading.why
    assert resolve(composed(reading.option, reading.values), Checkpoint(directory)).head.key == "embed_out.weight"


def test_two_names_that_could_be_the_head_are_refused(build: Build) -> None:
    def rename(it: dict[str, Tensor]) -> None:
        it["embed_out.weight"] = it.pop("lm_head.weight")
        it["output.weight"] = it["embed_out.weight"].clone()

    with pytest.raises(
        EyasError, match=r"embed_out.weight and output.weight both could be the head: set verifier\.keys\.head"
    ):
        detected(build("llama", {}, rename))


def test_two_language_models_are_refused_and_shown(build: Build, tmp_path: Path) -> None:
    text = json.loads((build("llama") / "config.json").read_text())
    other = json.loads((build("gemma2") / "config.json").read_text())
    config = {"model_type": "never_heard_of", "thinker_config": {"text_config": text}, "talker_config": other}
    shutil.copytree(build("llama"), tmp_path / "it")
    (tmp_path / "it" / "config.json").write_text(json.dumps(config))
    with pytest.raises(EyasError) as refused:
        detected(tmp_path / "it")
    message = str(refused.value)
    assert "config.path='thinker_config.text_config' is llama (arch/llama)" in message
    assert "config.path='talker_config' is gemma2 (arch/gemma2)" in message
    assert "Choose one: verifier=OPTION verifier.config.path=PATH" in message


def test_a_wrapper_that_nobody_lists_goes_by_the_model_inside(build: Build) -> None:
    reading = detected(build("llava", {"model_type": "never_heard_of"}))
    assert (reading.option, values_of(reading)) == ("arch/llama", {"config.path": "text_config"})


def test_a_type_that_nobody_lists(build: Build) -> None:
    with pytest.raises(UnlistedError, match="no YAML of the verifier library lists model type never_heard_of"):
        detected(build("llama", {"model_type": "never_heard_of"}))


def test_a_refused_type_says_so(build: Build) -> None:
    reading = detected(build("llama", {"model_type": "mllama"}))
    assert reading.why[-1].startswith("refused: its cross-attention layers")


def test_ones_own_yaml_wins_over_the_library(build: Build, tmp_path: Path) -> None:
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "mine.yaml").write_text(
        "defaults: [arch/llama@_here_]\nmodel_types: [llama]\nnorm: {eps: {config: null, value: 0.5}}\n"
    )
    library = read_library([str(tmp_path)])
    reading = detect(Checkpoint(build("llama")), "it", library, verifier_composer([str(tmp_path)]))
    assert reading.option == "mine"
    assert reading.why[0] == "model type llama is listed in verifier/mine.yaml"


def test_ones_own_yaml_for_a_type_that_nobody_lists(build: Build, tmp_path: Path) -> None:
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "mine.yaml").write_text("defaults: [arch/gemma2@_here_]\nmodel_types: [never_heard_of]\n")
    directory = build("gemma2", {"model_type": "never_heard_of"})
    reading = detect(Checkpoint(directory), "it", read_library([str(tmp_path)]), verifier_composer([str(tmp_path)]))
    assert (reading.option, values_of(reading)) == ("mine", {"tied": True})


def test_two_shipped_yamls_for_one_type_are_a_mistake() -> None:
    both = [Entry("a", {"model_types": ["x"]}, ""), Entry("b", {"model_types": ["x"]}, "")]
    with pytest.raises(EyasError, match=r"model type x is listed by verifier/a.yaml and verifier/b.yaml: choose one"):
        entry_for(both, "x")


def other_head(it: dict[str, Tensor]) -> None:
    it["embed_out.weight"] = it.pop("lm_head.weight")
    del it["lm_head.bias"]


@pytest.mark.parametrize(
    ("model_type", "tensors"), [("llava", None), ("kimi_k25", None), ("phi", other_head)], ids=["llava", "kimi", "phi"]
)
def test_the_yaml_that_is_printed_is_the_same_verifier(
    model_type: str, tensors: Callable[[dict[str, Tensor]], None] | None, build: Build, tmp_path: Path
) -> None:
    directory = build(model_type, None, tensors)
    reading = detected(directory)
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "it.yaml").write_text(reading.yaml)
    saved = compose(["verifier=it", "data.path=none"], [str(tmp_path)]).verifier
    said = compose([*reading.overrides, "data.path=none"], []).verifier
    assert to_dict(saved) == to_dict(said)
    assert to_dict(saved) == to_dict(composed(reading.option, reading.values))
    assert saved.path == str(directory)


@pytest.mark.parametrize("place", ["with space", "a: b", "best,[a]{b}=#c", "the falconer's"])
def test_a_place_with_an_awkward_name(place: str, build: Build, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(build("llama"), tmp_path / place))
    reading = detected(directory)
    assert OmegaConf.create(reading.yaml).path == str(directory)
    assert value_of(f"verifier.path={directory}", reading.overrides) == str(directory)


@pytest.mark.parametrize("name", ["null", "true", "1e5", "007", "12", "llama"])
def test_a_name_stays_a_string(name: str) -> None:
    """A directory may be called anything, and a hub's snapshots are called by hexadecimal digits."""
    reading = Reading("arch/llama", {"name": name, "path": f"/{name}"})
    assert OmegaConf.create(reading.yaml).name == name
    assert value_of("verifier.name", reading.overrides) == name


def value_of(override: str, overrides: Sequence[str]) -> Any:
    """As Hydra reads it from the command line."""
    key = override.partition("=")[0]
    return next(
        it.value() for it in OverridesParser.create().parse_overrides(list(overrides)) if it.key_or_group == key
    )


# The trial: nobody lists the type, so the model itself is asked.


FEW = ["arch/llama", "arch/cohere", "arch/gemma", "arch/gemma2", "arch/gemma3", "arch/gemma4", "arch/granite",
       "arch/layernorm", "arch/mpt"]  # fmt: skip
"""Composing all of them is what would take the time."""


def tried(directory: Path, *options: str) -> Reading:
    return try_all(
        Checkpoint(directory), "it", [(option, composed(option, {"name": "it"})) for option in options or FEW]
    )


def test_all_that_state_an_arithmetic_are_tried() -> None:
    options = arithmetics(LIBRARY)
    assert options[0] == "arch/llama"
    assert set(FEW) - {"arch/gemma"} <= set(options)
    assert len(options) == len(set(options)) > 20
    assert not any(entry.values.get("refused") for entry in LIBRARY if entry.option in options)


@pytest.mark.parametrize(
    ("model_type", "without"),
    [("gemma2", "arch/gemma2"), ("gemma2", ""), ("granite", ""), ("gpt_neox", ""), ("cohere", ""), ("llava", "")],
)
def test_a_trial_finds_the_arithmetic_of_a_type_that_nobody_lists(model_type: str, without: str, build: Build) -> None:
    directory = build(model_type)
    options = [option for option in FEW if option != without]
    if without == "":
        options = [option for option in FEW if option != "arch/gemma3"]  # Gemma 2's arithmetic under another name
    listed, found = detected(directory), tried(directory, *options)
    right = resolve(composed(listed.option, listed.values), Checkpoint(directory))
    facts = resolve(composed(found.option, found.values), Checkpoint(directory))
    assert facts.arithmetic == right.arithmetic
    assert facts.tensors == right.tensors
    assert (facts.hidden_size, facts.num_layers, facts.vocab_size) == (64, 4, 128)
    assert f"verifier/{found.option}.yaml" in found.why[0]


def test_a_trial_that_finds_nothing_says_so(build: Build) -> None:
    with pytest.raises(
        EyasError, match=r"0 rebuild its logits, expected exactly one .*write a YAML, docs/verifiers.md"
    ):
        tried(build("granite"), "arch/llama", "arch/gemma2", "arch/layernorm")


def test_two_arithmetics_that_can_not_be_told_apart_are_refused(build: Build) -> None:
    """Where the residual stream's mean vanishes, RMSNorm and LayerNorm are the same, and a choice would be a guess."""

    def centre(it: dict[str, Tensor]) -> None:
        for key, tensor in it.items():
            if key == "model.embed_tokens.weight":
                it[key] = tensor - tensor.mean(1, keepdim=True)
            elif key.endswith(("o_proj.weight", "down_proj.weight")):
                it[key] = tensor - tensor.mean(0, keepdim=True)

    directory = build("llama", {"layer_norm_epsilon": 1e-2}, centre)
    with pytest.raises(EyasError, match=r"2 rebuild its logits, expected exactly one .*arch/llama.*arch/mpt"):
        tried(directory)


def test_a_scale_of_one_makes_no_second_arithmetic(build: Build) -> None:
    directory = build("llama", {"logits_scaling": 1.0, "embedding_multiplier": 1.0, "logit_scale": 1.0})
    assert tried(directory).option == "arch/llama"


def test_a_trial_says_what_the_config_lacks(build: Build) -> None:
    directory = build("llama", {})
    content = json.loads((directory / "config.json").read_text())
    del content["num_hidden_layers"]
    (directory / "config.json").write_text(json.dumps(content))
    with pytest.raises(EyasError, match="in no known way how many layers there are; write a YAML"):
        tried(directory)


def test_a_trial_of_two_language_models_is_refused(build: Build) -> None:
    text = json.loads((build("llama") / "config.json").read_text())
    with pytest.raises(
        EyasError, match=r"language models at '' and 'other_config'; write a YAML with verifier\.config\.path"
    ):
        tried(build("llama", {"other_config": text}))


def test_a_trial_of_a_model_that_does_not_load(build: Build) -> None:
    directory = build("llama", {"model_type": "never_heard_of"})
    with pytest.raises(EyasError, match=r"can.t (load|be tried)") as refused:
        tried(directory)
    assert "\n" not in str(refused.value)


def test_a_trial_of_several_streams_says_what_to_write(build: Build) -> None:
    with pytest.raises(EyasError, match=r"verifier\.stream: multiple"):
        tried(build("deepseek_v4"))
