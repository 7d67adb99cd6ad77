"""A checkpoint directory: which files are read, which are not, what is wrong with one, and when two are the same."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.cli.auto import open_directory, verifier_composer
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import VerifierFacts, resolve
from eyas.verifier.locate import locate

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 8,
    "rms_norm_eps": 1e-6,
}
INDEX = "model.safetensors.index.json"

composed = verifier_composer([])


def tensors(**changed: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "model.embed_tokens.weight": torch.randn(20, 8, generator=generator),
        "model.norm.weight": torch.rand(8, generator=generator),
        "lm_head.weight": torch.randn(20, 8, generator=generator),
        "model.layers.0.mlp.up_proj.weight": torch.randn(64, 64, generator=generator),
        "model.layers.0.mlp.experts.3.up_proj.weight": torch.randn(64, 64, generator=generator),
    } | {key.replace("__", "."): tensor for key, tensor in changed.items()}


def write(directory: Path, stored: dict[str, Tensor] | None = None, config: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file(tensors() if stored is None else stored, directory / "model.safetensors")
    return directory


def write_shards(directory: Path) -> Path:
    """Three shards: the embedding; norm and head; the layers."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    parts: list[dict[str, Tensor]] = [{}, {}, {}]
    for key, tensor in tensors().items():
        parts[0 if "embed" in key else 2 if "layers" in key else 1][key] = tensor
    weight_map = {}
    for number, part in enumerate(parts, 1):
        save_file(part, directory / f"model-{number}-of-3.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{number}-of-3.safetensors")
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def facts_of(directory: Path, **values: Any) -> VerifierFacts:
    verifier = composed("arch/llama", {"name": "it", "path": str(directory), **values})
    return resolve(verifier, Checkpoint(directory, verifier.files.config, verifier.files.weights))


def header_of(file: Path, header: object) -> None:
    """A file that starts like safetensors, with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(100_000))


def rewrite(directory: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    (directory / name).write_bytes(change((directory / name).read_bytes()))


ENTRY = {"dtype": "F32", "shape": [20, 8], "data_offsets": [0, 640]}
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty-file": (lambda it: (it / "model.safetensors").write_bytes(b""), "model.safetensors is truncated.*download it again"),
    "three-bytes": (lambda it: rewrite(it, "model.safetensors", lambda data: data[:3]), "is truncated"),
    "half-a-header": (lambda it: rewrite(it, "model.safetensors", lambda data: data[:60]), "its header wants [0-9]+ bytes of 60"),
    "half-the-tensors": (
        lambda it: rewrite(it, "model.safetensors", lambda data: data[: len(data) // 2]),
        "its tensors end at [0-9]+ of [0-9]+ bytes; download it again",
    ),
    "a-pointer-of-git-lfs": (
        lambda it: (it / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"),
        "model.safetensors.*(truncated|git-lfs)",
    ),
    "header-is-no-json": (lambda it: header_of(it / "model.safetensors", b"\x80\x04 not json"), "its header is not JSON"),
    "header-is-a-list": (lambda it: header_of(it / "model.safetensors", []), "is no safetensors file"),
    "header-entries-are-none": (
        lambda it: header_of(it / "model.safetensors", {"lm_head.weight": {"shape": [1]}}),
        "is no safetensors file",
    ),
    "no-weights": (lambda it: (it / "model.safetensors").unlink(), r"holds no \*\.safetensors weights; set verifier\.path"),
    "pickled-weights-only": (
        lambda it: (it / "model.safetensors").rename(it / "pytorch_model.bin"),
        r"holds no \*\.safetensors weights",
    ),
    "config-is-no-json": (lambda it: (it / "config.json").write_text("{"), "config.json is not valid JSON"),
    "config-is-a-list": (lambda it: (it / "config.json").write_text("[]"), "config.json holds a list, expected a mapping"),
    "no-config": (lambda it: (it / "config.json").unlink(), r"holds no config.json.*\(found: model.safetensors\).*verifier.files.config"),
    "an-adapter": (
        lambda it: (it / "adapter_config.json").write_text("{}"),
        r"holds an adapter \(adapter_config.json\).*merge it .*first.*set verifier\.path",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[name]
    damage(write(tmp_path / "it"))
    with pytest.raises(EyasError, match=message) as refused:
        facts_of(tmp_path / "it")
    assert str(tmp_path / "it") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_directory_and_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"holds no config.json.*\(found: it is empty\)"):
        facts_of(tmp_path)
    with pytest.raises(EyasError, match=r"nowhere does not exist; set verifier\.path"):
        facts_of(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(EyasError, match=r"file .*set verifier\.path"):
        facts_of(tmp_path / "file")


BAD_INDEX: dict[str, tuple[Callable[[Path], object], str]] = {
    "a-shard-is-missing": (
        lambda it: (it / "model-2-of-3.safetensors").unlink(),
        r"names files that are missing: model-2-of-3.safetensors \(1 of 3\); the download is incomplete",
    ),
    "all-shards-are-missing": (
        lambda it: [file.unlink() for file in it.glob("*.safetensors")],
        r"model-1-of-3.safetensors, model-2-of-3.safetensors, model-3-of-3.safetensors \(3 of 3\)",
    ),
    "a-shard-does-not-hold-the-key": (
        lambda it: rewrite(it, INDEX, lambda data: data.replace(b"model-2-of-3", b"model-1-of-3")),
        r"the index says that (model\.norm|lm_head)\.weight is in model-1-of-3.safetensors, but it is not; download it again",
    ),
    "no-weight-map": (lambda it: (it / INDEX).write_text("{}"), "is no index: it has no weight_map; download it again"),
    "no-json": (lambda it: (it / INDEX).write_text("weights"), "is no index"),
    "weight-map-is-a-list": (lambda it: (it / INDEX).write_text('{"weight_map": []}'), "is no index"),
    "shard-is-truncated": (
        lambda it: rewrite(it, "model-2-of-3.safetensors", lambda data: data[:-1]),
        "model-2-of-3.safetensors is truncated",
    ),
    "norm-is-not-named": (
        lambda it: rewrite(it, INDEX, lambda data: data.replace(b'"model.norm.weight"', b'"model.other.weight"')),
        "verifier.keys.norm: none of",
    ),
}


@pytest.mark.parametrize("name", BAD_INDEX)
def test_a_wrong_index_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    damage, message = BAD_INDEX[name]
    damage(write_shards(tmp_path / "it"))
    with pytest.raises(EyasError, match=message):
        facts_of(tmp_path / "it")


WRONG_TENSORS: dict[str, tuple[dict[str, Tensor], str]] = {
    "fewer-rows": ({"lm_head__weight": torch.zeros(19, 8)}, r"lm_head.weight has shape \[19, 8\], config.json says \[20, 8\]"),
    "more-rows": ({"lm_head__weight": torch.zeros(21, 8)}, r"lm_head.weight has shape \[21, 8\]"),
    "transposed": ({"lm_head__weight": torch.zeros(8, 20)}, r"lm_head.weight has shape \[8, 20\]"),
    "norm-of-another-width": ({"model__norm__weight": torch.zeros(9)}, r"model.norm.weight has shape \[9\], .* says \[8\]"),
    "embedding-of-another-width": ({"model__embed_tokens__weight": torch.zeros(20, 9)}, r"has shape \[20, 9\]"),
    "integers": ({"lm_head__weight": torch.zeros(20, 8, dtype=torch.int8)}, "lm_head.weight is stored as I8 with no scale"),
    "bytes": ({"lm_head__weight": torch.zeros(20, 4, dtype=torch.uint8)}, "lm_head.weight is stored as U8"),
    "doubles": ({"lm_head__weight": torch.zeros(20, 8).double()}, "lm_head.weight is stored as F64"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_a_tensor_of_another_shape_or_type(name: str, tmp_path: Path) -> None:
    changed, message = WRONG_TENSORS[name]
    with pytest.raises(EyasError, match=message):
        facts_of(write(tmp_path / "it", tensors(**changed)))


def test_an_embedding_apart_from_the_head_may_have_more_rows(tmp_path: Path) -> None:
    directory = write(tmp_path / "it", tensors(model__embed_tokens__weight=torch.zeros(24, 8)))
    assert facts_of(directory).embedding.shape == (20, 8)


def test_two_text_configs_are_shown_both(tmp_path: Path) -> None:
    config = {"model_type": "omni", "thinker_config": {"text_config": CONFIG}, "talker_config": {"text_config": CONFIG}}
    with pytest.raises(
        EyasError, match=r"'thinker_config\.text_config' and at 'talker_config\.text_config'"
    ) as refused:
        facts_of(write(tmp_path / "it", config=config))
    assert "verifier.config.path" in str(refused.value)
    assert facts_of(tmp_path / "it", **{"config.path": "talker_config.text_config"}).hidden_size == 8


def test_a_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    verifier = composed("arch/llama", {"name": "it", "path": "nobody/has-such-a-model"})
    with pytest.raises(
        EyasError, match=r"verifier\.path=nobody/has-such-a-model is no local directory, and the hub"
    ) as refused:
        locate(verifier)
    assert "\n" not in str(refused.value)
    assert "HF_HUB_OFFLINE" in str(refused.value) or "offline" in str(refused.value).lower()


def write_both_layouts(directory: Path) -> Path:
    """transformers' layout and Mistral's own, with other numbers in each."""
    write(directory)
    params = {"dim": 8, "n_layers": 4, "vocab_size": 20, "norm_eps": 1e-5}
    (directory / "params.json").write_text(json.dumps(params))
    own = {"tok_embeddings.weight": torch.ones(20, 8), "norm.weight": torch.ones(8), "output.weight": torch.ones(20, 8)}
    save_file(own, directory / "consolidated.safetensors")
    return directory


def test_of_two_layouts_transformers_is_read_unless_the_other_is_named(tmp_path: Path) -> None:
    directory = write_both_layouts(tmp_path / "it")
    checkpoint = open_directory(directory)
    assert (checkpoint.config_file, checkpoint.files) == ("config.json", ["model.safetensors"])
    assert (facts_of(directory).num_layers, facts_of(directory).head.key) == (8, "lm_head.weight")
    verifier = composed("arch/consolidated", {"name": "it", "path": str(directory)})
    other = locate(verifier)
    assert other.files == ["consolidated.safetensors"]
    assert (resolve(verifier, other).num_layers, resolve(verifier, other).head.key) == (4, "output.weight")
    assert other.identity != checkpoint.identity


def test_the_only_layout_is_read(tmp_path: Path) -> None:
    directory = write_both_layouts(tmp_path / "it")
    (directory / "config.json").unlink()
    (directory / "model.safetensors").unlink()
    checkpoint = open_directory(directory)
    assert (checkpoint.config_file, checkpoint.files) == ("params.json", ["consolidated.safetensors"])


def test_only_the_tensor_that_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_shards(tmp_path / "it")
    for name in ("model-1-of-3.safetensors", "model-3-of-3.safetensors"):  # any look at them would fail
        (directory / name).write_bytes(b"\xff" * 16)
    checkpoint = Checkpoint(directory)
    assert set(checkpoint.file_of) == set(tensors())
    assert torch.equal(checkpoint.tensor("model.norm.weight"), tensors()["model.norm.weight"])
    assert checkpoint.header("lm_head.weight").shape == (20, 8)
    with pytest.raises(EyasError, match="model-1-of-3"):
        checkpoint.header("model.embed_tokens.weight")


def test_facts_of_a_huge_checkpoint_need_only_headers(tmp_path: Path) -> None:
    """A head and layers of 400 GB, sparse: nothing but headers is touched."""
    config = CONFIG | {"vocab_size": 2**20, "hidden_size": 2**14}
    directory = write(tmp_path / "it", {}, config)
    shapes = {
        "model.embed_tokens.weight": [2**20, 2**14],
        "model.norm.weight": [2**14],
        "lm_head.weight": [2**20, 2**14],
    }
    header, end = {}, 0
    for key, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header_of(directory / "model.safetensors", header)
    os.truncate(directory / "model.safetensors", 8 + len(json.dumps(header)) + end)
    facts = facts_of(directory)
    assert (facts.vocab_size, facts.hidden_size) == (2**20, 2**14)
    assert len(Checkpoint(directory).identity) == 64


def test_identity_is_of_content(tmp_path: Path) -> None:
    identity = Checkpoint(write(tmp_path / "it")).identity
    assert Checkpoint(write(tmp_path / "elsewhere")).identity == identity
    os.utime(tmp_path / "it" / "model.safetensors", (1, 1))
    (tmp_path / "it" / "README.md").write_text("changed")
    assert Checkpoint(tmp_path / "it").identity == identity


def merged_lora(name: str) -> dict[str, Tensor]:
    """A rank-one update of a whole matrix, as small as a LoRA's."""
    changed = tensors()
    changed[name] += torch.outer(torch.rand(64) + 0.1, torch.rand(64) + 0.1) * 1e-3
    return changed


OTHERS: dict[str, Callable[[Path], object]] = {
    "config": lambda it: write(it, config=CONFIG | {"rope_theta": 5e5}),
    "one-layer": lambda it: write(it, merged_lora("model.layers.0.mlp.up_proj.weight")),
    "head": lambda it: write(it, tensors(lm_head__weight=tensors()["lm_head.weight"] * 1.01)),
    "type": lambda it: write(it, {key: tensor.bfloat16() for key, tensor in tensors().items()}),
    "a-tensor-more": lambda it: write(it, tensors(lm_head__bias=torch.zeros(20))),
    "a-tensor-less": lambda it: write(it, {key: it for key, it in tensors().items() if "expert" not in key}),
    "shape": lambda it: write(it, tensors(model__norm__weight=tensors()["model.norm.weight"][None])),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_checkpoint_has_another_identity(name: str, tmp_path: Path) -> None:
    before = Checkpoint(write(tmp_path / "it")).identity
    OTHERS[name](tmp_path / "other")
    assert Checkpoint(tmp_path / "other").identity != before


def test_experts_are_known_by_their_headers_alone(tmp_path: Path) -> None:
    """What the identity does not look at, so that 600 GB stay unread."""
    name, before = "model.layers.0.mlp.experts.3.up_proj.weight", Checkpoint(write(tmp_path / "it")).identity
    assert Checkpoint(write(tmp_path / "bytes", merged_lora(name))).identity == before
    other_shape = tensors() | {name: torch.zeros(64, 32)}
    assert Checkpoint(write(tmp_path / "shape", other_shape)).identity != before


def test_on_the_hub_a_commit_is_the_identity(tmp_path: Path) -> None:
    directory = write(tmp_path / "it")
    first, second = (Checkpoint(directory, hub=f"someone/model@{commit}") for commit in ("a1", "b2"))
    assert first.identity != second.identity
    assert first.identity == Checkpoint(write(tmp_path / "elsewhere"), hub="someone/model@a1").identity


def test_a_hub_checkpoint_fetches_a_file_when_a_tensor_in_it_is_read(tmp_path: Path) -> None:
    source, cache = write_shards(tmp_path / "source"), tmp_path / "cache"
    cache.mkdir()
    for name in ("config.json", INDEX):
        (cache / name).write_text((source / name).read_text())
    fetched = []

    def fetch(name: str) -> Path:
        fetched.append(name)
        (cache / name).write_bytes((source / name).read_bytes())
        return cache / name

    checkpoint = Checkpoint(cache, hub="someone/model@a1", fetch=fetch)
    assert len(checkpoint.file_of) == 5
    assert len(checkpoint.identity) == 64
    assert fetched == []
    assert torch.equal(checkpoint.tensor("lm_head.weight"), tensors()["lm_head.weight"])
    assert fetched == ["model-2-of-3.safetensors"]


def test_messages_hold_one_line_and_a_key_to_set(tmp_path: Path) -> None:
    """A sample of the above as a person meets it."""
    with pytest.raises(EyasError) as refused:
        facts_of(write(tmp_path / "it"), **{"config.hidden_size": {"config": "d_model"}})
    assert re.fullmatch(
        r"verifier it \(.*\): verifier\.config\.hidden_size: config\.json has no 'd_model' \(it has: .*\)",
        str(refused.value),
    )
