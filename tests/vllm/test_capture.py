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
from torch import Tensor

from eyas.capture.assembly import request
from eyas.capture.stage import capture, token_bytes
from eyas.capture.transformers import in_transformers
from eyas.capture.vllm import VllmEngine, in_vllm
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.data.store import StateStore
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.serving.client import send
from eyas.serving.server import serving
from eyas.stages import states_artifact, tokens_artifact
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.make import make_random
from served import vllm_config

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
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
"""Latent attention and a mixture of experts, small."""

LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    make_random(LLAMA, directory)
    return directory


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("deepseek")
    make_random(DEEPSEEK_V3, directory)
    file = directory / "config.json"
    # Without these two vLLM routes otherwise than the model does; transformers knows them and does not save them.
    file.write_text(json.dumps(json.loads(file.read_text()) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}))
    return directory


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Config]:
    """A configuration with its tokens: rows of 60 to 700, of which the long ones need several forwards."""
    file = tmp_path / "conversations.jsonl"
    with file.open("w") as lines:
        for n in range(60):
            text = f"{n} plus 7 is {n + 7}." + " Count on." * (60 if n % 12 == 0 else n % 12)
            turns = [{"role": "user", "content": f"What is {n} plus 7?"}, {"role": "assistant", "content": text}]
            lines.write(json.dumps({"messages": turns}) + "\n")

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
    killed: list[int] = []

    def kill() -> None:
        while not [*directory.glob("*.partial/shard-00001.safetensors")]:
            time.sleep(0.01)
        for process in psutil.Process().children(recursive=True):
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


def test_latent_attention_and_experts(prepared: Callable[..., Config], deepseek: Path) -> None:
    settings = ("capture.dtype=float32", "capture.tokens_per_batch=1024", "verifier.draft.head_dim=32")
    config = prepared(deepseek, "vllm", *settings)
    capture(config, in_vllm)
    assert_like_transformers(config, prepared(deepseek, "transformers", *settings), 1e-3)


def test_ids_minus_one_are_noticed(prepared: Callable[..., Config], llama: Path) -> None:
    """They come by an argument of the server's own, which wins."""
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4, 7]}},
    }
    config = prepared(llama, "vllm", "capture.dtype=float32")
    config.server.args = [*config.server.args, "--speculative-config", json.dumps(speculative)]
    with pytest.raises(EyasError, match=r"the server captures layers \[1, 3, 4, 7\], expected \[2, 4, 5, 8\]"):
        capture(config, in_vllm)
    assert not states_artifact(config).exists()
    assert not psutil.Process().children(recursive=True)


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


WRONG = {
    "norm.kind=rms_plus_one": "norm rms",
    "norm.kind=layernorm": "the teacher's logits",
    "post_head=[{op: softcap, by: {value: 30}}]": "without softcap 30",
    "post_head=[{op: multiply, by: {value: 0.5}}]": "without multiply 0.5",
}
"""Other readings of the same tensors, and the nearer one that the refusal names."""


def test_another_reading_and_throughput(
    tmp_path: Path, smollm2_checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real verifier. Throughput is that of the same vLLM which only prefills, with the same rows; the two take turns."""
    settings = [
        *("verifier=smollm2_135m", f"outputs={tmp_path}/outputs", "capture=vllm", "data.num_processes=1"),
        *("capture.dtype=float32", "capture.tokens_per_batch=512", "capture.tokens_per_shard=1024"),
        "data.responses=keep",
    ]
    prepare(compose(settings, []))
    server = vllm_config(max_length=512, max_in_flight=16)
    config = replace(compose(settings, []), server=server)
    tokens = Tokens(tokens_artifact(config).directory)
    rows = range(24)
    engine = VllmEngine(config, tokens, tmp_path)
    args = [
        "--dtype",
        "float32",
        "--max-num-batched-tokens",
        "512",
        "--max-num-seqs",
        "16",
        "--no-enable-prefix-caching",
    ]
    seconds: dict[str, list[float]] = {"plain": [], "capture": []}
    try:
        engine.start()
        print(engine.prove())
        for wrong, nearer in WRONG.items():
            engine.config = replace(compose([*settings, f"verifier.{wrong}"], []), server=server)
            with pytest.raises(EyasError, match="logits are not the verifier's own") as error:
                engine.prove()
            assert nearer in str(error.value)
        engine.config = config
        with serving(server, config.verifier, smollm2_checkpoint, log=tmp_path / "plain.log", args=args) as plain:
            for _ in range(3):
                sent = [request(row, tokens.row(row)[0]) for row in rows]
                seconds["plain"].append(timed(lambda sent=sent: list(send(plain, sent))))
                seconds["capture"].append(
                    timed(lambda: list(engine.shards({0: rows}, Progress("capture", None, "tokens"))))
                )
    finally:
        engine.stop()
    num_tokens = sum(tokens.lengths[row] for row in rows)
    plain_rate, rate = (num_tokens / min(seconds[key]) for key in ("plain", "capture"))
    with capsys.disabled():
        print(f"\ncapture {rate:.0f} tokens/s, plain prefill {plain_rate:.0f} tokens/s: {rate / plain_rate:.0%}")
    assert rate > 0.8 * plain_rate
