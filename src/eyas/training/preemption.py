"""SIGTERM: whoever takes the machine back is obeyed after a checkpoint, by all ranks at the same step."""

import signal
from typing import Any

import lightning
from lightning import Trainer

from eyas.process import PREEMPTED
from eyas.training.behind import OneBehind


class Preemption(lightning.Callback):
    """At each step every rank says whether it was told to end; the answer is read a step later, so nobody waits for it."""

    def __init__(self) -> None:
        self.told = False
        self.agreed = False
        """Known to all ranks: `Checkpoints` saves this step, and it is the last."""
        self.answers = OneBehind()

    def setup(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        # Lightning asks rank 0 at each step and waits for the answer: on a GPU, for everything that was launched.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def on_train_start(self, *_: Any) -> None:
        signal.signal(signal.SIGTERM, self._hear)  # in the place of Lightning's, which saves nothing

    def _hear(self, *_: object) -> None:
        self.told = True

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        answer = self.answers.swap(module.summed(module.number(self.told)))
        self.agreed = answer is not None and bool(answer)

    def leave(self, trainer: Trainer) -> None:
        """When the checkpoint has its name."""
        if trainer.is_global_zero:
            print(f"train    told to end (SIGTERM): checkpoint at step {trainer.global_step}", flush=True)
        raise SystemExit(PREEMPTED)
