"""A real verifier, SmolLM2-135M: which readings its server refutes, and what capture costs beside plain prefill.

Run alone: whatever else uses the cores would be measured too.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from eyas.capture.assembly import request
from eyas.capture.vllm import VllmEngine
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.serving.client import send
from eyas.serving.schema import ServerConfig
from eyas.serving.server import Server, serving
from eyas.stages import tokens_artifact
from eyas.verifier.checkpoint import Checkpoint
from served import vllm_config

ROWS = range(10)
ROUNDS = 3
PREFILL = [
    *("--dtype", "float32", "--max-num-batched-tokens", "512", "--max-num-seqs", "16"),
    "--no-enable-prefix-caching",
]

WRONG = {
    "norm.kind=rms_plus_one": "norm rms",
    "norm.kind=layernorm": "the teacher's logits",
    "post_head=[{op: softcap, by: {value: 30}}]": "without softcap 30",
    "post_head=[{op: multiply, by: {value: 0.5}}]": "without multiply 0.5",
}
"""Other readings of the same tensors, and the nearer one that the refusal names."""


@pytest.fixture(scope="module")
def server_of_both() -> ServerConfig:
    return vllm_config(max_length=512, max_in_flight=16)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [
        *("verifier=smollm2_135m", f"outputs={tmp_path_factory.mktemp('outputs')}", "capture=vllm"),
        *("capture.dtype=float32", "capture.tokens_per_batch=512", "capture.tokens_per_shard=1024"),
        *("data.responses=keep", "data.num_processes=1"),
    ]


@pytest.fixture(scope="module")
def both(
    settings: list[str],
    server_of_both: ServerConfig,
    smollm2_checkpoint: Checkpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[VllmEngine, Server]]:
    """An engine that captures, and the same vLLM which only prefills; on two cores they start at the same time."""
    config = configured(settings, server_of_both)
    prepare(config)
    base = tmp_path_factory.mktemp("both")
    engine = VllmEngine(config, Tokens(tokens_artifact(config).directory), base)
    plain = serving(server_of_both, config.verifier, smollm2_checkpoint, log=base / "plain.log", args=PREFILL)
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(engine.start)
        try:
            with plain as server:
                starting.result()
                yield engine, server
        finally:
            starting.exception()  # waits: what was started must be stopped
            engine.stop()


def configured(settings: list[str], server: ServerConfig) -> Config:
    return replace(compose(settings, []), server=server)


@pytest.mark.parametrize("wrong", WRONG)
def test_another_reading_is_refused(
    wrong: str, both: tuple[VllmEngine, Server], settings: list[str], server_of_both: ServerConfig
) -> None:
    engine, _ = both
    right, engine.config = engine.config, configured([*settings, f"verifier.{wrong}"], server_of_both)
    try:
        with pytest.raises(EyasError, match="logits are not the verifier's own") as error:
            engine.prove()
    finally:
        engine.config = right
    assert WRONG[wrong] in str(error.value)


def test_the_right_reading_is_proven(both: tuple[VllmEngine, Server]) -> None:
    parity = both[0].prove()
    assert parity.argmax == 1.0
    assert parity.kl < 1e-3


def test_throughput_is_that_of_prefill(both: tuple[VllmEngine, Server], capsys: pytest.CaptureFixture[str]) -> None:
    """The same rows by both in turn; the best round of each."""
    engine, plain = both
    tokens = engine.tokens
    seconds: dict[str, list[float]] = {"plain": [], "capture": []}
    for _ in range(ROUNDS):
        sent = [request(row, tokens.row(row)[0]) for row in ROWS]
        seconds["plain"].append(timed(lambda sent=sent: list(send(plain, sent))))
        seconds["capture"].append(timed(lambda: list(engine.shards({0: ROWS}, Progress("capture", None, "tokens")))))
    num_tokens = sum(tokens.lengths[row] for row in ROWS)
    plain_rate, rate = (num_tokens / min(seconds[key]) for key in ("plain", "capture"))
    with capsys.disabled():
        print(f"\ncapture {rate:.0f} tokens/s, plain prefill {plain_rate:.0f} tokens/s: {rate / plain_rate:.0%}")
    assert rate > 0.8 * plain_rate


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
