"""Capture with a real vLLM: the states of transformers, through whatever happens to the server on the way.

Shapes: T tokens, L captured layers and the last state, H hidden size.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from eyas.capture.stage import capture, token_bytes
from eyas.capture.transformers import in_transformers
from eyas.capture.vllm import in_vllm
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.data.store import StateStore
from eyas.errors import EyasError
from eyas.stages import states_artifact
from eyas.verifier.make import byte_tokenizer
from served import vllm_config
from talks import write_talks

LATENT_ATTENTION = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 8,
    "first_k_dense_replace": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
"""Kimi-K2.5's language model, small: DeepSeek-V3's latent attention and mixture of experts."""

VISION = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}

MEDIA = {
    "patch_size": 14,
    "merge_kernel_size": 2,
    "temporal_merge_kernel_size": 4,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""What vLLM reads of the image processor, even where it takes no images."""

AS_PUBLISHED = {
    "lm_head.": "language_model.lm_head.",
    "language_model.model.blocks.": "language_model.model.layers.",
    "model.mm_projector.": "mm_projector.",
}
"""Names that transformers saves, and those of the published weights."""

TEXT_ONLY = ["--trust-remote-code", "--limit-mm-per-prompt", '{"vision_chunk": 0}']


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the layout of Kimi-K2.5: a vision wrapper, `text_config`, `language_model.`, a head of its own."""
    directory = tmp_path_factory.mktemp("kimi")
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|endoftext|>", "<|media_pad|>"]})
    end = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    text = {**LATENT_ATTENTION, "model_type": "deepseek_v3", "vocab_size": len(tokenizer), **end}
    media = tokenizer.convert_tokens_to_ids("<|media_pad|>")
    config = AutoConfig.for_model(
        "kimi_k25", text_config=text, vision_config=VISION, image_token_id=media, tie_word_embeddings=False
    )
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(directory)
    tokenizer.save_pretrained(directory)

    saved = load_file(directory / "model.safetensors")
    save_file({published(key): weight for key, weight in saved.items()}, directory / "model.safetensors")
    stated = json.loads((directory / "config.json").read_text())
    stated["architectures"] = ["KimiK25ForConditionalGeneration"]
    # Without the last two vLLM routes otherwise than the model does; transformers knows them and does not save them.
    stated["text_config"] |= {"model_type": "kimi_k2", "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    (directory / "config.json").write_text(json.dumps(stated))
    (directory / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": MEDIA}))
    return directory


def published(key: str) -> str:
    old = next((start for start in AS_PUBLISHED if key.startswith(start)), "")
    return AS_PUBLISHED.get(old, "") + key.removeprefix(old)


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Config]:
    """A configuration with its tokens: rows of 60 to 700, of which the long ones need several forwards."""
    file = write_talks(tmp_path / "conversations.jsonl", 60)

    def composed(verifier: Path, engine: str, *overrides: str) -> Config:
        settings = [
            *("verifier=tiny_llama", f"verifier.path={verifier}", f"outputs={tmp_path}/outputs", f"capture={engine}"),
            *("data=demo", f"data.path={file}", "data.held_out=2", "data.num_processes=1", "data.max_length=700"),
            *("training.row_length=1024", "capture.tokens_per_shard=1200", "capture.tokens_per_batch=256"),
        ]
        config = compose([*settings, *overrides], [])
        prepare(config)
        return replace(config, server=vllm_config())

    return composed


def store_of(config: Config) -> StateStore:
    store = StateStore(states_artifact(config).directory)
    store.verify()
    return store


def states(store: StateStore) -> Tensor:
    """All states [T, L + 1, H]."""
    documents = [store.read(row) for row in range(len(store.lengths))]
    return torch.cat([torch.cat([it.hidden_TLH, it.last_TH[:, None]], 1) for it in documents]).float()


def error_of_layers(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the layer's largest activation."""
    return float(((ours - theirs).abs().amax((0, 2)) / theirs.abs().amax((0, 2))).max())


def assert_like_transformers(config: Config, alone: Config, tolerance: float) -> None:
    capture(alone, in_transformers)
    ours, theirs = store_of(config), store_of(alone)
    assert ours.lengths == theirs.lengths
    for row in range(len(ours.lengths)):
        one, other = ours.read(row), theirs.read(row)
        assert torch.equal(one.input_ids_T, other.input_ids_T)
        assert torch.equal(one.loss_mask_T, other.loss_mask_T)
    error = error_of_layers(states(ours), states(theirs))
    print(f"states differ by {error:.1e} of the layer's largest")
    assert error < tolerance
    shifted = error_of_layers(states(ours)[:, 1:], states(theirs)[:, :-1])
    assert shifted > 0.3, "so ids that are off would be seen here"


def processes() -> set[psutil.Process]:
    """All that this one has started, which may include another file's server."""
    return {*psutil.Process().children(recursive=True)}


@contextmanager
def watched(directory: Path) -> Iterator[list[int]]:
    """The bytes below a directory, measured all the time."""
    sizes, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            size = 0
            for file in directory.rglob("*"):
                try:
                    size += file.stat().st_size if file.suffix in (".safetensors", ".partial") and file.is_file() else 0
                except FileNotFoundError:
                    continue
            sizes.append(size)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


def test_float32_through_a_death_in_one_disk(
    prepared: Callable[..., Config], llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine of the server is killed after the second shard."""
    config = prepared(llama, "vllm", "capture.dtype=float32")
    config.server.max_in_flight = 4
    directory = states_artifact(config).directory.parent
    killed, others = list[int](), processes()

    def kill() -> None:
        while not [*directory.glob("*.partial/shard-00001.safetensors")]:
            time.sleep(0.01)
        for process in processes() - others:
            if "EngineCore" in " ".join(process.cmdline()):
                process.kill()
                killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    with watched(directory) as sizes:
        capture(config, in_vllm)
    killer.join()
    assert len(killed) == 1
    assert "capture  starts it again (1 of 3 times" in capsys.readouterr().out
    store = store_of(config)
    final = sum(store.lengths) * token_bytes(config)
    print(f"disk: {max(sizes) / final:.2f} times the store, over {len(sizes)} measurements")
    assert max(sizes) < 1.2 * final
    assert len(store.shards) > 5
    assert max(store.lengths) > 500
    assert_like_transformers(config, prepared(llama, "transformers", "capture.dtype=float32"), 1e-3)


def test_latent_attention_and_experts_in_a_vision_wrapper(prepared: Callable[..., Config], kimi: Path) -> None:
    sizes = json.loads((kimi / "config.json").read_text())["text_config"]
    settings = [
        *("verifier=kimi_k25", f"verifier.published.hidden_size={sizes['hidden_size']}", "verifier.draft.head_dim=32"),
        *("verifier.published.num_layers=8", f"verifier.published.vocab_size={sizes['vocab_size']}"),
        *("verifier.draft.num_attention_heads=4", "verifier.draft.num_key_value_heads=2"),
        *("verifier.draft.intermediate_size=256", "verifier.draft.layer_ids=null", "draft.vocab_size=null"),
        *(f"verifier.vllm.args={json.dumps(TEXT_ONLY)}", "data.responses=keep"),
        *("capture.dtype=float32", "capture.tokens_per_batch=1024"),
    ]
    config = prepared(kimi, "vllm", *settings)
    capture(config, in_vllm)
    assert_like_transformers(config, prepared(kimi, "transformers", *settings), 1e-3)


def test_ids_minus_one_are_noticed(prepared: Callable[..., Config], llama: Path) -> None:
    """They come by an argument of the server's own, which wins."""
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4, 7]}},
    }
    config = prepared(llama, "vllm", "capture.dtype=float32")
    config.server.args = [*config.server.args, "--speculative-config", json.dumps(speculative)]
    others = processes()
    with pytest.raises(EyasError, match=r"the server captures layers \[1, 3, 4, 7\], expected \[2, 4, 5, 8\]"):
        capture(config, in_vllm)
    assert not states_artifact(config).exists()
    assert processes() <= others, "the server is gone"
