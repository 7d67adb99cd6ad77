"""One thing that is compared: a run, a draft that was only measured, or a job that came to nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of it, wherever that was read. What isn't known is empty."""

    name: str
    place: str
    """Its directory, or where in Weights & Biases it is."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key."""
    metrics: Sequence[Mapping[str, float]] = ()
    """The rows of metrics.csv."""
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    """evaluation.json."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """tokens, seconds, parameters and devices of the training that made the draft."""
    tokens: str = ""
    """Fingerprint of the tokens that it was trained and validated on."""
    draft: str = ""
    """The directory of its draft."""
    problem: str = ""
    """Why it has no result, such as "failed: ..."."""

    @property
    def last(self) -> dict[str, float]:
        """The last value of each metric."""
        return {key: value for row in self.metrics for key, value in row.items()}
