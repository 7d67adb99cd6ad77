"""What a verifier is: the values of `conf/verifier/*.yaml`, one dataclass per section, checked at the border.

Torch-free, as `eyas.config`, which holds the other groups. Every default stands in `conf/verifier/arch/llama.yaml`.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from eyas.errors import EyasError
from eyas.fields import OPEN


class NormKind(Enum):
    """The final norm, with x/rms = x / sqrt(mean(x^2) + eps) and x/std = (x - mean) / sqrt(var + eps)."""

    rms = "rms"  # x/rms * w
    rms_plus_one = "rms_plus_one"  # x/rms * (1 + w)
    rms_no_weight = "rms_no_weight"  # x/rms
    layernorm = "layernorm"  # x/std * w
    layernorm_bias = "layernorm_bias"  # x/std * w + b
    layernorm_plus_one = "layernorm_plus_one"  # x/std * (1 + w) + b
    layernorm_no_weight = "layernorm_no_weight"  # x/std
    none = "none"  # the head reads the last layer's output

    @property
    def has_weight(self) -> bool:
        return self not in (NormKind.rms_no_weight, NormKind.layernorm_no_weight, NormKind.none)

    @property
    def has_bias(self) -> bool:
        return self in (NormKind.layernorm_bias, NormKind.layernorm_plus_one)


class NormCast(Enum):
    """When the normalised state returns from float32 to the model's type: before or after the weight is applied."""

    before_weight = "before_weight"
    after_weight = "after_weight"


class Operator(Enum):
    """An operation with one number c: x * c, x / c, tanh(x / c) * c."""

    multiply = "multiply"
    divide = "divide"
    softcap = "softcap"


class HeadTransform(Enum):
    """What is done to the head's weight before it is applied."""

    none = "none"
    l2_rows = "l2_rows"  # each row is divided by its length (Baichuan2)


class Stream(Enum):
    """What enters a layer: one residual stream, or several that are mixed only on the way to the head."""

    single = "single"
    multiple = "multiple"


class Target(Enum):
    """What the last captured slot holds, and so where the teacher begins."""

    pre_norm = "pre_norm"
    head_input = "head_input"


class Dequantizer(Enum):
    """How an embedding or head that is not stored as plain floats becomes one, by its companion tensors."""

    none = "none"
    fp8 = "fp8"  # X.weight with X.weight_scale or X.weight_scale_inv: per tensor, per row or per block
    packed_int4 = "packed_int4"  # X.weight_packed with X.weight_scale and X.weight_shape (compressed-tensors)


class Evidence(Enum):
    """What the facts of a YAML rest on."""

    run = "run"  # a checkpoint of this kind was run and its logits rebuilt
    published_config = "published_config"  # the published config.json and weight names
    class_default = "class_default"  # what a library's config class says where nobody has looked at a checkpoint


class AutoClass(Enum):
    """The transformers class that loads the whole verifier."""

    AutoModelForCausalLM = "AutoModelForCausalLM"
    AutoModelForImageTextToText = "AutoModelForImageTextToText"


@dataclass(kw_only=True)
class Number:
    """`{value: x}`, or `{config: dotted.path}`: read from the language model's config.

    `a | b` names two keys for the same thing (as published, as transformers saves it). A list counts as its length
    (`layers_block_type`). The number is (config / per) ** power * times.
    """

    config: str | None = None
    value: float | None = None
    default: float | None = None
    """What the model's class takes where the config does not have the key."""
    per: str | None = None
    power: float = 1.0
    times: float = 1.0

    def __post_init__(self) -> None:
        if (self.config is None) == (self.value is None):
            raise EyasError(
                f"a number of the verifier has config={self.config} and value={self.value}: exactly one must be set "
                "(a child that replaces config by value writes {config: null, value: x})"
            )


@dataclass(kw_only=True)
class Operation:
    """One step of the verifier's arithmetic, as {op: divide, by: {config: logits_scaling}}."""

    op: Operator = MISSING
    by: Number = MISSING


@dataclass(kw_only=True)
class MakeConfig:
    """How to make the verifier's checkpoint where `path` is null. Exactly one of the two."""

    gguf: str | None = None
    """`package/file.gguf`: a GGUF file shipped inside an installed Python package."""
    random: dict[str, Any] | None = None
    """Arguments of a transformers config (with `model_type`): random weights, for tests."""

    def __post_init__(self) -> None:
        if (self.gguf is None) == (self.random is None):
            raise EyasError("verifier.make: exactly one of gguf and random must be set")


@dataclass(kw_only=True)
class Published:
    """The published model's size, where known: compared with the checkpoint's."""

    hidden_size: int | None = None
    num_layers: int | None = None
    vocab_size: int | None = None


@dataclass(kw_only=True)
class FilesConfig:
    """Which files of the directory are the checkpoint."""

    config: str = MISSING
    """config.json, or params.json of Mistral's own layout."""
    weights: str | None = MISSING
    """A pattern such as consolidated*.safetensors; null: what the index names, else every *.safetensors."""


@dataclass(kw_only=True)
class TrustRemoteCode:
    """Whether Python code inside the checkpoint may run, for each use of it. Never implied."""

    config: bool = MISSING
    model: bool = MISSING
    tokenizer: bool = MISSING


@dataclass(kw_only=True)
class ConfigPaths:
    """Where the checkpoint's config keeps the language model's numbers."""

    path: str | None = MISSING
    """Dotted path to the language model's own config ("": the top level); null: the only part that describes one."""
    num_layers: Number = MISSING
    hidden_size: Number = MISSING
    vocab_size: Number = MISSING
    """Rows of the embedding and of the head."""
    usable_vocab_size: Number | None = MISSING
    """Ids below this are tokens, the rest is padding; null: the tokenizer decides."""


@dataclass(kw_only=True)
class TensorKeys:
    """Exact names of the tensors that are read, without patterns: exactly one candidate of each must exist."""

    prefix: str = MISSING
    """In front of every name below."""
    embedding: list[str] = MISSING
    norm: list[str] = MISSING
    norm_bias: list[str] = MISSING
    head: list[str] = MISSING
    head_bias: list[str] = MISSING
    """Empty: the head has none."""


@dataclass(kw_only=True)
class NormConfig:
    """The final norm."""

    kind: NormKind = MISSING
    eps: Number = MISSING
    cast: NormCast = MISSING


@dataclass(kw_only=True)
class QuantizationConfig:
    """Needed only where the embedding or the head is not a plain float."""

    path: str | None = MISSING
    """Dotted path to the quantisation block in the config; null: `quantization_config`, on top or in the language config."""
    dequantize: Dequantizer = MISSING


@dataclass(kw_only=True)
class TokenizerConfig:
    """The verifier's tokenizer."""

    path: str | None = MISSING
    """Null: the checkpoint's own directory."""


class Renderer(Enum):
    """Who renders: the tokenizer's chat template, or the server (for verifiers whose rendering is the server's own code)."""

    tokenizer = "tokenizer"
    server = "server"


@dataclass(kw_only=True)
class ChatConfig:
    """How conversations become token ids."""

    renderer: Renderer = MISSING
    template: str | None = MISSING
    """A Jinja file; null: the tokenizer's own template."""
    kwargs: dict[str, Any] = field(default=MISSING, metadata=OPEN)
    """Arguments of the chat template, such as enable_thinking; recorded with the tokens."""


@dataclass(kw_only=True)
class TransformersConfig:
    """How transformers loads the verifier, and which of its modules are hooked; null: found, printed and verified."""

    auto_class: AutoClass | None = MISSING
    layers: str | None = MISSING
    norm: str | None = MISSING
    head: str | None = MISSING


@dataclass(kw_only=True)
class VllmConfig:
    """How vLLM serves the verifier."""

    args: list[str] = MISSING
    env: dict[str, str] = field(default=MISSING, metadata=OPEN)
    eagle3: bool | None = MISSING
    """vLLM can capture this architecture's states and serve EAGLE-3 drafts for it; null: nobody has looked."""
    last_state: bool = MISSING
    """Of what it captures, the state after the last layer is one: without it nothing says what the draft should learn."""
    config_keys: list[str] = MISSING
    """Keys that the language model's config must hold, since vLLM takes another default than the model does."""


@dataclass(kw_only=True)
class DeploymentConfig:
    """What will be served, where that isn't the checkpoint whose states are captured; null: the same."""

    path: str | None = MISSING
    """A directory or hub id, such as the FP8 version of the model."""
    quantization: str | None = MISSING
    """vLLM's --quantization; null: as its checkpoint says."""
    kv_cache_dtype: str | None = MISSING
    """vLLM's --kv-cache-dtype, such as fp8."""


@dataclass(kw_only=True)
class DraftShape:
    """The draft layer that suits this verifier; null: as the verifier's own layer."""

    head_dim: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    rope_theta: float | None = None
    """Null: the verifier's. Of its scaling, what a draft's plain one-dimensional rotation can express is taken over."""
    layer_ids: list[int] | None = None
    """Captured layers: id i is the residual stream entering layer i. Null: 2, n//2, n-3."""


@dataclass(kw_only=True)
class VerifierConfig:
    """What the target LLM is. A new architecture is a file of these values, never code."""

    name: str = MISSING
    path: str | None = None
    """A local directory or a hub id."""
    revision: str | None = None
    """Commit, branch or tag of a hub id."""
    make: MakeConfig | None = None
    evidence: Evidence = MISSING
    model_types: list[str] = MISSING
    """`model_type` values (of the config's top level, else of the language model's) that this YAML is right for."""
    refused: str | None = MISSING
    """Why this architecture can't be a verifier; null: it can."""
    published: Published = MISSING
    files: FilesConfig = MISSING
    trust_remote_code: TrustRemoteCode = MISSING
    config: ConfigPaths = MISSING
    keys: TensorKeys = MISSING
    tied: bool = MISSING
    """The head is the embedding: true exactly when the checkpoint holds no head."""
    embedding: list[Operation] | None = MISSING
    """From an embedding row to what enters layer 0, in order; null: something else, and not checked."""
    stream: Stream = MISSING
    target: Target = MISSING
    norm: NormConfig = MISSING
    pre_head: list[Operation] = MISSING
    """Between the norm and the head, in order."""
    head_transform: HeadTransform = MISSING
    post_head: list[Operation] = MISSING
    """Between the head and the logits, in order; a softcap that the config sets to null is left out."""
    ignored_scales: list[str] = MISSING
    """Keys of the config that look like a scale of the logits and are not used by this model."""
    quantization: QuantizationConfig = MISSING
    tokenizer: TokenizerConfig = MISSING
    chat: ChatConfig = MISSING
    stop_token_ids: list[int] | None = MISSING
    """Tokens that end an answer; null: generation_config.json, config.json and the tokenizer say so."""
    transformers: TransformersConfig = MISSING
    vllm: VllmConfig = MISSING
    deployment: DeploymentConfig = MISSING
    draft: DraftShape = MISSING

    def __post_init__(self) -> None:
        if self.stream is Stream.multiple and self.target is not Target.head_input:
            raise EyasError(
                "verifier.stream is multiple, so the state before the norm is not what the head sees: "
                "set verifier.target: head_input"
            )
