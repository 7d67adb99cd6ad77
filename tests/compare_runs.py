"""Runs on disk that nothing was trained for: what `eyas compare` reads, with numbers of the test's own."""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml

from eyas.cli.compose import compose
from eyas.config import Config, config_yaml
from eyas.evaluation.report import acceptance, of_prompt, report

Counts = Sequence[tuple[int, Sequence[int]]]
"""By prompt: forwards, and how many of them accepted position 1, 2, ..."""


def counts(seed: int, share: float, num_prompts: int = 12, k: int = 3, forwards: int = 30) -> Counts:
    """Of a draft whose every token is accepted with probability `share` + what the prompt adds, the same for every draft."""
    easy, chance = numpy.random.default_rng(0), numpy.random.default_rng(seed)
    found = []
    for _ in range(num_prompts):
        accepted = chance.geometric(1 - min(0.95, share + easy.uniform(-0.1, 0.1)), forwards) - 1
        found.append((forwards, [int((accepted > position).sum()) for position in range(k)]))
    return found


WriteRun = Callable[..., Path]


@cache
def composed(overrides: tuple[str, ...]) -> Config:
    """Composing takes as long as all else here together."""
    return compose(list(overrides), [])


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write a run of this name, composed with these overrides, measured with these counts (None: not measured)."""

    def write(
        name: str,
        *overrides: str,
        measured: Counts | None = None,
        cost: dict[str, Any] | None = None,
        weights: str = "f00d",
        tau_sim: float = 1.5,
    ) -> Path:
        config = replace(composed(overrides), name=name, outputs=f"{tmp_path}/outputs")
        directory = tmp_path / "outputs" / name
        (directory / "draft").mkdir(parents=True)
        (directory / "config.yaml").write_text(config_yaml(config))
        (directory / "identity.yaml").write_text(yaml.safe_dump({"data": {"tokens": "7070" * 16}}))
        spent = {"tokens": 30_000, "seconds": 61.0, "parameters": 7_450_560, "devices": 1} if cost is None else cost
        draft = {"run": name, "step": 20, "cost": spent}
        (directory / "draft" / "eyas.json").write_text(json.dumps(draft))
        columns = ["step", "train/loss", "val/loss", "val/acceptance_0", "val/acceptance_1", "val/tau_sim"]
        with (directory / "metrics.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(columns)
            for step in (10, 20):
                writer.writerow([step, 40 / step, "", "", "", ""])
                writer.writerow([step, "", 50 / step, 0.3, 0.1, tau_sim - (20 - step) / 100])
        if measured is not None:
            total = sum(forwards for forwards, _ in measured)
            joint = [sum(accepted[position] for _, accepted in measured) for position in range(len(measured[0][1]))]
            found = report(
                config,
                acceptance(total, joint),
                prompts=f"{config.data.name}, held out",
                num_prompts=len(measured),
                differences=[],
                tokens_per_second={"plain": 10.0, "speculative": 12.0},
                per_prompt=[of_prompt([number], 20, *of) for number, of in enumerate(measured)],
                verifier=weights,
                draft=draft,
            )
            (directory / "evaluation.json").write_text(json.dumps(found))
        return directory

    return write
