"""What an evaluation asks: the held-out prompts, or prompt sets of their own, by length if asked."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eyas.config import Config
from eyas.data.conversations import read_conversations
from eyas.data.rows import RowMaker
from eyas.data.schema import SourceConfig
from eyas.data.tokens import Tokens, prompt_of
from eyas.errors import EyasError
from eyas.stages import tokens_artifact

HELD_OUT = "held out"


@dataclass(frozen=True)
class PromptSet:
    """Prompts that are measured together, as token ids."""

    name: str
    length: str | None
    """How long they are, in words; None where they aren't told apart by length (`evaluation.length_buckets`)."""
    prompts: list[list[int]]

    def __str__(self) -> str:
        return self.name if self.length is None else f"{self.name}, {self.length}"


def prompt_sets(config: Config) -> list[PromptSet]:
    """The first evaluation.num_prompts prompts of each set, and of each length; without sets, of the held-out rows.

    Raises:
        EyasError: a set without prompts.
    """
    asked = config.evaluation
    if not asked.prompts:
        held_out = Tokens(tokens_artifact(config).directory).held_out_prompts()
        sets = _by_length(f"{config.data.name}, {HELD_OUT}", held_out, asked.length_buckets, asked.num_prompts)
        if not sets:
            raise EyasError(
                f"data={config.data.name} holds out no prompt; raise data.held_out, or set evaluation.prompts"
            )
        return sets
    sets = []
    for name, source in asked.prompts.items():
        found = _by_length(name, _prompts(config, source), asked.length_buckets, asked.num_prompts)
        if not found:
            raise EyasError(f"evaluation.prompts.{name}: {source.path} gives no prompt; expected conversations")
        sets += found
    return sets


def _prompts(config: Config, source: SourceConfig) -> Iterator[list[int]]:
    """The first turn of each conversation, also where it is longer than a row that is trained on."""
    make, counts = RowMaker(config, whole=True), Counter[str]()
    for example in read_conversations(source, counts, unanswered=True):
        for row in make(example, counts)[:1]:
            yield prompt_of(row.input_ids, row.loss_mask)


def _by_length(name: str, prompts: Iterable[list[int]], upto: Sequence[int], number: int) -> list[PromptSet]:
    """The first `number` prompts of each bucket; read no further than they reach. Empty buckets are said and left out."""
    buckets: list[list[list[int]]] = [[] for _ in [*upto, None]]
    for prompt in prompts:
        bucket = buckets[sum(len(prompt) > most for most in upto)]
        if len(bucket) < number:
            bucket.append(prompt)
        if all(len(bucket) == number for bucket in buckets):
            break
    sets = []
    for length, bucket in zip(_lengths(upto), buckets, strict=True):
        if bucket:
            sets.append(PromptSet(name, length, bucket))
        elif length is not None:
            print(f"evaluate {name} has no prompt of {length}: not measured", flush=True)
    return sets


def _lengths(upto: Sequence[int]) -> list[str | None]:
    """Each bucket in words."""
    if not upto:
        return [None]
    lowest = [1, *(most + 1 for most in upto)]
    return [
        *(f"{low:,} to {most:,} tokens" for low, most in zip(lowest, upto, strict=False)),
        f"{lowest[-1]:,} tokens or more",
    ]
