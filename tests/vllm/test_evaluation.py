"""A draft served beside its verifier: vLLM loads it, drafts with it, and says what plain decoding says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from eyas.verifier.checkpoint import Checkpoint
from served import VLLM_ENVIRONMENT, vllm_config


def eyas(*arguments: str) -> str:
    """Run a command of Eyas to its end; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "eyas.cli.main", *arguments], cwd=ROOT, text=True, capture_output=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def server_options() -> list[str]:
    command = ",".join(vllm_config().command)
    environment = ",".join(f"{key}:'{value}'" for key, value in VLLM_ENVIRONMENT.items())
    return ["server=cpu", f"server.command=[{command}]", f"server.env={{{environment}}}", "server.max_length=1024"]


@pytest.fixture(scope="module")
def run(small: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of a few steps, measured by vLLM at the end of its training."""
    outputs = tmp_path_factory.mktemp("outputs")
    eyas(
        *("train", "verifier=tiny_llama", f"verifier.path={small.directory}", f"outputs={outputs}", "name=run"),
        *("training.max_steps=20", "training.epochs=null", "draft.layer_ids=[1,2,3]"),
        *("evaluation=vllm", "evaluation.dtype=float32", "evaluation.num_prompts=6", "evaluation.max_tokens=24"),
        *("evaluation.concurrency=[1,4]", *server_options()),
    )
    return outputs / "run"


def evaluation(run: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return report


def test_output_is_that_of_plain_decoding_and_everything_is_measured(run: Path) -> None:
    report = evaluation(run)
    assert report["num_identical"] == report["num_prompts"] == 6
    assert report["tau"] >= 1
    assert len(report["acceptance"]) == 3
    assert {(line["k"], line["concurrency"]) for line in report["measured"]} == {(3, 1), (3, 4)}
    assert all(line["tokens_per_second"][way] > 0 for line in report["measured"] for way in ("plain", "speculative"))
    assert report["verdict"][0].startswith("measured tau ")
    assert report["verdict"][1].startswith(("faster with the draft", "no faster with the draft"))
    assert report["verdict"][-1] == "output identical to plain greedy decoding (6/6)"


def test_transformers_measures_the_same_tau(run: Path) -> None:
    by_vllm = evaluation(run)
    options = ["evaluation.dtype=float32", "evaluation.num_prompts=6", "evaluation.max_tokens=24"]
    options += ["evaluation.concurrency=[1]"]
    eyas("evaluate", str(run), "evaluation=transformers", *options)
    report = evaluation(run)
    assert report["setting"]["engine"] == "transformers"
    assert report["tau"] == pytest.approx(by_vllm["tau"], rel=0.03)
