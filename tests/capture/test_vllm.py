"""The whole stage against a server without vLLM: the same store as transformers writes, whatever goes wrong on the way."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import eyas.capture.vllm
from eyas.artifact import read_manifest
from eyas.capture.stage import capture
from eyas.capture.transformers import in_transformers
from eyas.capture.vllm import RESTARTS, in_vllm
from eyas.config import Config
from eyas.data.store import StateStore
from eyas.errors import EyasError
from eyas.serving.server import ServerDiedError
from eyas.stages import canary_file, parity_file, states_artifact

Fake = Callable[..., tuple[Config, Any]]


def shards(config: Config) -> dict[str, bytes]:
    directory = states_artifact(config).directory
    StateStore(directory).verify()
    return {file.name: file.read_bytes() for file in sorted(directory.glob("shard-*"))}


def lose(*numbers: int) -> Callable[..., dict[str, Tensor] | None]:
    return lambda fake, number, tensors: None if number in numbers else tensors


def test_both_engines_write_the_same_store(fake: Fake, captured: Callable[..., Config]) -> None:
    config, server = fake()
    capture(config, in_vllm)
    alone = captured("capture=transformers", "capture.tokens_per_shard=300")
    capture(alone, in_transformers)
    ours, theirs = (StateStore(states_artifact(one).directory) for one in (config, alone))
    assert ours.lengths == theirs.lengths
    assert [shard["lengths"] for shard in ours.shards] == [shard["lengths"] for shard in theirs.shards]
    assert len(ours.shards) > 3
    for row in range(len(ours.lengths)):
        for one, other in zip(vars(ours.read(row)).values(), vars(theirs.read(row)).values(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    mine, its = (read_manifest(states_artifact(one).directory) for one in (config, alone))
    assert mine["fields"]["capture"]["engine"] == "vllm"
    assert mine.keys() == its.keys()
    assert parity_file(config).exists()
    assert canary_file(config).exists()
    assert sorted(server.sizes) == sorted(ours.lengths)
    assert len([*server.directory.glob("*.safetensors")]) == 3, (
        "of the canary's prompts, in a directory that isn't Eyas's"
    )
    assert not [file for file in states_artifact(config).directory.iterdir() if file.is_dir()]


def test_it_goes_on_after_the_last_whole_shard(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(server: Any, number: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if number == 12:
            tensors["hidden_states"][2] = float("nan")
        return tensors

    config, server = fake("server.max_in_flight=2", spoil=stop)
    with pytest.raises(EyasError, match="not finite"):
        capture(config, in_vllm)
    partial = states_artifact(config).directory.with_suffix(".partial")
    before = {file.name: file.read_bytes() for file in partial.glob("shard-*")}
    assert before
    (partial / "engine").mkdir(exist_ok=True)
    (partial / "engine" / "left.safetensors").touch()
    server.sizes.clear()
    server.spoil = lose()
    capture(config, in_vllm)
    assert "resumes after" in capsys.readouterr().out
    after = shards(config)
    assert before.items() < after.items()
    assert sum(server.sizes) < sum(StateStore(states_artifact(config).directory).lengths)
    assert not (states_artifact(config).directory / "engine").exists()


def test_lost_files_are_asked_for_again(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    config, server = fake(spoil=lose(2, 3, 7))
    capture(config, in_vllm)
    assert len(server.sizes) == len(StateStore(states_artifact(config).directory).lengths) + 3
    assert capsys.readouterr().out.count("is asked for again") == 3


def test_but_not_for_ever(fake: Fake) -> None:
    config, _ = fake("server.retries=2", spoil=lambda *_: None)
    with pytest.raises(
        EyasError, match=r"were lost 3 times, which is all that server\.retries allows: .* is not there"
    ):
        capture(config, in_vllm)


@pytest.mark.parametrize(
    ("key", "wrong", "message"),
    [
        ("hidden_states", lambda it: it[:, :-1], "states of shape"),
        ("token_ids", lambda it: it[:-3], "captured other tokens"),
    ],
)
def test_a_wrong_answer_stops_at_once(key: str, wrong: Any, message: str, fake: Fake) -> None:
    def spoil(_: Any, number: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | ({key: wrong(tensors[key]).contiguous()} if number == 5 else {})

    config, server = fake("server.max_in_flight=1", spoil=spoil)
    with pytest.raises(EyasError, match=message):
        capture(config, in_vllm)
    assert len(server.sizes) == 5
    assert not states_artifact(config).exists()


def test_rows_longer_than_the_server_takes_are_not_sent(fake: Fake) -> None:
    config, server = fake(max_model_len=60)
    with pytest.raises(EyasError, match=r"rows are longer than the server takes: .* max_model_len=60 of http"):
        capture(config, in_vllm)
    assert server.sizes == []


@pytest.mark.parametrize(
    ("overrides", "logits"),
    [
        (["verifier.norm.kind=rms_plus_one"], lambda logits: logits),
        (["verifier.norm.kind=layernorm"], lambda logits: logits),
        ([], lambda logits: torch.tanh(logits / 3) * 3),
        ([], lambda logits: logits * 1.05),
    ],
    ids=["1 + w", "LayerNorm", "forgotten softcap", "forgotten scale"],
)
def test_another_reading_is_refused(overrides: list[str], logits: Any, fake: Fake) -> None:
    config, server = fake(*overrides, logits=logits)
    with pytest.raises(EyasError, match="the teacher's logits are not the verifier's own"):
        capture(config, in_vllm)
    assert server.sizes == []


def test_the_last_layer_one_lower_is_refused(fake: Fake) -> None:
    config, server = fake()
    server.tap._modules[-1] = server.tap._modules[2]
    with pytest.raises(EyasError, match="the teacher's logits are not the verifier's own"):
        capture(config, in_vllm)


def test_a_new_reading_is_proved_without_a_second_capture(fake: Fake) -> None:
    config, server = fake()
    capture(config, in_vllm)
    parity_file(config).unlink()
    server.sizes.clear()
    capture(config, in_vllm)
    assert parity_file(config).exists()
    assert server.sizes == []


def test_a_full_disk_is_seen_before(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    config, server = fake()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**5))
    with pytest.raises(EyasError, match=r"tokens take .* GB \(512 bytes a token\), and 0\.0 GB are free in "):
        capture(config, in_vllm)
    assert server.sizes == []


class Mortal:
    """A server that Eyas started and that ends at the n-th row, for each of `deaths`."""

    def __init__(self, *deaths: int) -> None:
        self.deaths = [*deaths]
        self.code: int | None = None
        self.starts = 0

    def poll(self) -> int | None:
        return self.code

    def spoil(self, _: Any, number: int, tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
        if self.deaths and number >= self.deaths[0]:
            self.deaths.pop(0)
            self.code = 1
        return None if self.code else tensors

    @contextmanager
    def serving(self, config: Any, verifier: Any, checkpoint: Any, *, log: Path, args: Any, env: Any) -> Iterator[Any]:
        self.starts += 1
        self.code = None
        log.write_text("Using auxiliary layers from speculative config: (2, 4, 5, 8)\nRuntimeError: out of luck\n")
        server = eyas.capture.vllm.Server(verifier.name, config.endpoints, config)
        yield replace(server, guard=self, log=log)


@pytest.fixture
def mortal(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Config, Mortal]]:
    def started(*deaths: int) -> tuple[Config, Mortal]:
        server = Mortal(*deaths)
        config, _ = fake("server.max_in_flight=3", "server.retries=0", spoil=server.spoil)
        monkeypatch.setattr("eyas.capture.vllm.serving", server.serving)
        return config, server

    return started


def test_a_server_that_dies_is_started_again(mortal: Any, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    config, server = mortal(4, 9)
    capture(config, in_vllm)
    assert server.starts == 3
    assert "ended: RuntimeError: out of luck" in capsys.readouterr().out
    died = shards(config)
    shutil.rmtree(states_artifact(config).directory)
    config, server = mortal()
    capture(config, in_vllm)
    assert server.starts == 1
    assert died == shards(config)


def test_a_server_that_always_dies_is_given_up(mortal: Any) -> None:
    config, server = mortal(*range(1, 20))
    with pytest.raises(ServerDiedError, match="out of luck"):
        capture(config, in_vllm)
    assert server.starts == 1 + RESTARTS
