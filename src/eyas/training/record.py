"""What a run leaves for people: metrics.csv, and a line every few steps."""

import csv
import io
import re
import time
from pathlib import Path
from typing import Any

import lightning
from lightning import Trainer
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from eyas.artifact import write_file
from eyas.data.verifier_tokens import VerifierTokens
from eyas.data.window import Window
from eyas.progress import duration
from eyas.run import read_metrics
from eyas.training.behind import OneBehind

WORTH_SAYING = 0.05
"""From this share of a step on, waiting for data is said."""


class MetricsCsv(Logger):
    """metrics.csv: a row per logged step. A resumed run drops what lies after its checkpoint and appends."""

    def __init__(self, file: Path, *, resume_step: int) -> None:
        super().__init__()
        self.file = file
        rows = [row for row in read_metrics(file) if row["step"] <= resume_step]
        self.columns = list(dict.fromkeys(["step", *(key for row in rows for key in row)]))
        self._rewrite(rows)

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @property
    @rank_zero_experiment
    def experiment(self) -> None:
        return None

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The configuration stands beside the file."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **{key: value for key, value in metrics.items() if key != "epoch"}}
        new = [key for key in row if key not in self.columns]
        if new:
            rows = read_metrics(self.file)
            self.columns += new
            self._rewrite(rows)
        with self.file.open("a", newline="") as stream:
            csv.DictWriter(stream, self.columns).writerow(row)

    @rank_zero_only
    def _rewrite(self, rows: list[dict[str, float]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(rows)
        write_file(self.file, text.getvalue())


class ProgressLines(lightning.Callback):
    """A plain line about every ten seconds, and one per validation."""

    def __init__(self, num_steps: int, every_seconds: float = 10.0) -> None:
        self.num_steps, self.every_seconds = num_steps, every_seconds

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self.first, self.started = trainer.global_step, time.monotonic()
        self.printed = self.started

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        now, step = time.monotonic(), trainer.global_step
        if not trainer.is_global_zero or (now - self.printed < self.every_seconds and step < self.num_steps):
            return
        self.printed = now
        values = trainer.callback_metrics
        left = (now - self.started) / (step - self.first) * (self.num_steps - step)
        waits = float(values["train/data_wait_share"])
        print(
            f"train    step {step}/{self.num_steps}  loss {values['train/loss']:.3f}  tau_sim {values['train/tau_sim']:.2f}  "
            f"{values['train/tokens_per_second']:,.0f} tokens/s  {duration(left)} left"
            f"{f'  waits for data {waits:.0%}' if waits >= WORTH_SAYING else ''}",
            flush=True,
        )

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.is_global_zero:
            values = trainer.callback_metrics
            joint = [values[key] for key in sorted(values) if re.fullmatch(r"val/acceptance_\d+", key)]
            shown = " ".join(f"{share:.3f}" for share in joint)
            losses = f"loss {values['val/loss']:.3f}  acceptance {shown}  tau_sim {values['val/tau_sim']:.3f}"
            print(f"validate step {trainer.global_step}  {losses}", flush=True)


class KeepsTokens(lightning.Callback):
    """Writes down what the verifier itself says at each target, as the training finds it: no pass searches for it again."""

    def __init__(self, tokens: VerifierTokens) -> None:
        self.tokens, self.found = tokens, OneBehind()

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        found, module.found_tokens = tuple(module.found_tokens), []
        self._keep(self.found.swap(found))

    def on_validation_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        self.on_train_batch_end(trainer, module)

    def on_validation_end(self, *_: Any) -> None:
        self._keep(self.found.rest())

    def on_train_end(self, *_: Any) -> None:
        self._keep(self.found.rest())

    def _keep(self, found: Any) -> None:
        for row, token_J in found or ():
            self.tokens.keep(row, token_J)


class HandsBack(lightning.Callback):
    """Tells the capture beside an on-line training how many steps are done: their states may go."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self.on_train_batch_end(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.is_global_zero:  # the step's collectives have seen every rank, so each has read its rows
            self.window.hand_back(trainer.global_step)
