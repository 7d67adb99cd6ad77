"""`python train.py` as a person uses it: once through, again, longer, stage by stage, with another logger."""

import csv
import json
import shutil
import time
from pathlib import Path

import pytest
import yaml

from conftest import OPTIONS, run, train
from eyas.compare.read import read_entries
from eyas.compare.table import compare_entries
from eyas.compare.wandb_runs import offline_files
from eyas.run import read_metrics


def test_what_a_person_sees(outputs: Path) -> None:
    lines = (outputs / "printed").read_text().splitlines()
    assert lines[-2].startswith("measured tau ")
    assert lines[-2].endswith("(k=3, T=0, transformers, float32)")
    assert lines[-1] == "output identical to plain greedy decoding (4/4)"
    for word in ("tokens ", "capture", "train ", "validate", "export", "tau_sim", "vllm serve"):
        assert any(word in line for line in lines), word


def test_what_a_run_leaves(outputs: Path) -> None:
    directory = outputs / "run"
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert (config["name"], config["training"]["unroll_steps"]) == ("run", 3)
    with (directory / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["step"]) for row in rows if row["val/tau_sim"]] == [10, 20, 30, 33]
    assert [int(row["step"]) for row in rows if row["train/loss"]] == [5, 10, 15, 20, 25, 30, 33]
    for column in ("val/acceptance_0", "val/acceptance_cond_2", "train/tokens_per_second", "train/data_wait_share"):
        assert column in rows[0]
    report = json.loads((directory / "evaluation.json").read_text())
    assert report["setting"]["k"] == 3
    assert report["tau"] == pytest.approx(1 + sum(report["acceptance"]))
    assert report["why"]["starts"]["walked"]["acceptance"] == report["acceptance"]
    for text in ("![training](training.png)", "held-out answers: tau_sim |", "chains start: the measured tau |"):
        assert text in (directory / "report.md").read_text()
    assert (directory / "training.png").stat().st_size > 10_000
    exported = {path.name for path in (directory / "draft").iterdir()}
    assert exported == {"README.md", "config.json", "eyas.json", "model.safetensors"}
    assert f"| {report['tau']:.2f} |" in (directory / "draft" / "README.md").read_text()
    assert [path.name for path in sorted((directory / "checkpoints").iterdir())] == ["step-00000030", "step-00000033"]
    assert not list(outputs.rglob("*.partial"))


def test_the_same_command_again_says_so_in_seconds(outputs: Path) -> None:
    before = (outputs / "run" / "checkpoints" / "step-00000033" / "manifest.json").stat().st_mtime_ns
    started = time.monotonic()
    done = train(outputs)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 10
    assert "already trained" in done.stdout
    assert done.stdout.splitlines()[-2:] == (outputs / "printed").read_text().splitlines()[-2:]
    assert (outputs / "run" / "checkpoints" / "step-00000033" / "manifest.json").stat().st_mtime_ns == before


def test_a_longer_run_continues(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs, tmp_path / "outputs")
    done = train(tmp_path / "outputs", "training.max_steps=36", "evaluation=none")
    assert done.returncode == 0, done.stderr
    assert "resumes at step 33: 36 steps" in done.stdout
    before, after = (
        json.loads((tmp_path / "outputs/run/checkpoints" / f"step-000000{step}" / "manifest.json").read_text())["cost"]
        for step in (33, 36)
    )
    assert after["tokens"] > before["tokens"] > 0
    assert after["seconds"] > before["seconds"]
    assert json.loads((tmp_path / "outputs/run/draft/eyas.json").read_text())["cost"] == after


def test_stages_alone_and_evaluation_in_another_setting(outputs: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(outputs, tmp_path / "outputs")
    for stage in ("prepare", "capture"):
        done = run("-m", "eyas.cli.main", stage, *OPTIONS, f"outputs={directory}")
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("states ")
    done = run("-m", "eyas.cli.main", "evaluate", str(directory / "run"), "evaluation.k=2", "evaluation.num_prompts=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "output identical to plain greedy decoding (2/2)"
    assert "(k=2, T=0, transformers, float32)" in done.stdout
    done = run("-m", "eyas.cli.main", "evaluate", str(directory / "run"), "draft.num_layers=2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "that would be another run" in done.stderr


def test_the_same_name_with_another_identity(outputs: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in (outputs / "run").rglob("*"))
    done = train(outputs, "optimizer.lr=5e-4", "seed=1")
    assert done.returncode == 2
    assert done.stderr == (
        f"eyas: error: {outputs}/run holds another run (optimizer.lr: 0.001 there, 0.0005 now; seed: 0 there, 1 now); "
        "start this one anew with name=run-2\n"
    )
    assert sorted((path, path.stat().st_mtime_ns) for path in (outputs / "run").rglob("*")) == before


def test_wandb_off_line_compiled_in_bfloat16(outputs: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(outputs / "store", tmp_path / "store")).parent
    short = ["name=w", "group=trials", "training.max_steps=5", "evaluation.num_prompts=6"]
    options = ["logger=wandb_offline", "logger.wandb.log_model=true", "server.env={HF_TOKEN: not-for-others}"]
    done = train(directory, *short, *options, "training.compute_dtype=bfloat16", "training.compile=true")
    assert done.returncode == 0, done.stderr
    # The same data and seed, on another schedule: about the same loss.
    in_float32, in_bfloat16 = (
        read_metrics(root / name / "metrics.csv") for root, name in ((outputs, "run"), (directory, "w"))
    )
    assert in_bfloat16[0]["train/loss"] == pytest.approx(in_float32[0]["train/loss"], rel=0.05)
    files = offline_files(directory / "w")
    assert len(files) == 2  # the training's, and what was known after the evaluation
    content = b"".join(file.read_bytes() for file in files)
    for text in (b"trials", b"tiny_llama", b"unroll_steps", b"train/tau_sim", b"measured/acceptance_3", b"model"):
        assert text in content, text
    assert b"not-for-others" not in content
    assert (directory / "w" / "metrics.csv").exists()

    # Off line or from its directory, it is the same run with the same numbers.
    [local], [logged] = (read_entries([str(directory / place)]) for place in ("w", "w/wandb"))
    assert (logged.evaluation["tau"], logged.evaluation["per_prompt"]) == (
        local.evaluation["tau"],
        local.evaluation["per_prompt"],
    )
    assert (logged.metrics, logged.cost, logged.tokens) == (local.metrics, local.cost, local.tokens)
    [table] = compare_entries([local, logged]).tables
    assert [row.behind for row in table.rows] == [0, 0]
    assert table.keys == []

    again = train(directory, *short, *options, "training.compute_dtype=bfloat16", "training.compile=true")
    assert again.returncode == 0, again.stderr
    assert offline_files(directory / "w") == files, "what has been said is not said again"
