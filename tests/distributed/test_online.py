"""Training beside its capture, whole, against a server without vLLM: the same draft as off-line, whatever is kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.cli.compose import Composed
from eyas.cli.train import train
from eyas.config import Config, Keep
from eyas.data.store import StateStore
from eyas.run import Run, read_metrics
from eyas.stages import states_artifact

TRAINING = (
    "evaluation=none",
    "data.max_length=128",
    "training.row_length=128",
    "training.epochs=null",
    "training.max_steps=12",
    "training.log_every_n_steps=1",
    "training.validate_every_n_steps=4",
    "training.checkpoint_every_n_steps=2",
    "capture.window_tokens=512",
    "server.retries=0",
)


def start(config: Config, name: str, keep: Keep | None = None) -> Run:
    """Train, on-line where something is said about what is kept."""
    config.name, config.capture.online, config.capture.keep = name, keep is not None, keep or Keep.all
    train(Composed(config, [], []))
    return Run.of(config)


def learnt(run: Run) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """What training measured at each step, apart from times, and the draft."""
    timed = ("train/tokens_per_second", "train/data_wait_share")
    rows = [{key: value for key, value in row.items() if key not in timed} for row in read_metrics(run.metrics_file)]
    return rows, load_file(run.draft / "model.safetensors")


def test_the_same_draft_as_off_line(fake: Callable[..., tuple[Config, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    config, server = fake(*TRAINING)
    runs = [start(config, "none", Keep.none)]
    asked = [sum(server.sizes)]

    # The server fails, and the capture with it; the same command goes on from the newest checkpoint.
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
