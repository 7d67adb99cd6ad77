"""A draft served beside its verifier: vLLM loads it, drafts with it, and says what plain decoding says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT
from eyas.draft.export import load_draft
from eyas.draft.raw import save_raw
from eyas.verifier.checkpoint import Checkpoint
from served import VLLM_ENVIRONMENT, vllm_config


def eyas(*arguments: str, code: int = 0) -> str:
    """Run a command of Eyas to its end; its output, or, where it is to fail, its one line."""
    done = subprocess.run(
        [sys.executable, "-m", "eyas.cli.main", *arguments], cwd=ROOT, text=True, capture_output=True, timeout=900
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stderr if code else done.stdout


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
        *("evaluation=vllm", "evaluation.dtype=float32", "evaluation.num_prompts=17", "evaluation.max_tokens=24"),
        *("evaluation.concurrency=[1,4]", "evaluation.length_buckets=[70,200]", *server_options()),
    )
    return outputs / "run"


def evaluation(run: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return report


def test_output_is_that_of_plain_decoding_and_everything_is_measured(run: Path) -> None:
    report = evaluation(run)
    assert report["num_identical"] == report["num_prompts"] == 17
    assert report["tau"] >= 1
    assert len(report["acceptance"]) == 3
    lengths = ("1 to 70 tokens", "71 to 200 tokens")  # and none of 201 or more
    settings = [(line["length"], line["k"], line["concurrency"]) for line in report["measured"]]
    assert settings == [(length, 3, concurrency) for length in lengths for concurrency in (1, 4)]
    assert all(line["tokens_per_second"][way] > 0 for line in report["measured"] for way in ("plain", "speculative"))
    for line in report["measured"]:
        assert len(line["per_prompt"]) == line["num_prompts"]
        if line["concurrency"] > 1:
            assert all("forwards" not in prompt for prompt in line["per_prompt"])
            continue
        forwards, accepted = (
            [of(prompt) for prompt in line["per_prompt"]]
            for of in (lambda prompt: prompt["forwards"], lambda prompt: sum(prompt["accepted"]))
        )
        assert line["tau"] == pytest.approx(1 + sum(accepted) / sum(forwards))
        for prompt, checks, drafts in zip(line["per_prompt"], forwards, accepted, strict=True):
            # The first token is the prompt's own; the last forward may go past the end.
            assert abs(1 + checks + drafts - prompt["tokens"]) <= line["k"] + 1
    assert report["verdict"][0].startswith("measured tau ")
    assert report["verdict"][1].startswith(("faster with the draft", "no faster with the draft"))
    assert report["verdict"][-1] == "output identical to plain greedy decoding (17/17)"


def test_transformers_measures_the_same_tau(run: Path) -> None:
    by_vllm = evaluation(run)
    options = ["evaluation.dtype=float32", "evaluation.num_prompts=17", "evaluation.max_tokens=24"]
    options += ["evaluation.concurrency=[1]", "evaluation.length_buckets=[]"]
    eyas("evaluate", str(run), "evaluation=transformers", *options)
    report = evaluation(run)
    assert report["setting"]["engine"] == "transformers"
    assert report["tau"] == pytest.approx(by_vllm["tau"], rel=0.03)


@pytest.fixture(scope="module")
def raw(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's draft in the raw format: what a stranger would hand over."""
    directory = tmp_path_factory.mktemp("hub") / "a_raw_draft"
    save_raw(load_draft(run / "draft", torch.float32, torch.device("cpu")), directory)
    return directory


def test_a_raw_draft_that_no_run_made_beside_a_new_fine_tune(run: Path, raw: Path, merged: Checkpoint) -> None:
    options = [f"outputs={run.parent}", "evaluation=vllm", "evaluation.dtype=float32", "evaluation.num_prompts=6"]
    options += ["evaluation.max_tokens=24", "evaluation.concurrency=[1]", *server_options()]
    printed = eyas("evaluate", str(raw), "verifier=tiny_llama", f"verifier.path={merged.directory}", *options)
    assert "raw Eagle3 format, layer ids [1, 2, 3], 128 tokens" in printed
    report = evaluation(run.parent / f"a_raw_draft-on-{merged.directory.name}")
    assert report["num_identical"] == report["num_prompts"] == 6
    assert report["draft"]["draft"] == str(raw)
    assert report["tau"] >= 1


def test_another_verifier_than_was_recorded_is_refused(run: Path, small: Checkpoint, merged: Checkpoint) -> None:
    recorded = [run.parent / "store" / f"canary-{it.identity[:16]}.json" for it in (small, merged)]
    recorded[0].write_text(recorded[1].read_text())  # as if these weights had been served when it was trained
    line = eyas("evaluate", str(run), "evaluation=vllm", *server_options(), code=2)
    assert "serves as tiny_llama something else than was recorded in" in line
