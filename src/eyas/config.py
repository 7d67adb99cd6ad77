"""The configuration: one dataclass per group of `conf/`, checked once at the border (large ones: `verifier/schema.py`, `data/schema.py`).

Everything here is imported before a configuration is known to be right, so nothing here may import torch.
Field = YAML key = argument, spelled alike everywhere; every default a user can see stands in `conf/`.
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eyas.data.schema import DataConfig, SourceConfig
from eyas.errors import EyasError
from eyas.fields import OPEN, at_least
from eyas.serving.schema import ServerConfig
from eyas.verifier.schema import VerifierConfig


class DraftArchitecture(Enum):
    """The decoder layer of the draft; vLLM serves these two."""

    llama = "llama"
    qwen3 = "qwen3"


class DraftVocabulary(Enum):
    """Where a draft that starts from another draft takes its vocabulary from."""

    keep = "keep"
    remap = "remap"


class Loss(Enum):
    """What the draft is trained to match (`draft/loss.py`)."""

    kl = "kl"  # the teacher's distribution
    ce = "ce"  # its most likely token
    nla = "nla"  # acceptance: -log sum min(p, q)
    lk_hybrid = "lk_hybrid"  # kl first, then acceptance


class Dtype(Enum):
    """A floating-point type, by torch's name."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Accelerator(Enum):
    """Where the verifier and the draft run."""

    cpu = "cpu"
    cuda = "cuda"


class ExportFormat(Enum):
    """A format that an exported draft is written in."""

    vllm = "vllm"  # speculators' format, in draft/
    sglang = "sglang"  # the raw Eagle3 format, in draft-sglang/


class Engine(Enum):
    """The program that runs the verifier."""

    transformers = "transformers"
    vllm = "vllm"


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


class CaptureEngine(Enum):
    """Where the verifier's hidden states come from: a program that runs it, or files that somebody has made."""

    transformers = "transformers"
    vllm = "vllm"
    files = "files"


class Keep(Enum):
    """Which states stay on the disk while training goes on beside their capture."""

    none = "none"  # none that has been trained on: the least disk, and each pass captures anew
    window = "window"  # as many as fit into window_tokens: those that are needed again first
    all = "all"  # every one; after the first pass nothing is captured any more


@dataclass(kw_only=True)
class CaptureConfig:
    """Who produces the verifier's hidden states, and how they are stored."""

    engine: CaptureEngine = MISSING
    path: str | None = MISSING
    """With engine files: the directory that holds them (docs/capture_files.md); they are read where they are."""
    dtype: Dtype = MISSING
    """The verifier computes, and the states are stored, in this type."""
    tokens_per_batch: int = MISSING
    """Tokens in one forward of the verifier, padding included."""
    tokens_per_shard: int = MISSING
    """Tokens in one file of the store; a killed capture resumes after the last whole file."""
    online: bool = MISSING
    """Training goes on beside the capture (else after it), with the same rows in the same order, hence the same result."""
    keep: Keep = MISSING
    """What an on-line capture leaves on the disk."""
    window_tokens: int = MISSING
    """Tokens whose states an on-line capture may have on the disk at a time, unless it keeps all; the held-out ones beside them."""

    def __post_init__(self) -> None:
        at_least("capture.tokens_per_batch", self.tokens_per_batch, 1)
        at_least("capture.tokens_per_shard", self.tokens_per_shard, 1)
        at_least("capture.window_tokens", self.window_tokens, 1)
        if (self.path is not None) != (self.engine is CaptureEngine.files):
            raise EyasError(
                f"capture.path={self.path} with capture.engine={self.engine.name}: capture=files needs capture.path=DIR, where the "
                "states are, and nothing else has one"
            )
        if self.online and self.engine is not CaptureEngine.vllm:
            raise EyasError(
                f"capture.online=true with capture.engine={self.engine.name}: only a server captures beside a training; "
                "set capture=online, or capture.online=false"
            )
        if self.keep is not Keep.all and not self.online:
            raise EyasError(
                f"capture.keep={self.keep.name} with capture.online=false: a training that begins after the capture needs all "
                "states; set capture=online, or capture.keep=all"
            )


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
        if self.norm_before_fc and self.fc_norm:
            raise EyasError(
                "draft.norm_before_fc and draft.fc_norm are both true: they exclude each other, set one to false"
            )


@dataclass(kw_only=True)
class TrainingConfig:
    """Our training loop; the optimizer and the schedule have groups of their own."""

    unroll_steps: int = MISSING
    """Draft steps unrolled per training step (training-time test)."""
    step_weight_decay: float = MISSING
    """Unroll step k weighs step_weight_decay ** k in the loss."""
    loss: Loss = MISSING
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
    keep_checkpoints: int = MISSING
    """Newest checkpoints that stay on disk."""

    def __post_init__(self) -> None:
        for key in ("unroll_steps", "row_length", "rows_per_step", "log_every_n_steps", "validate_every_n_steps"):
            at_least(f"training.{key}", getattr(self, key), 1)
        at_least("training.checkpoint_every_n_steps", self.checkpoint_every_n_steps, 1)
        at_least("training.keep_checkpoints", self.keep_checkpoints, 1)
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
    strategy: dict[str, Any] = MISSING


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


@dataclass(kw_only=True)
class ExportConfig:
    """What a trained draft is written as."""

    formats: list[ExportFormat] = MISSING
    """vllm (what is measured, so always there); sglang beside it: the raw Eagle3 format, written and read back, not served."""

    def __post_init__(self) -> None:
        names = [chosen.name for chosen in self.formats]
        if ExportFormat.vllm not in self.formats or len({*names}) != len(names):
            raise EyasError(
                f"export.formats=[{','.join(names)}]: expected vllm, which is what is measured, and each format once; "
                "for instance [vllm,sglang]"
            )


@dataclass(kw_only=True)
class Config:
    """Everything one run needs."""

    name: str = MISSING
    """The run: its directory is outputs/<name>; the same name starts or resumes."""
    group: str | None = MISSING
    """Runs that belong together (a wandb group)."""
    seed: int = MISSING
    outputs: str = MISSING
    """The directory of all runs and of the shared store."""
    serve: bool = MISSING
    """`eyas doctor serve=true`: serve the untrained draft too, as every training does that vLLM will evaluate."""
    verifier: VerifierConfig = MISSING
    data: DataConfig = MISSING
    generation: GenerationConfig = MISSING
    capture: CaptureConfig = MISSING
    draft: DraftConfig = MISSING
    training: TrainingConfig = MISSING
    optimizer: dict[str, Any] = MISSING
    scheduler: dict[str, Any] = MISSING
    trainer: TrainerConfig = MISSING
    logger: dict[str, Any] = MISSING
    export: ExportConfig = MISSING
    evaluation: EvaluationConfig = MISSING
    server: ServerConfig = MISSING

    def __post_init__(self) -> None:
        if self.training.row_length < self.data.max_length:
            raise EyasError(
                f"training.row_length={self.training.row_length} is shorter than data.max_length={self.data.max_length}: "
                "conversations would be cut a second time; make them equal"
            )
        every, saved = self.evaluation.every_n_steps, self.training.checkpoint_every_n_steps
        if every is not None and every % saved:
            raise EyasError(
                f"evaluation.every_n_steps={every} is no multiple of training.checkpoint_every_n_steps={saved}: what is "
                "measured is a checkpoint; change one of them"
            )
        if (
            self.capture.online
            and self.trainer.accelerator is Accelerator.cuda
            and self.server.endpoints is None
            and self.server.gpus is None
        ):
            raise EyasError(
                "capture.online=true: the server and the training need GPUs at the same time; set server.gpus=[...], training takes "
                f"{self.trainer.devices} (trainer.devices) of the others, or use servers elsewhere: server=endpoints"
            )
        two_steps = 2 * self.training.rows_per_step * self.training.row_length
        if self.capture.online and self.capture.keep is not Keep.all and self.capture.window_tokens < two_steps:
            raise EyasError(
                f"capture.window_tokens={self.capture.window_tokens} is less than two steps of training may need ({two_steps}: twice "
                "training.rows_per_step x training.row_length); make it larger"
            )
        if (
            not re.fullmatch(r"[A-Za-z0-9][\w.+=,-]*(/[A-Za-z0-9][\w.+=,-]*)*", self.name)
            or self.name.split("/")[0] == "store"
        ):
            raise EyasError(
                f"name={self.name!r} is no run name: it becomes a directory under {self.outputs}/, so use letters, "
                "digits and . _ - + = , (with / for a sub-directory); `store` is taken"
            )


def to_config(composed: DictConfig) -> Config:
    """Convert what Hydra composed into types, once; past this border nobody sees a DictConfig.

    The values are merged into a fresh schema, so that a key Hydra let in (`+typo=1`) is refused as well.

    Raises:
        OmegaConfBaseException: an unknown key, a wrong type, a missing value.
        EyasError: values that do not go together.
    """
    values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    return cast(Config, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), values)))


def to_dict(config: Any) -> dict[str, Any]:
    """The plain values of a configuration dataclass, enums by name: what is saved, hashed and compared."""
    values = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return cast(dict[str, Any], values)


def load_config(file: Path) -> Config:
    """Read a resolved configuration that was written as `config_yaml`.

    Raises:
        EyasError: another version of Eyas wrote it.
    """
    try:
        return to_config(cast(DictConfig, OmegaConf.load(file)))
    except OmegaConfBaseException as error:
        raise EyasError(
            f"{file} was written by another version of Eyas ({error.full_key}: {str(error).splitlines()[0]}); use that version, "
            "or start anew with another name=..."
        ) from None


def config_yaml(config: Config) -> str:
    """The resolved configuration as YAML, in the schema's order."""
    return OmegaConf.to_yaml(OmegaConf.create(to_dict(config)))


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
