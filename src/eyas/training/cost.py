"""What a training has taken so far, written into each checkpoint: so that drafts can be compared at what they cost."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import lightning
from lightning import Trainer

from eyas.data.plan import Plan


class Cost(lightning.Callback):
    """Counts on from the checkpoint that a training resumes from; what was trained past it and lost isn't counted."""

    def __init__(self, plan: Plan, lengths: Sequence[int], *, parameters: int, before: Mapping[str, Any]) -> None:
        """Args:
        lengths: Tokens of each document of the plan.
        parameters: Those that are trained.
        before: `so_far` of the checkpoint; empty at the start.
        """
        self.plan, self.parameters = plan, parameters
        self.row_tokens = [sum(lengths[document] for document in row) for row in plan.rows]
        self.tokens, self.seconds_before = before.get("tokens", 0), before.get("seconds", 0.0)
        self.started: float | None = None

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self.started = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.tokens += sum(self.row_tokens[row] for row in self.plan.rows_of(trainer.global_step - 1))

    def so_far(self) -> dict[str, Any]:
        """Tokens of all devices (not only the supervised ones), seconds with validations and checkpoints, parameters."""
        seconds = self.seconds_before + (time.monotonic() - self.started if self.started is not None else 0.0)
        return {"tokens": self.tokens, "seconds": round(seconds, 1), "parameters": self.parameters}
