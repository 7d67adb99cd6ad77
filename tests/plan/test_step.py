"""What is predicted of a training step's memory, against what a training takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.cli.compose import compose
from eyas.config import Config
from eyas.draft.shape import resolve_shape
from eyas.plan.fit import PYTHON, needed
from eyas.plan.published import published_facts
from eyas.plan.step import (
    RowLayout,
    StepMemory,
    step_memory,
)
from eyas.process import KEEPS_MEMORY

SIZED = ["verifier=kimi_k25", "data=none", "capture=transformers", "capture.dtype=float32", "trainer=cpu"]


def sized(hidden_size: int, intermediate_size: int, vocab_size: int, *overrides: str) -> list[str]:
    """A draft of these sizes, for a verifier that isn't there."""
    return [
        *SIZED,
        f"verifier.published.hidden_size={hidden_size}",
        f"verifier.published.vocab_size={vocab_size}",
        f"verifier.draft.intermediate_size={intermediate_size}",
        f"verifier.draft.num_attention_heads={hidden_size // 64}",
        f"verifier.draft.num_key_value_heads={hidden_size // 128}",
        "verifier.draft.head_dim=64",
        "training.compute_dtype=float32",
        "training.rows_per_step=1",
        "training.epochs=null",
        *overrides,
    ]


def predicted(config: Config) -> StepMemory:
    facts = published_facts(config.verifier)
    return step_memory(config, facts, resolve_shape(config, facts), RowLayout.full(config.training.row_length))


# Most of the first is weights, most of the second activations.
ROW = "data.max_length={0} training.row_length={0}"
WIDE = sized(
    2048,
    8192,
    16000,
    "draft.vocab_size=8000",
    *ROW.format(64).split(),
    "training.unroll_steps=2",
    "training.max_steps=2",
)
LONG = sized(
    128,
    8192,
    8000,
    "draft.vocab_size=2000",
    *ROW.format(2048).split(),
    "training.unroll_steps=7",
    "training.max_steps=1",
)


@pytest.mark.parametrize("overrides", [WIDE, LONG], ids=["wide", "long"])
def test_the_peak_is_predicted_within_15_percent(overrides: list[str]) -> None:
    command = [sys.executable, str(Path(__file__).with_name("measured.py")), *overrides]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **KEEPS_MEMORY, "OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])["peak"]
    assert measured > 1.5e9
    config = compose(overrides, [])
    parts = needed(config, predicted(config), server_bytes=0)
    assert sum(parts.values()) - parts[PYTHON] == pytest.approx(measured, rel=0.15)
