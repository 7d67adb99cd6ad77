"""What goes out with a draft, tried: the line of its README as it is written, and its config by vLLM's own class."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from conftest import run as run_python
from eyas.cli.compose import compose
from eyas.doctor.draft_checks import as_vllm_reads, examine_export, judge_vllm_config, read_by_vllm, server_python
from eyas.doctor.findings import Verdict
from eyas.draft.build import exported_config
from eyas.serving.metrics import speculation
from eyas.verifier.checkpoint import Checkpoint
from served import VLLM_ENVIRONMENT, vllm_config

PLAIN = ["draft.norm_before_residual=false", "draft.norm_before_fc=false", "draft.norm_output=false"]


@pytest.fixture(scope="module")
def run(small: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of a few steps in both formats, measured in transformers."""
    outputs = tmp_path_factory.mktemp("outputs")
    done = run_python(
        *("train.py", "verifier=tiny_llama", f"verifier.path={small.directory}", f"outputs={outputs}", "name=run"),
        *("training.max_steps=10", "training.epochs=null", "data.num_processes=1", "draft.layer_ids=[1,2,3]"),
        *("evaluation.num_prompts=2", "evaluation.max_tokens=8", "export.formats=[vllm,sglang]", *PLAIN),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return outputs / "run"


@contextmanager
def serving(words: list[str], directory: Path, log: Path) -> Iterator[str]:
    """The address of what the README's line serves, in a directory; only the program and what a CPU needs are changed."""
    assert words[:2] == ["vllm", "serve"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for_cpu = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512", "--enforce-eager"]
    command = [*vllm_config().command, *words[2:], *for_cpu]
    environment = {**os.environ, **VLLM_ENVIRONMENT}
    with log.open("w") as stream:
        server = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 240
    try:
        while not is_healthy(url):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_the_line_of_the_readme_serves_the_draft(run: Path, small: Checkpoint, tmp_path: Path) -> None:
    card = (run / "draft" / "README.md").read_text()
    found = re.search(r"```bash\n(.*)\n```", card)
    assert found is not None
    words = shlex.split(found[1])
    assert words[2] == str(small.directory)
    assert json.loads(words[-1]) == {"method": "eagle3", "model": ".", "num_speculative_tokens": 3}
    with serving(words, run / "draft", tmp_path / "server.log") as url:
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        asked = {"model": model, "prompt": [5, 6, 7, 8], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60).json()
        drafted = speculation(httpx.get(f"{url}/metrics").text)
    assert answer["usage"]["completion_tokens"] == 8
    assert drafted.num_drafts > 0
    measured = json.loads((run / "evaluation.json").read_text())
    assert f"| {measured['tau']:.2f} |" in card


def test_vllm_reads_the_config_as_it_is_meant(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = compose(["verifier=tiny_llama"], [])
    config.server = vllm_config()
    row = {it.name: it for it in examine_export(config)}["p51_vllm_config"]
    assert row.verdict is Verdict.ok, row.found
    assert "vLLM reads layers [2, 4, 5]" in row.found

    exported_config(config).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": settings.pop("eagle_aux_hidden_state_layer_ids")}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    python, wanted = server_python(config), as_vllm_reads(config)
    assert python is not None
    row = judge_vllm_config(wanted, read_by_vllm(python, tmp_path, wanted)[0])
    assert row.verdict is Verdict.fail
    assert row.found == "vLLM reads eagle_aux_hidden_state_layer_ids=None"
