"""The command, its environment, and servers that do not come up: real processes, without vLLM."""

import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from eyas.config import Config
from eyas.errors import EyasError
from eyas.process import KEEPS_MEMORY
from eyas.serving.command import command_line, environment_of
from eyas.serving.schema import ServerConfig
from eyas.serving.server import ServerDiedError, inherited, serving
from eyas.verifier.checkpoint import Checkpoint
from served import http_server, server_config

Tiny = Callable[..., Config]


def python(code: str, **changes: object) -> ServerConfig:
    """A server that is this Python program."""
    return server_config(command=[sys.executable, "-c", code], **changes)


def test_command_of_a_large_verifier(tiny: Tiny, tiny_checkpoint: Checkpoint) -> None:
    verifier = tiny("verifier.vllm.args=[--trust-remote-code]", "verifier.chat.template=chat.jinja").verifier
    config = server_config(
        tensor_parallel=4,
        data_parallel=2,
        expert_parallel=True,
        kv_cache_dtype="fp8",
        max_length=8192,
        args=["--seed", "1"],
    )
    command = command_line(config, verifier, tiny_checkpoint, args=["--max-num-seqs", "8"], port=8000)
    assert command == [
        *("vllm", "serve", str(tiny_checkpoint.directory), "--served-model-name", "tiny_llama"),
        *("--host", "127.0.0.1", "--port", "8000", "--tensor-parallel-size", "4", "--data-parallel-size", "2"),
        *("--enable-expert-parallel", "--gpu-memory-utilization", "0.9", "--kv-cache-dtype", "fp8"),
        *("--max-model-len", "8192", "--chat-template", "chat.jinja"),
        *("--trust-remote-code", "--max-num-seqs", "8", "--seed", "1"),
    ]


def test_hub_verifier_is_served_at_its_commit(tiny: Tiny, tiny_checkpoint: Checkpoint) -> None:
    checkpoint = replace(tiny_checkpoint, hub="owner/name@0123abc")
    command = command_line(server_config(memory_share=None), tiny().verifier, checkpoint, port=1)
    assert command[:5] == ["vllm", "serve", "owner/name", "--revision", "0123abc"]


def test_environment(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = tiny().verifier
    verifier.vllm.env = {"A": "verifier", "B": "verifier", "C": "verifier"}
    config = server_config(gpus=[2, 3], tensor_parallel=2, env={"C": "server"})
    made = environment_of(config, verifier, {"B": "stage", "C": "stage"})
    assert made == {"CUDA_VISIBLE_DEVICES": "2,3", "A": "verifier", "B": "stage", "C": "server"}

    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", KEEPS_MEMORY["MALLOC_TRIM_THRESHOLD_"])
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1234")
    passed_on = inherited("/opt/vllm/bin/vllm")
    assert not {"TORCHDYNAMO_DISABLE", "LOCAL_RANK", "MALLOC_TRIM_THRESHOLD_"} & {*passed_on}
    assert passed_on["MALLOC_MMAP_THRESHOLD_"] == "1234", "the user's own"
    assert passed_on["MINE"] == "1"
    assert passed_on["PATH"].startswith("/opt/vllm/bin:")


def test_no_such_program(tiny: Tiny, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = server_config(command=["/no/such/vllm", "serve"])
    with (
        pytest.raises(EyasError, match="there is no program /no/such/vllm; install vLLM"),
        serving(config, tiny().verifier, tiny_checkpoint, log=tmp_path / "server.log"),
    ):
        pass


def test_it_dies_at_start(tiny: Tiny, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    log = tmp_path / "run" / "server.log"
    log.parent.mkdir()
    log.write_text("ValueError: of an earlier server\n")
    config = python("raise RuntimeError('CUDA out of memory')")
    with (
        pytest.raises(ServerDiedError, match=r"ended: RuntimeError: CUDA out of memory; its whole log: .*server\.log"),
        serving(config, tiny().verifier, tiny_checkpoint, log=log),
    ):
        pass
    assert log.read_text().startswith("ValueError: of an earlier server\n"), "an earlier log is kept"


def test_it_never_answers(
    tiny: Tiny,
    tiny_checkpoint: Checkpoint,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eyas.serving.server.PROGRESS_SECONDS", 1.0)
    config = python("import time; print('loading', flush=True); time.sleep(60)", startup_timeout=3)
    with (
        pytest.raises(
            EyasError, match=r"does not answer after server.startup_timeout=3 seconds; its last line: loading"
        ),
        serving(config, tiny().verifier, tiny_checkpoint, log=tmp_path / "server.log"),
    ):
        pass
    assert ": loading\n" in capsys.readouterr().out


def test_port_taken(tiny: Tiny, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.settimeout(0)
        port = taken.getsockname()[1]
        with (
            pytest.raises(EyasError, match=rf"server.port={port} .* \(Address already in use\)"),
            serving(server_config(port=port), tiny().verifier, tiny_checkpoint, log=tmp_path / "server.log"),
        ):
            pass


def test_nothing_at_the_endpoint(tiny: Tiny, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with (
        pytest.raises(EyasError, match=rf"server.endpoints: {url} does not answer \(connection refused\)"),
        serving(server_config("endpoints", endpoints=[url]), tiny().verifier, tiny_checkpoint, log=tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize(
    ("served", "model", "wanted"),
    [
        (["other"], None, "other"),  # its only one; the canary decides whether it is the verifier
        (["adapter", "tiny_llama"], None, "tiny_llama"),
        (["adapter", "base"], "base", "base"),
        (["adapter", "base"], None, None),
        (["adapter", "base"], "mine", None),
    ],
)
def test_the_name_at_the_endpoint(
    served: list[str], model: str | None, wanted: str | None, tiny: Tiny, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with http_server(lambda *_: (200, {"data": [{"id": name} for name in served]})) as url:
        config = server_config("endpoints", endpoints=[url + "/"], model=model)
        if wanted is None:
            with (
                pytest.raises(EyasError, match=f"serves adapter, base, and not {model or 'tiny_llama'}"),
                serving(config, tiny().verifier, tiny_checkpoint, log=tmp_path / "log"),
            ):
                pass
            return
        with serving(config, tiny().verifier, tiny_checkpoint, log=tmp_path / "log") as server:
            assert (server.model, server.endpoints) == (wanted, [url])
