"""What `eyas plan` is told, where nothing there says it yet. Torch-free."""

from dataclasses import dataclass

from omegaconf import MISSING

from eyas.errors import EyasError


@dataclass(kw_only=True)
class PlanConfig:
    """Numbers to plan with; null: what is known, or nothing is said of it."""

    tokens: int | None = MISSING
    """Tokens of the conversations; null: those that `eyas prepare` made."""
    device_gb: float | None = MISSING
    """Memory of one device, in GB of 10^9 bytes; null: the CPU's, or what nvidia-smi says."""
    capture_tokens_per_second: float | None = MISSING
    """Of all devices together, however many workers capture; null: not known."""
    training_tokens_per_second: float | None = MISSING
    """Of all devices together; null: what the run `like` measured."""
    like: str | None = MISSING
    """The directory of a run (outputs/NAME) whose measured tokens per second are taken; null: this run's own, if it has begun."""

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if isinstance(value, (int, float)) and value <= 0:
                raise EyasError(f"plan.{key}={value}: must be positive, or null")
