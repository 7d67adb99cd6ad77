"""The group `data`: where conversations come from, and what is made of them. Torch-free."""

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from eyas.data.shapes import FIELDS, Shape
from eyas.errors import EyasError
from eyas.fields import OPEN, at_least


class Responses(Enum):
    """Whose answers are learnt: those that are there (keep), the verifier's own made anew (regenerate), both (add), or anew
    where those that are there are not known to be the verifier's own (auto)."""

    keep = "keep"
    regenerate = "regenerate"
    add = "add"
    auto = "auto"


@dataclass(kw_only=True)
class SourceConfig:
    """Where conversations come from, and how a row is read."""

    name: str = MISSING
    path: str | None = MISSING
    """A file, a glob, a directory or owner/name of the hub; `conf:` in front means beside these YAML files."""
    split: str | None = MISSING
    """Of a data set of the hub, or saved by `datasets`; null: its only one."""
    config: str | None = MISSING
    """The hub's subset; null: its default."""
    revision: str | None = MISSING
    """The hub's commit, tag or branch; null: the newest."""
    answers_by: str | None = MISSING
    """The verifier (its name) that wrote the answers; null: not known, or not a verifier."""
    shape: Shape | None = MISSING
    """What a row holds; null: detected from the columns and printed."""
    columns: dict[str, str] = field(default=MISSING, metadata=OPEN)
    """Our field -> the data's column, where the names differ: {prompt: question, response: answer}."""
    drop_media: bool = MISSING
    """Drop image, audio and video parts and keep the text around them; false: such rows are bad rows."""
    max_bad_rows: float = MISSING
    """So many rows may be unusable (below 1: such a share); they are counted by reason, and one more stops the run."""
    max_row_bytes: int = MISSING
    """A longer line or array element is a bad row, never read whole."""
    sample: float = MISSING
    """The share of conversations that is taken, chosen by a hash of each one and data.seed; 1: all."""
    max_conversations: int | None = MISSING
    """The first so many of them; null: all."""
    weight: float | None = MISSING
    """In a mixture: taken in this proportion to the others, until one of them is used up; null: all are taken."""

    def __post_init__(self) -> None:
        at_least("data.max_row_bytes", self.max_row_bytes, 1)
        at_least("data.max_conversations", self.max_conversations or 1, 1)
        if not 0 < self.sample <= 1:
            raise EyasError(f"data.sample={self.sample}: expected a share above 0 and up to 1")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise EyasError(f"data.weight={self.weight}: must be positive (null: all conversations)")
        if not 0 <= self.max_bad_rows < float("inf"):
            raise EyasError(f"data.max_bad_rows={self.max_bad_rows}: expected a number of rows, or a share below 1")
        fields = {name for shape in ([self.shape] if self.shape else FIELDS) for name in FIELDS[shape]}
        if unknown := sorted({*self.columns} - fields):
            raise EyasError(
                f"data.columns.{unknown[0]}: there is no such field"
                f"{f' in shape {self.shape.name}' if self.shape else ''}; expected {', '.join(sorted(fields))}"
            )


@dataclass(kw_only=True)
class DataConfig(SourceConfig):
    """Conversations whose assistant turns the verifier wrote: one source, or a mixture of several."""

    mixture: dict[str, SourceConfig] = field(default=MISSING, metadata=OPEN)
    """Several sources instead of `path`, by a name of your choice."""
    responses: Responses = MISSING
    seed: int = MISSING
    """Of `sample`."""
    deduplicate: bool = MISSING
    """Keep the first of conversations that are exactly alike."""
    set_aside: int = MISSING
    """The first so many conversations are used for nothing: a test for later, when everything is chosen."""
    held_out: float = MISSING
    """Never trained on, they validate and evaluate: such a share of the questions (below 1), or the first so many; of each
    its first answer."""
    max_held_out: int = MISSING
    """At most so many of that share are kept; a share of a large data set is more than validation needs."""
    max_length: int = MISSING
    """Tokens of a row; a longer conversation ends with its last answer that fits, and is counted."""
    last_turn_only: bool = MISSING
    """Learn the last answer of each conversation only."""
    reasoning: bool = MISSING
    """Learn what an answer says before its visible text, too."""
    num_processes: int | None = MISSING
    """Processes that tokenise; null: one per core, at most 32. The result is the same for any number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("data.set_aside", self.set_aside, 0)
        at_least("data.max_held_out", self.max_held_out, 1)
        at_least("data.max_length", self.max_length, 4)
        at_least("data.num_processes", self.num_processes or 1, 1)
        if self.held_out <= 0 or (self.held_out >= 1 and self.held_out != int(self.held_out)):
            raise EyasError(f"data.held_out={self.held_out}: expected a share below 1, or a whole number of questions")
        if bool(self.mixture) == (self.path is not None):
            raise EyasError(
                f"data.path is {self.path} and data.mixture has {len(self.mixture)} sources: expected one of the two"
            )
        if len({source.weight is None for source in self.mixture.values()}) > 1:
            unweighted = [name for name, source in self.mixture.items() if source.weight is None]
            raise EyasError(
                f"data.mixture: {', '.join(unweighted)} has no weight and others have; give all one, or none"
            )
        if any(source.path is None for source in self.mixture.values()):
            raise EyasError("data.mixture: a source without a path; give each its path")

    @property
    def sources(self) -> dict[str, SourceConfig]:
        """What is read, by name: the mixture, or this one source."""
        return self.mixture or {self.name: self}


@dataclass(kw_only=True)
class GenerationConfig:
    """How the verifier answers anew, where `data.responses` has it answer."""

    temperature: float = MISSING
    top_p: float = MISSING
    max_tokens: int = MISSING
    """Of one answer; a longer one is cut, marked so, and its closing token not learnt."""
    samples: int = MISSING
    """Answers to each conversation."""
    seed: int = MISSING

    def __post_init__(self) -> None:
        at_least("generation.temperature", self.temperature, 0)
        at_least("generation.max_tokens", self.max_tokens, 1)
        at_least("generation.samples", self.samples, 1)
        if not 0 < self.top_p <= 1:
            raise EyasError(f"generation.top_p={self.top_p}: must be above 0 and at most 1")
        if self.samples > 1 and self.temperature == 0:
            raise EyasError(
                f"generation.samples={self.samples} with generation.temperature=0: they would all be the same; raise the "
                "temperature"
            )
