"""Checkpoints: directories `step-NNNNNNNN`, complete (with a manifest that names their files) or left aside."""

from pathlib import Path
from typing import Any

import lightning
from lightning import Trainer
from torch.distributed.checkpoint.api import CheckpointException

from eyas.artifact import provenance, publish, remove, write_manifest
from eyas.config import Config
from eyas.run import Run, damage_of, length
from eyas.training.preemption import Preemption


class Checkpoints(lightning.Callback):
    """Saves every N steps, at the end, and before the machine is taken back: weights, optimizer, schedule and loader position.

    All in full precision. A checkpoint gets its name when the metrics of its step are written, those of a validation too:
    so a resumed run has every metric exactly once.
    """

    def __init__(self, run: Run, config: Config, num_steps: int, preemption: Preemption) -> None:
        self.run, self.config, self.num_steps, self.preemption = run, config, num_steps, preemption
        self.saved: Path | None = None
        """Written, and not named yet."""

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step == self.num_steps:
            trainer.should_stop = True  # lets Lightning validate once more, whatever the interval
        elif trainer.global_step % self.config.training.validate_every_n_steps:
            self._save_if_due(trainer, module)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self._save_if_due(trainer, module)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._name(trainer)
        self.preemption.leave_if_agreed(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        self._name(trainer)

    def _save_if_due(self, trainer: Trainer, module: Any) -> None:
        step = trainer.global_step
        due = step % self.config.training.checkpoint_every_n_steps == 0 or step == self.num_steps
        if due or self.preemption.agreed:
            module.refuse_unless_finite(module.verdicts.rest())
            self._save(trainer, step)

    def _save(self, trainer: Trainer, step: int) -> None:
        self.saved = partial = self.run.checkpoints / f"step-{step:08d}.partial"
        if trainer.is_global_zero:
            remove(partial)
            self.run.checkpoints.mkdir(exist_ok=True)
        trainer.strategy.barrier("checkpoint")
        try:
            trainer.save_checkpoint(partial)
        except CheckpointException as error:  # not even an Exception; what a disk said is inside
            remove(partial)  # on a full disk it would take what little room there is
            raise next((cause for cause, _ in error.failures.values() if isinstance(cause, OSError)), error) from None
        if trainer.is_global_zero:
            manifest = {
                "step": step,
                "num_steps": self.num_steps,
                "finished_length": length(self.config) if step == self.num_steps else None,
                "files": {file.name: file.stat().st_size for file in sorted(partial.iterdir())},
            }
            write_manifest(partial, {**manifest, **provenance()})

    def _name(self, trainer: Trainer) -> None:
        partial, self.saved = self.saved, None
        if partial is None:
            return
        if trainer.is_global_zero:
            final = partial.with_suffix("")
            remove(final)  # one that was damaged
            publish(partial, final)
            self._prune()
        trainer.strategy.barrier("checkpoint")

    def _prune(self) -> None:
        whole = [path for path in self.run.all_checkpoints() if not damage_of(path)]
        for path in whole[: -self.config.training.keep_checkpoints]:
            remove(path)
