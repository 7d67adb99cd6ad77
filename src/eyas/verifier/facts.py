"""`VerifierConfig` (YAML, may point into the checkpoint) + a checkpoint -> `VerifierFacts` (no optionals, checked)."""

import math
from dataclasses import dataclass
from typing import Any

from eyas.errors import EyasError, checking
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.language import candidates, descend, language_config, quantization_block
from eyas.verifier.schema import (
    HeadTransform,
    NormCast,
    NormKind,
    Number,
    Operation,
    Operator,
    Target,
    VerifierConfig,
)
from eyas.verifier.tensors import Quantization, StoredTensor, locate_tensor


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operation with its number."""

    op: Operator
    by: float


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """From the captured last state to the logits: norm, `pre_head`, head, `post_head`, in this order."""

    target: Target
    norm: NormKind
    eps: float
    cast: NormCast
    pre_head: tuple[Step, ...] = ()
    head_transform: HeadTransform = HeadTransform.none
    post_head: tuple[Step, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerifierFacts:
    """All that the rest of Eyas needs to know of a verifier."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    """Rows of the embedding and of the head."""
    usable_vocab_size: int | None
    """Ids from here on are padding; None: nothing but the tokenizer says so."""
    embedding: StoredTensor
    norm: StoredTensor | None
    norm_bias: StoredTensor | None
    head: StoredTensor
    """The embedding where the head is tied."""
    head_bias: StoredTensor | None
    arithmetic: Arithmetic
    embedding_steps: tuple[Step, ...] | None
    """From an embedding row to what enters layer 0; None: not checked."""
    language_config: dict[str, Any]
    """The language model's own config, as the checkpoint states it."""
    warnings: tuple[str, ...]

    @property
    def default_layer_ids(self) -> list[int]:
        """The layers EAGLE-3 reads, by vLLM's convention: id i is the residual stream entering layer i."""
        return [2, self.num_layers // 2, self.num_layers - 3]

    @property
    def tensors(self) -> list[StoredTensor]:
        """The tensors that are read."""
        read = [self.embedding, self.norm, self.norm_bias, self.head, self.head_bias]
        return list(dict.fromkeys(tensor for tensor in read if tensor is not None))


def resolve(verifier: VerifierConfig, checkpoint: Checkpoint) -> VerifierFacts:
    """Read and check every fact that the YAML points at.

    Raises:
        EyasError: a path, key or shape that is not what the YAML says.
    """
    if verifier.refused is not None:
        raise EyasError(f"verifier {verifier.name} ({checkpoint.directory}): {verifier.refused}")
    norm = verifier.norm.kind if verifier.target is Target.pre_norm else NormKind.none  # at the head it is behind us
    usable = verifier.config.usable_vocab_size
    with checking("p01_config_path"):
        reader = _Reader(verifier, checkpoint)
        hidden_size = reader.count("hidden_size", verifier.config.hidden_size)
        vocab_size = reader.count("vocab_size", verifier.config.vocab_size)
    with checking("p11_num_layers"):
        num_layers = reader.count("num_layers", verifier.config.num_layers)
    with checking("p10_vocabulary"):
        usable_vocab_size = None if usable is None else reader.optional_count("usable_vocab_size", usable)
    with checking("p02_keys"):
        # An embedding apart from the head may have rows for ids that are only ever read (image placeholders).
        embedding = reader.tensor("embedding", (vocab_size, hidden_size), more_rows=not verifier.tied)
        norm_weight = reader.tensor("norm", (hidden_size,)) if norm.has_weight else None
        norm_bias = reader.tensor("norm_bias", (hidden_size,)) if norm.has_bias else None
    with checking("p03_tied"):
        head = reader.head(embedding, (vocab_size, hidden_size))
    with checking("p05_norm"):
        head_bias = reader.tensor("head_bias", (vocab_size,)) if verifier.keys.head_bias else None
        reader.refuse_forgotten_norm()
        reader.refuse_forgotten_bias("norm", norm_weight, norm_bias)
        reader.refuse_forgotten_bias("head", head, head_bias)
    with checking("p06_scales"):
        arithmetic, embedding_steps = reader.arithmetic(), reader.embedding_steps()
    sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "vocab_size": vocab_size}
    return VerifierFacts(
        **sizes,
        usable_vocab_size=usable_vocab_size,
        embedding=embedding,
        norm=norm_weight,
        norm_bias=norm_bias,
        head=head,
        head_bias=head_bias,
        arithmetic=arithmetic,
        embedding_steps=embedding_steps,
        language_config=reader.language,
        warnings=(*reader.warnings, *reader.differences_from_published(sizes)),
    )


def resolve_arithmetic(verifier: VerifierConfig, checkpoint: Checkpoint) -> Arithmetic:
    """The arithmetic alone, from the config; no tensor is looked at.

    Raises:
        EyasError: a number that the config does not have.
    """
    return _Reader(verifier, checkpoint).arithmetic()


def resolve_embedding(verifier: VerifierConfig, checkpoint: Checkpoint) -> tuple[Step, ...] | None:
    """From an embedding row to what enters layer 0; None: not stated."""
    return _Reader(verifier, checkpoint).embedding_steps()


class _Reader:
    """The facts of one verifier, read one by one; errors name the YAML key."""

    def __init__(self, verifier: VerifierConfig, checkpoint: Checkpoint) -> None:
        self.verifier, self.checkpoint = verifier, checkpoint
        self.where = f"verifier {verifier.name} ({checkpoint.directory})"
        self.language = language_config(verifier, checkpoint)
        self.quantization = Quantization(
            dequantize=verifier.quantization.dequantize,
            block=quantization_block(verifier.quantization.path, checkpoint.config, self.language),
        )
        self.warnings: list[str] = []

    def number(self, field: str, number: Number) -> float:
        value = self.optional_number(field, number)
        if value is None:
            raise EyasError(f"{self.where}: verifier.{field}: {number.config} is null in {self.checkpoint.config_file}")
        return value

    def optional_number(self, field: str, number: Number) -> float | None:
        """None where the config says null."""
        if number.config is None:
            value: Any = number.value
        else:
            value = self._config_value(field, number.config, number.default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise EyasError(
                f"{self.where}: verifier.{field}: {number.config} is {value!r} in {self.checkpoint.config_file}, "
                "expected a number"
            )
        if number.per is not None:
            per = self._config_value(field, number.per, None)
            if not per:
                raise EyasError(
                    f"{self.where}: verifier.{field}: {number.per} is {'null' if per is None else per} in "
                    f"{self.checkpoint.config_file}, which can't divide"
                )
            value = value / per
        return float(value**number.power * number.times)

    def count(self, field: str, number: Number) -> int:
        value = self.number(f"config.{field}", number)
        if value < 1 or value != int(value):
            raise EyasError(
                f"{self.where}: verifier.config.{field} ({number.config}) is {value:g}, expected a positive integer"
            )
        return int(value)

    def optional_count(self, field: str, number: Number) -> int | None:
        """None where the config says null."""
        return None if self.optional_number(f"config.{field}", number) is None else self.count(field, number)

    def steps(self, field: str, operations: list[Operation]) -> tuple[Step, ...]:
        steps = []
        for operation in operations:
            by = self.optional_number(field, operation.by)
            if by is None and operation.op is not Operator.softcap:
                self.number(field, operation.by)  # raises: only a cap may be null
            if by == 0 and operation.op is not Operator.multiply:
                raise EyasError(
                    f"{self.where}: verifier.{field}: {operation.op.name} by {operation.by.config or ''} = 0"
                )
            if by is None or math.isinf(by):  # a cap at infinity caps nothing
                continue
            if by != 1 or operation.op is Operator.softcap:  # times one is no second arithmetic
                steps.append(Step(op=operation.op, by=by))
        return tuple(steps)

    def embedding_steps(self) -> tuple[Step, ...] | None:
        return None if self.verifier.embedding is None else self.steps("embedding", self.verifier.embedding)

    def arithmetic(self) -> Arithmetic:
        verifier, norm = self.verifier, self.verifier.norm
        at_head = verifier.target is Target.head_input
        kind = NormKind.none if at_head else norm.kind
        return Arithmetic(
            target=verifier.target,
            norm=kind,
            eps=0.0 if kind is NormKind.none else self.number("norm.eps", norm.eps),
            cast=norm.cast,
            pre_head=() if at_head else self.steps("pre_head", verifier.pre_head),
            head_transform=verifier.head_transform,
            post_head=self.steps("post_head", verifier.post_head),
        )

    def tensor(self, field: str, shape: tuple[int, ...], *, more_rows: bool = False) -> StoredTensor:
        names = [self.verifier.keys.prefix + key for key in getattr(self.verifier.keys, field)]
        return locate_tensor(
            self.checkpoint,
            names,
            shape,
            self.quantization,
            f"{self.where}: verifier.keys.{field}",
            more_rows=more_rows,
        )

    def head(self, embedding: StoredTensor, shape: tuple[int, int]) -> StoredTensor:
        """Tied exactly when no key begins with the head's stem: a packed head is lm_head.qweight."""
        stems = [(self.verifier.keys.prefix + key).rpartition(".")[0] + "." for key in self.verifier.keys.head]
        present = [key for key in self.checkpoint.file_of if key.startswith(tuple(stems))]
        if not self.verifier.tied:
            if not present and self.verifier.keys.head:
                raise EyasError(
                    f"{self.where}: verifier.keys.head: nothing in the checkpoint begins with {' or '.join(stems)}; "
                    "set verifier.tied: true if the head is the embedding (the model's config says "
                    f"tie_word_embeddings={self.checkpoint.config.get('tie_word_embeddings')}), else name the head's key"
                )
            return self.tensor("head", shape)
        own = [key for key in present if key not in {embedding.key, *self.verifier.keys.head_bias}]
        if own:
            raise EyasError(
                f"{self.where}: verifier.tied is true, but the checkpoint holds a head, {own[0]}; set verifier.tied: false"
            )
        return embedding

    def refuse_forgotten_norm(self) -> None:
        """The weight of a norm that is declared to have none."""
        kind = self.verifier.norm.kind
        names = [self.verifier.keys.prefix + key for key in self.verifier.keys.norm]
        present = [name for name in names if name in self.checkpoint.file_of]
        if self.verifier.target is Target.pre_norm and not kind.has_weight and present:
            raise EyasError(
                f"{self.where}: verifier.norm.kind is {kind.name}, but the checkpoint holds {present[0]}; "
                "set the kind that uses it, or verifier.keys.norm: []"
            )

    def refuse_forgotten_bias(self, name: str, stored: StoredTensor | None, bias: StoredTensor | None) -> None:
        """A bias beside a norm or head that is declared without one: its absence would have no wrong shape."""
        key = "" if stored is None else stored.key.removesuffix(".weight") + ".bias"
        if bias is None and key in self.checkpoint.file_of:
            fix = f"verifier.keys.head_bias: [{key}]" if name == "head" else "verifier.norm.kind: layernorm_bias"
            raise EyasError(
                f"{self.where}: the checkpoint holds {key}, but the {name} is declared without a bias; set {fix}"
            )

    def differences_from_published(self, sizes: dict[str, int]) -> list[str]:
        published = vars(self.verifier.published)
        return [
            f"{self.where}: {field} is {size}, the published {self.verifier.name} has {published[field]}; "
            "the checkpoint's is used"
            for field, size in sizes.items()
            if published[field] is not None and size != published[field]
        ]

    def _config_value(self, field: str, path: str, default: float | None) -> Any:
        found = []
        for name in path.split(" | "):
            try:
                value = descend(self.language, name)
                found.append(len(value) if isinstance(value, list) else value)
            except KeyError:
                continue
        if any(other != found[0] for other in found):
            raise EyasError(
                f"{self.where}: verifier.{field}: {self.checkpoint.config_file} has {path}, and they differ: {found}"
            )
        if found:
            return found[0]
        if default is not None:
            self.warnings.append(
                f"{self.where}: verifier.{field}: {self.checkpoint.config_file} has no {path}, "
                f"so {default:g} is used, the default of the model's class"
            )
            return default
        have = ", ".join(sorted(self.language)[:12])
        others = [
            it for it in candidates(self.checkpoint.config) if descend(self.checkpoint.config, it) is not self.language
        ]
        hint = (
            f"; language models are described at {' and '.join(map(repr, others))}: set verifier.config.path"
            if others
            else ""
        )
        raise EyasError(
            f"{self.where}: verifier.{field}: {self.checkpoint.config_file} has no {path!r} (it has: {have}, ...){hint}"
        )
