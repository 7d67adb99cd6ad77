"""Training, as its configuration groups `training` and `trainer` describe it. Torch-free."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from omegaconf import MISSING

from eyas.errors import EyasError
from eyas.fields import Dtype, at_least


class Loss(Enum):
    """What the draft is trained to match (`draft/loss.py`)."""

    kl = "kl"  # the teacher's distribution
    ce = "ce"  # its most likely token
    nla = "nla"  # acceptance: -log sum min(p, q)
    lk_hybrid = "lk_hybrid"  # kl first, then acceptance


class Accelerator(Enum):
    """Where the verifier and the draft run."""

    cpu = "cpu"
    cuda = "cuda"


@dataclass(kw_only=True)
class TrainingConfig:
    """Our training loop; the optimizer and the schedule have groups of their own."""

    unroll_steps: int = MISSING
    """Draft steps unrolled per training step (training-time test)."""
    step_weight_decay: float = MISSING
    """Unroll step k weighs step_weight_decay ** k in the loss."""
    loss: Loss = MISSING
    state_noise: float = MISSING
    """Noise on the captured states in training, as a share of their own size; 0: none."""
    row_length: int = MISSING
    """Tokens of a packed row."""
    rows_per_step: int = MISSING
    """Packed rows of one optimizer step, over all devices."""
    max_steps: int | None = MISSING
    """Length in optimizer steps; null: `epochs` decides."""
    epochs: float | None = MISSING
    """Length in passes over the data; null: `max_steps` decides."""
    compute_dtype: Dtype = MISSING
    """Type of the forward and backward; master weights and optimizer stay float32."""
    compile: bool = MISSING
    """Compile what consists of many small operations (torch.compile): a minute at the start, less time per step."""
    activation_checkpointing: bool = MISSING
    """Compute the feed-forward network's activations again in the backward: less memory, more time."""
    clip_norm: float = MISSING
    log_every_n_steps: int = MISSING
    validate_every_n_steps: int = MISSING
    checkpoint_every_n_steps: int = MISSING
    keep_last: int = MISSING
    """Newest checkpoints that stay on disk."""
    keep_best: int = MISSING
    """Beside them, those with the best `val/tau_sim`."""
    patience: int | None = MISSING
    """End after so many validations without a better `val/tau_sim`; null: train to the end."""

    def __post_init__(self) -> None:
        for key in ("unroll_steps", "row_length", "rows_per_step", "log_every_n_steps", "validate_every_n_steps"):
            at_least(f"training.{key}", getattr(self, key), 1)
        at_least("training.checkpoint_every_n_steps", self.checkpoint_every_n_steps, 1)
        at_least("training.keep_last", self.keep_last, 1)
        at_least("training.keep_best", self.keep_best, 0)
        at_least("training.patience", self.patience or 1, 1)
        at_least("training.state_noise", self.state_noise, 0)
        if self.clip_norm <= 0 or (self.epochs or 1) <= 0 or (self.max_steps is not None and self.max_steps < 1):
            raise EyasError(
                f"training.clip_norm={self.clip_norm}, training.epochs={self.epochs}, training.max_steps={self.max_steps}: "
                "each must be positive"
            )
        if (self.max_steps is None) == (self.epochs is None):
            raise EyasError(
                f"training.max_steps is {self.max_steps} and training.epochs is {self.epochs}: "
                "exactly one of them sets the length, the other must be null"
            )


@dataclass(kw_only=True)
class TrainerConfig:
    """Devices and the strategy: the arguments of lightning.Trainer that describe hardware, nothing else."""

    accelerator: Accelerator = MISSING
    devices: int = MISSING
    num_nodes: int = MISSING
    timeout_seconds: float = MISSING
    """A device that the others have waited for so long has hung: the run ends."""
    strategy: dict[str, Any] = MISSING

    def __post_init__(self) -> None:
        at_least("trainer.devices", self.devices, 1)
        if self.timeout_seconds <= 0:
            raise EyasError(f"trainer.timeout_seconds={self.timeout_seconds} must be positive")

    def check_divides(self, rows_per_step: int) -> None:
        """Whether the rows of an optimizer step can be dealt to the devices.

        Raises:
            EyasError: not evenly.
        """
        num_devices = self.devices * self.num_nodes
        if rows_per_step % num_devices:
            near = max(1, round(rows_per_step / num_devices)) * num_devices
            raise EyasError(
                f"training.rows_per_step={rows_per_step} can't be dealt evenly to {num_devices} devices "
                f"(trainer.devices x trainer.num_nodes); set training.rows_per_step={near}"
            )
