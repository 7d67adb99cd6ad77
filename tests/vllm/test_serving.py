"""The server as a resource, with a real vLLM: it answers, is recognised, dies with its cause, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from conftest import made
from eyas.errors import EyasError
from eyas.serving.canary import check, difference, record
from eyas.serving.client import Request, send
from eyas.serving.metrics import speculation, total
from eyas.serving.server import ServerDiedError, serving
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig
from served import Served, server_config, survivors, vllm_config

# A stage of Eyas that serves a checkpoint until somebody ends it.
EYAS = """
import signal, sys, time
from pathlib import Path
from eyas.cli.compose import compose
from eyas.serving.server import serving
from eyas.verifier.checkpoint import Checkpoint
from served import WITH_WORKER, vllm_config
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
verifier = compose(["verifier=tiny_llama"], []).verifier
config = vllm_config(env=WITH_WORKER)
with serving(config, verifier, Checkpoint(Path(sys.argv[1])), log=Path(sys.argv[2]), args=["--dtype", "float32"]) as server:
    print("ENDPOINT", server.endpoints[0], flush=True)
    time.sleep(600)
"""


@contextmanager
def eyas(checkpoint: Checkpoint, log: Path) -> "Iterator[subprocess.Popen[str]]":
    """Eyas as a process that can be killed."""
    command = [sys.executable, "-c", EYAS, str(checkpoint.directory), str(log)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def completions(number: int, max_tokens: int = 8) -> list[Request]:
    body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return [Request(i, "/v1/completions", {"prompt": f"Number {i}", **body}) for i in range(number)]


def test_many_requests(served: Served) -> None:
    answers = {answer.key: answer.body for answer in send(served.server, completions(20))}
    assert {*answers} == {*range(20)}
    assert {body["usage"]["completion_tokens"] for body in answers.values()} == {8}
    page = served.server.metrics()[0]
    assert total(page, "vllm:generation_tokens_total") >= 160
    assert speculation(page).num_drafts == 0


def test_chat_and_rendering(served: Served) -> None:
    messages = {"messages": [{"role": "user", "content": "hi"}]}
    [chat] = send(served.server, [Request("chat", "/v1/chat/completions", {**messages, "max_tokens": 4})])
    assert chat.body["choices"][0]["message"]["role"] == "assistant"
    [rendered] = send(served.server, [Request("render", "/tokenize", messages)])
    assert rendered.body["count"] == len(rendered.body["tokens"]) > 2


def test_what_the_server_refuses_stops_at_once(served: Served) -> None:
    too_long = Request("long", "/v1/completions", {"prompt": "a" * 2000, "max_tokens": 4})
    with pytest.raises(EyasError, match=r"refuses request long: HTTP 400: .*1024"):
        list(send(served.server, [too_long]))


def test_a_server_that_hangs_is_given_up_and_goes_on_afterwards(served: Served) -> None:
    engine = engine_of(served)
    impatient = replace(served.server, config=replace(served.server.config, request_timeout=2, retries=1))
    engine.suspend()
    try:
        with pytest.raises(
            EyasError,
            match=r"request 0 was lost 2 times \(the last time: no answer in server\.request_timeout=2 seconds\), which is "
            r"all that server\.retries allows; .*raise server\.request_timeout",
        ):
            list(send(impatient, completions(1)))
    finally:
        engine.resume()
    assert {answer.key for answer in send(served.server, completions(3))} == {0, 1, 2}


def engine_of(served: Served) -> psutil.Process:
    """The process that computes for the API's."""
    assert served.server.guard is not None
    processes = psutil.Process(served.server.guard.pid).children(recursive=True)
    return next(process for process in processes if "EngineCore" in " ".join(process.cmdline()))


def test_port_taken_by_another_server(served: Served, tmp_path: Path) -> None:
    port = urlsplit(served.server.endpoints[0]).port
    with (
        pytest.raises(EyasError, match=rf"server.port={port} .* a server of tiny_llama answers there"),
        serving(vllm_config(port=port), served.verifier, served.checkpoint, log=tmp_path / "server.log"),
    ):
        pass


def test_canary_and_sigkill(served: Served, merged: Checkpoint, tmp_path: Path) -> None:
    """Another server, under the same name, with an adapter merged; then its Eyas is killed."""
    file = tmp_path / "canary.json"
    check(served.server, file)
    check(served.server, file)
    again, under_load = record(served.server)[0], []
    load = threading.Thread(target=lambda: under_load.extend(send(served.server, completions(30, 30))))
    load.start()
    time.sleep(0.3)
    assert difference(again, record(served.server)[0]) < 0.01, "the same weights, whatever else is in the batch"
    load.join()

    with eyas(merged, tmp_path / "server.log") as process:
        assert process.stdout is not None
        endpoint = next(line.split()[1] for line in process.stdout if line.startswith("ENDPOINT"))
        config = server_config("endpoints", endpoints=[endpoint])
        with serving(config, served.verifier, merged, log=tmp_path / "unused.log") as other:
            assert other.model == served.server.model
            with pytest.raises(EyasError, match=rf"^{endpoint} serves as tiny_llama something else than was recorded"):
                check(other, file)
        processes = psutil.Process(process.pid).children(recursive=True)
        assert len(processes) >= 4, "the guard, the server, its engine and its worker"
        process.send_signal(signal.SIGKILL)
        assert survivors(processes, 30) == []


def test_ctrl_c_while_it_starts(small: Checkpoint, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with eyas(small, log) as process:
        deadline = time.monotonic() + 60
        while "non-default args" not in (log.read_text() if log.exists() else "") and time.monotonic() < deadline:
            time.sleep(0.2)
        processes = psutil.Process(process.pid).children(recursive=True)
        assert len(processes) >= 2
        process.send_signal(signal.SIGINT)
        assert process.wait(40) != 0
        assert survivors(processes, 1) == []


def test_the_cause_of_a_failed_start(verifier: VerifierConfig, small: Checkpoint, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerDiedError, match=r"ended: .*ValidationError.*max_model_len \(99999\) is greater than"),
        serving(vllm_config(max_length=99999), verifier, small, log=tmp_path / "server.log"),
    ):
        pass


def test_the_cause_of_death_in_flight(verifier: VerifierConfig, tmp_path: Path) -> None:
    """The tiny verifier's heads of 8 have no kernel: vLLM starts, and dies at the first request."""
    tiny = made("verifier=tiny_llama")
    with serving(vllm_config(), verifier, tiny, log=tmp_path / "server.log") as server:
        with pytest.raises(ServerDiedError, match="RuntimeError: Unsupported CPU attention configuration: head_dim=8"):
            list(send(server, completions(4)))
        assert server.guard is not None
        assert server.guard.poll() is not None


def test_the_engine_is_killed_in_flight(served: Served) -> None:
    """The last of the last file that uses the shared server: afterwards it is gone."""
    guard, engine = served.server.guard, engine_of(served)
    assert guard is not None
    processes = psutil.Process(guard.pid).children(recursive=True)
    answers = []

    def kill_after_the_first() -> None:
        for answer in send(served.server, completions(200, 64)):
            answers.append(answer)
            with suppress(psutil.NoSuchProcess):  # more answers may have been on their way
                engine.kill()

    with pytest.raises(ServerDiedError, match="tiny_llama ended: one of its processes was killed or crashed"):
        kill_after_the_first()
    assert len(answers) < 200
    assert survivors(processes, 1) == []
