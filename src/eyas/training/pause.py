"""A training that is measured on the way (`evaluation.every_n_steps`)."""

from typing import Any

import lightning
from lightning import Trainer


class Pause(lightning.Callback):
    """Ends this process where a measurement is due: that needs the devices, and the next process goes on exactly here.

    The step has a checkpoint (the configuration sees to it), and Lightning validates before it stops.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step % self.every_n_steps == 0:
            trainer.should_stop = True
