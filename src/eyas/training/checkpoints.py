"""Checkpoints: directories `step-NNNNNNNN`, complete (with a manifest that names their files) or left aside."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import lightning
from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch.distributed.checkpoint.api import CheckpointException

from eyas.artifact import provenance, publish, remove, write_manifest
from eyas.config import Config
from eyas.errors import EyasError
from eyas.run import Run, length
from eyas.training.cost import Cost
from eyas.training.preemption import Preemption
from eyas.training.sharded import ShardedStrategy


@dataclass(frozen=True)
class Saved:
    """What a checkpoint's manifest says of its training."""

    step: int
    tau_sim: float | None
    """`val/tau_sim` at this step, where it was validated."""
    finished_length: dict[str, Any] | None
    """The length that was asked for, at the end of it."""
    patience: int | None
    """`training.patience`, where the training ended for it."""
    cost: dict[str, Any]
    """What it has taken so far."""


class Checkpoints(lightning.Callback):
    """Saves every N steps, at the end, and before the machine is taken back: weights, optimizer, schedule and loader position.

    All in full precision, written beside the steps that follow. A checkpoint gets its name when it is whole and the metrics of its
    step are written, those of a validation too: so a resumed run has every metric exactly once.
    """

    def __init__(
        self,
        run: Run,
        config: Config,
        num_steps: int,
        cost: Cost,
        preemption: Preemption,
        patience: EarlyStopping | None,
    ) -> None:
        self.run, self.config, self.num_steps, self.cost = run, config, num_steps, cost
        self.preemption, self.patience = preemption, patience
        self.saved: Saved | None = None
        """Being written, or written and not named yet."""
        self.ended = False
        """The training has its full length, or stopped growing."""

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step == self.num_steps:
            trainer.should_stop = True  # lets Lightning validate once more, whatever the interval
        elif trainer.global_step % self.config.training.validate_every_n_steps:
            self._save_if_due(trainer, module, None)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self._save_if_due(trainer, module, float(trainer.callback_metrics["val/tau_sim"]))

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if self.preemption.agreed:
            self._finish(trainer)
            self.preemption.leave(trainer)
        elif _strategy(trainer).has_saved():
            self._finish(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        self._finish(trainer)

    def on_exception(self, trainer: Trainer, module: Any, exception: BaseException) -> None:
        if isinstance(exception, EyasError):  # all ranks have it, and all are still there
            self._finish(trainer)

    def _save_if_due(self, trainer: Trainer, module: Any, tau_sim: float | None) -> None:
        step = trainer.global_step
        gave_up = (
            step < self.num_steps and self.patience is not None and self.patience.wait_count >= self.patience.patience
        )
        self.ended = step == self.num_steps or gave_up
        if gave_up and trainer.is_global_zero:
            print(f"train    {said_at_the_end(step, cast(EarlyStopping, self.patience))}", flush=True)
        if self.ended or self.preemption.agreed or step % self.config.training.checkpoint_every_n_steps == 0:
            module.refuse_unless_finite(module.verdicts.rest())
            self._finish(trainer)
            finished = length(self.config) if self.ended else None
            patience = self.config.training.patience if gave_up else None
            cost = {**self.cost.so_far(), "devices": trainer.world_size}
            self._save(trainer, Saved(step, tau_sim, finished, patience, cost))

    def _save(self, trainer: Trainer, saved: Saved) -> None:
        partial = self._partial(saved)
        if trainer.is_global_zero:
            remove(partial)
            self.run.checkpoints.mkdir(exist_ok=True)
        trainer.strategy.barrier("checkpoint")
        trainer.save_checkpoint(partial)
        self.saved = saved

    def _finish(self, trainer: Trainer) -> None:
        """Wait until what is being written is whole, and give it its name."""
        saved, self.saved = self.saved, None
        if saved is None:
            return
        partial = self._partial(saved)
        try:
            _strategy(trainer).finish_saving()
        except CheckpointException as error:  # not even an Exception; what a disk said is inside
            remove(partial)  # on a full disk it would take what little room there is
            raise next((cause for cause, _ in error.failures.values() if isinstance(cause, OSError)), error) from None
        if trainer.is_global_zero:
            manifest = {
                **asdict(saved),
                "num_steps": self.num_steps,
                "files": {file.name: file.stat().st_size for file in sorted(partial.iterdir())},
            }
            write_manifest(partial, {**manifest, **provenance()})
            final = partial.with_suffix("")
            remove(final)  # one that was damaged
            publish(partial, final)
            self._prune()

    def _prune(self) -> None:
        training, whole = self.config.training, self.run.whole_checkpoints()
        kept = {*whole[-training.keep_last :], *self.run.best_checkpoints()[: training.keep_best]}
        for path in whole:
            if path not in kept:
                remove(path)

    def _partial(self, saved: Saved) -> Path:
        return self.run.checkpoints / f"step-{saved.step:08d}.partial"


def said_at_the_end(step: int, patience: EarlyStopping) -> str:
    best = f"the best was {float(patience.best_score):.3f} (export.checkpoint=best takes that one)"
    return f"ends at step {step}: tau_sim has not grown for {patience.patience} validations; {best}"


def _strategy(trainer: Trainer) -> ShardedStrategy:
    assert isinstance(trainer.strategy, ShardedStrategy)
    return trainer.strategy
