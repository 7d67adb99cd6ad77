"""Training beside its capture, whole, against a server without vLLM: the same draft as off-line, whatever is kept."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.capture.schema import Keep
from eyas.cli.train import capture, evaluate, fit
from eyas.config import Config
from eyas.data.store import StateStore
from eyas.evaluation.schema import Engine
from eyas.machines import Machines, gathered
from eyas.run import Run, read_metrics
from eyas.stages import states_artifact
from small_disk import fill, small_disk

TRAINING = (
    "evaluation=none",
    "data.max_length=128",
    "training.row_length=128",
    "training.epochs=null",
    "training.max_steps=12",
    "training.log_every_n_steps=1",
    "training.validate_every_n_steps=6",
    "training.checkpoint_every_n_steps=2",
    "capture.window_tokens=512",
    "server.retries=0",
)

MEASURED: dict[str, Any] = {"engine": Engine.transformers, "every_n_steps": 6, "num_prompts": 2, "max_tokens": 8}


def start(config: Config, name: str, keep: Keep | None = None) -> Run:
    """Train (and measure, where it is asked for), on-line where something is said about what is kept.

    As `train.py` does after its checks, which other tests make.
    """
    config.name, config.capture.online, config.capture.keep = name, keep is not None, keep or Keep.all
    run = Run.of(config)
    if keep is None:
        capture(config)
    with run.opened(config, [], []), gathered(run.directory, Machines.of({})) as alone:
        fit(config, run, alone)
        evaluate(config, run)
    return run


def learnt(run: Run) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """What training measured at each step, apart from times, and the draft."""
    timed = ("train/tokens_per_second", "train/data_wait_share")
    rows = [{key: value for key, value in row.items() if key not in timed} for row in read_metrics(run.metrics_file)]
    return rows, load_file(run.draft / "model.safetensors")


def test_the_same_draft_as_off_line(fake: Callable[..., tuple[Config, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    config, server = fake(*TRAINING)
    runs = [start(config, "none", Keep.none)]
    asked = [sum(server.sizes)]

    # The server fails, and the capture with it; the same command goes on from the newest checkpoint. Training and capture
    # end together where the draft is measured on the way, and go on together.
    unmeasured, config.evaluation = config.evaluation, replace(config.evaluation, **MEASURED)
    del server.sizes[:]
    server.spoil = lambda _, number, tensors: tensors if number < 20 else None
    with pytest.raises(SystemExit) as stopped:
        start(config, "window", Keep.window)
    assert stopped.value.code == 2
    assert "server.retries allows" in capfd.readouterr().err
    assert 0 < Run.of(config).trained_steps() < 12
    server.spoil = lambda _, __, tensors: tensors
    runs.append(start(config, "window", Keep.window))
    assert "resumes at step" in capfd.readouterr().out
    assert [runs[-1].measured_file(step).exists() for step in (6, 12)] == [True, False]
    assert runs[-1].evaluation()["draft"]["step"] == 12
    config.evaluation = unmeasured

    assert not states_artifact(config).exists()
    del server.sizes[:]
    runs.append(start(config, "all", Keep.all))
    of = sum(StateStore(states_artifact(config).directory).lengths)
    assert sum(server.sizes) == of < asked[0]

    del server.sizes[:]
    rows, draft = learnt(start(config, "off-line"))
    assert server.sizes == [], "a later run finds the states in the store"
    for run in runs:
        assert not run.window.exists()
        assert learnt(run)[0] == rows
        assert all(torch.equal(tensor, draft[name]) for name, tensor in learnt(run)[1].items())


def test_a_full_disk_is_one_line(
    fake: Callable[..., tuple[Config, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever of the two meets it first, and the same command carries on when there is room."""
    config, server = fake(*TRAINING)
    ballast = list[Path]()

    def something_else_fills_it(_: Any, number: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if number == 20:
            ballast.append(fill(disk))
        return tensors

    with small_disk(tmp_path / "disk") as disk:
        shutil.copytree(config.outputs, disk / "outputs")
        config.outputs, server.spoil = str(disk / "outputs"), something_else_fills_it
        with pytest.raises(SystemExit) as stopped:
            start(config, "run", Keep.none)
        assert stopped.value.code == 2
        said = capfd.readouterr().err
        lines = [line for line in said.splitlines() if line.startswith("eyas: ")]
        assert lines[0].startswith(f"eyas: error: the disk of {Run.of(config).directory}")
        assert "is full: make room there, and the same command carries on" in lines[0]
        assert "Traceback" not in said
        ballast[0].unlink()
        run = start(config, "run", Keep.none)
        assert "resumes at step" in capfd.readouterr().out
        assert run.trained_steps() == 12
