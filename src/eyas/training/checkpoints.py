"""Checkpoints: directories `step-NNNNNNNN`, complete (with a manifest) or ignored."""

from typing import Any

import lightning
from lightning import Trainer
from torch.distributed.checkpoint.api import CheckpointException

from eyas.artifact import provenance, publish, read_manifest, remove, write_manifest
from eyas.config import Config
from eyas.run import Run, length


class Checkpoints(lightning.Callback):
    """Saves every N steps and at the end: weights, optimizer, schedule and loader position, all in full precision.

    Where a validation is due at the same step, the checkpoint follows it, so that a resumed run has lost no metric.
    """

    def __init__(self, run: Run, config: Config, num_steps: int) -> None:
        self.run, self.config, self.num_steps = run, config, num_steps

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step == self.num_steps:
            trainer.should_stop = True  # lets Lightning validate once more, whatever the interval
        elif trainer.global_step % self.config.training.validate_every_n_steps:
            self._save_if_due(trainer, module)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self._save_if_due(trainer, module)

    def _save_if_due(self, trainer: Trainer, module: Any) -> None:
        step = trainer.global_step
        if step % self.config.training.checkpoint_every_n_steps == 0 or step == self.num_steps:
            module.refuse_unless_finite(module.verdicts.rest())
            self._save(trainer, step)

    def _save(self, trainer: Trainer, step: int) -> None:
        final = self.run.checkpoints / f"step-{step:08d}"
        partial = final.with_suffix(".partial")
        if trainer.is_global_zero:
            remove(partial)
            self.run.checkpoints.mkdir(exist_ok=True)
        trainer.strategy.barrier("checkpoint")
        try:
            trainer.save_checkpoint(partial)
        except CheckpointException as error:  # not even an Exception; what a disk said is inside
            raise next((cause for cause, _ in error.failures.values() if isinstance(cause, OSError)), error) from None
        if trainer.is_global_zero:
            finished_length = length(self.config) if step == self.num_steps else None
            write_manifest(
                partial, {"step": step, "num_steps": self.num_steps, "finished_length": finished_length, **provenance()}
            )
            remove(final)
            publish(partial, final)
            self._prune()
        trainer.strategy.barrier("checkpoint")

    def _prune(self) -> None:
        whole = sorted(path for path in self.run.checkpoints.glob("step-*") if read_manifest(path))
        for path in whole[: -self.config.training.keep_checkpoints]:
            remove(path)
