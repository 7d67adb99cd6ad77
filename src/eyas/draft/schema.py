"""The draft, as its configuration groups `draft` and `export` describe it. Torch-free."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from eyas.errors import EyasError
from eyas.fields import at_least


class DraftArchitecture(Enum):
    """The decoder layer of the draft; vLLM serves these two."""

    llama = "llama"
    qwen3 = "qwen3"


class DraftVocabulary(Enum):
    """Where a draft that starts from another draft takes its vocabulary from."""

    keep = "keep"
    remap = "remap"


class ExportFormat(Enum):
    """A format that an exported draft is written in."""

    vllm = "vllm"  # speculators' format, in draft/
    sglang = "sglang"  # the raw Eagle3 format, in draft-sglang/


class Checkpoint(Enum):
    """Which checkpoint of a finished training becomes the draft."""

    newest = "newest"
    best = "best"  # by val/tau_sim, of those whose step was validated


@dataclass(kw_only=True)
class DraftConfig:
    """The EAGLE-3 draft: speculators' Eagle3DraftModel."""

    name: str = MISSING
    architecture: DraftArchitecture = MISSING
    num_layers: int = MISSING
    vocab_size: int | None = MISSING
    """The most frequent tokens of the training answers; null: the verifier's whole vocabulary."""
    layer_ids: list[int] | None = MISSING
    """Captured layers that the draft reads (null: the verifier's choice)."""
    norm_before_residual: bool = MISSING
    """The residual starts from the normalised hidden state."""
    norm_before_fc: bool = MISSING
    """One RMSNorm over the concatenated captured states."""
    fc_norm: bool = MISSING
    """One RMSNorm for each captured state (excludes norm_before_fc)."""
    norm_output: bool = MISSING
    """Feed the normalised state, not the raw one, into the next step."""
    sliding_window: int | None = MISSING
    """How many positions attention sees, its own included; null: all."""
    trainable_head: bool = MISSING
    """Train the draft's head (as the EAGLE-3 authors do) or keep it as it starts: the verifier's rows, or `init`'s."""
    warm_start: bool = MISSING
    """Layers begin as the verifier's last ones, where theirs have the same tensors and shapes."""
    init: str | None = MISSING
    """A draft to start from: a directory or hub id, speculators' format or the raw Eagle3 one."""
    init_vocabulary: DraftVocabulary = MISSING
    """With `init`: keep that draft's vocabulary, or choose from this data and carry rows over by token id."""

    def __post_init__(self) -> None:
        at_least("draft.num_layers", self.num_layers, 1)
        if self.vocab_size is not None:
            at_least("draft.vocab_size", self.vocab_size, 1)
        if self.sliding_window is not None:
            at_least("draft.sliding_window", self.sliding_window, 16)
        if self.warm_start and self.init is not None:
            raise EyasError(f"draft.warm_start=true with draft.init={self.init}: choose one of them")
        if self.norm_before_fc and self.fc_norm:
            raise EyasError(
                "draft.norm_before_fc and draft.fc_norm are both true: they exclude each other, set one to false"
            )


@dataclass(kw_only=True)
class ExportConfig:
    """What a trained draft is written as."""

    formats: list[ExportFormat] = MISSING
    """vllm (what is measured, so always there); sglang beside it: the raw Eagle3 format, written and read back, not served."""
    checkpoint: Checkpoint = MISSING
    """The newest, or the best (`training.keep_best` keeps it)."""

    def __post_init__(self) -> None:
        names = [chosen.name for chosen in self.formats]
        if ExportFormat.vllm not in self.formats or len({*names}) != len(names):
            raise EyasError(
                f"export.formats=[{','.join(names)}]: expected vllm, which is what is measured, and each format once; "
                "for instance [vllm,sglang]"
            )
