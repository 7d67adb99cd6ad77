"""Many runs, as the section `sweep` of the configuration describes them. Torch-free."""

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from eyas.errors import EyasError
from eyas.fields import OPEN, at_least


class Objective(Enum):
    """What a search makes large."""

    tau = "tau"  # measured
    tau_sim = "tau_sim"  # teacher-forced, on held-out text


@dataclass(kw_only=True)
class SweepConfig:
    """How the jobs of a sweep run on this machine, and, where nobody lists them, how they are searched for."""

    slots: int = MISSING
    """Jobs at a time, each with a share of this machine's GPUs and cores of its own."""
    changes: dict[str, list[str]] = field(default=MISSING, metadata=OPEN)
    """Each alone against the configuration without any, by a name for it: {adamw: [optimizer=adamw, optimizer.lr=1e-3]}."""
    trials: int | None = MISSING
    """With `space`: search by so many jobs (null: the grid on the command line or in `hydra.sweeper.params`)."""
    space: dict[str, str] = field(default=MISSING, metadata=OPEN)
    """What a search may set: an override's key, and its values in Hydra's words, such as `tag(log, interval(1e-4, 1e-2))`."""
    objective: Objective = MISSING
    """What a search makes large."""
    prune: bool = MISSING
    """End a trial whose val/tau_sim is below the median of the others at the same step."""

    def __post_init__(self) -> None:
        at_least("sweep.slots", self.slots, 1)
        if self.trials is not None:
            at_least("sweep.trials", self.trials, 1)
        if (self.trials is None) != (not self.space):
            raise EyasError(
                f"sweep.trials={self.trials} with sweep.space={self.space}: a search needs both, a number of jobs and what "
                "they may set"
            )
        if self.changes and self.trials is not None:
            raise EyasError(
                f"sweep.trials={self.trials} and sweep.changes ({', '.join(self.changes)}): choose one of them"
            )
