"""Evaluation, as its configuration group describes it. Torch-free."""

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from eyas.data.schema import SourceConfig
from eyas.errors import EyasError
from eyas.fields import OPEN, Dtype, at_least


class Engine(Enum):
    """The program that runs the verifier."""

    transformers = "transformers"
    vllm = "vllm"


@dataclass(kw_only=True)
class EvaluationConfig:
    """Real speculative decoding on the held-out prompts, after training and, if asked, on the way."""

    engine: Engine | None = MISSING
    """Null: no evaluation."""
    k: int = MISSING
    """Tokens drafted per verifier forward (a chain)."""
    more_k: list[int] = MISSING
    """Other k to measure as well; each needs a server of its own."""
    num_prompts: int = MISSING
    """Prompts of each set."""
    prompts: dict[str, SourceConfig] = field(default=MISSING, metadata=OPEN)
    """Prompt sets by name, each the first turn of its conversations; none: the held-out prompts."""
    length_buckets: list[int] = MISSING
    """Prompts of up to so many tokens, each bucket (and what is longer) measured on its own, with num_prompts prompts."""
    max_tokens: int = MISSING
    """Tokens generated per prompt."""
    temperature: float = MISSING
    """0: greedy, and the output is compared with plain decoding."""
    concurrency: list[int] = MISSING
    """Requests at a time, each measured; at the first one outputs are compared."""
    allow_unservable: bool = MISSING
    """Train although the probe before step 1 failed: vLLM can't serve such a draft beside this verifier."""
    dtype: Dtype = MISSING
    every_n_steps: int | None = MISSING
    """Training pauses at every so many steps and the draft is measured (null: at the end only)."""

    def __post_init__(self) -> None:
        for key in ("k", "num_prompts", "max_tokens"):
            at_least(f"evaluation.{key}", getattr(self, key), 1)
        for key in ("more_k", "concurrency", "length_buckets"):
            for value in getattr(self, key):
                at_least(f"evaluation.{key}", value, 1)
        at_least("evaluation.temperature", self.temperature, 0)
        if not self.concurrency:
            raise EyasError("evaluation.concurrency is empty: expected at least one number of requests at a time")
        if self.length_buckets != sorted(set(self.length_buckets)):
            raise EyasError(
                f"evaluation.length_buckets={self.length_buckets}: expected numbers of tokens in ascending order, for "
                "instance [512, 2048]"
            )
        if self.every_n_steps is not None:
            at_least("evaluation.every_n_steps", self.every_n_steps, 1)
        if self.engine is None and self.every_n_steps is not None:
            raise EyasError(
                f"evaluation.every_n_steps={self.every_n_steps} with evaluation=none, which measures nothing: choose "
                "evaluation=transformers or evaluation=vllm"
            )
        if self.engine is Engine.transformers:
            others: list[tuple[str, object]] = [("more_k", []), ("temperature", 0), ("concurrency", [1])]
            for key, only in [*others, ("prompts", {}), ("length_buckets", [])]:
                if getattr(self, key) != only:
                    raise EyasError(
                        f"evaluation.{key}={getattr(self, key)}: in transformers only {only}; evaluation=vllm measures more"
                    )
