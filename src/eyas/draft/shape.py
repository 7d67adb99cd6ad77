"""The draft's shape, from the configuration and the verifier's facts; known (and checked) before torch is loaded."""

from dataclasses import dataclass
from typing import Any

from eyas.config import Config
from eyas.draft.schema import DraftArchitecture, DraftConfig
from eyas.errors import EyasError, checking
from eyas.verifier.facts import VerifierFacts


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Every number that the draft's architecture needs."""

    hidden_size: int
    """As the verifier's: the draft reads its states and its embedding."""
    verifier_vocab_size: int
    draft_vocab_size: int
    layer_ids: list[int]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    max_position_embeddings: int


def resolve_shape(config: Config, facts: VerifierFacts) -> Shape:
    """The verifier's YAML (`verifier.draft`) decides; what it leaves null is taken from the verifier's own layer.

    Raises:
        EyasError: numbers that don't fit the verifier.
    """
    with checking("p09_layer_ids"):
        layer_ids = _layer_ids(config, facts)
    with checking("p10_vocabulary"):
        draft_vocab_size = _draft_vocab_size(config, facts)
    with checking("p13_draft_shape"):
        return _layer_shape(config, facts, layer_ids, draft_vocab_size)


def _layer_shape(config: Config, facts: VerifierFacts, layer_ids: list[int], draft_vocab_size: int) -> Shape:
    wanted, own = config.verifier.draft, facts.language_config

    def number(field: str) -> int:
        value = getattr(wanted, field) or own.get(field)
        if not isinstance(value, int):
            raise EyasError(
                f"verifier.draft.{field} is null and the config of {config.verifier.name} has no {field}: set verifier.draft.{field}"
            )
        return value

    heads = number("num_attention_heads")
    head_dim = wanted.head_dim or own.get("head_dim") or facts.hidden_size // heads
    key_value_heads = wanted.num_key_value_heads or own.get("num_key_value_heads") or heads
    if heads % key_value_heads:
        raise EyasError(f"verifier.draft: {heads} attention heads are no multiple of {key_value_heads} key-value heads")
    if head_dim % 2:
        raise EyasError(f"verifier.draft.head_dim: heads of {head_dim} can't be rotated, it must be even")
    return Shape(
        hidden_size=facts.hidden_size,
        verifier_vocab_size=facts.vocab_size,
        draft_vocab_size=draft_vocab_size,
        layer_ids=layer_ids,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        intermediate_size=number("intermediate_size"),
        rms_norm_eps=facts.arithmetic.eps or 1e-6,
        rope_parameters=rope_parameters(own, wanted.rope_theta),
        max_position_embeddings=own.get("max_position_embeddings", 4096),
    )


SCALED = {
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor", "beta_fast", "beta_slow", "original_max_position_embeddings"},
}
"""Scalings of rotary positions that vLLM's drafts apply, with the numbers of each."""


def rope_parameters(own: dict[str, Any], theta: float | None) -> dict[str, Any]:
    """The draft's rotary positions: the verifier's base and scaling, whole heads, one dimension.

    Sections for images (M-RoPE), partial rotation and latent attention's own factors stay behind: a draft has none of them.
    Where the verifier has one set per kind of layer, that of full attention is taken.
    """
    stated = own.get("rope_parameters") or {"rope_theta": own.get("rope_theta"), **(own.get("rope_scaling") or {})}
    nested = [value for value in stated.values() if isinstance(value, dict)]
    if nested:
        stated = stated.get("full_attention", nested[0])
    kind = stated.get("rope_type") or stated.get("type") or "default"
    scaling = {key: stated[key] for key in SCALED.get(kind, set()) if key in stated}
    return {
        "rope_type": kind if kind in SCALED else "default",
        "rope_theta": theta or stated.get("rope_theta") or own.get("rope_theta") or 10000.0,
        **dict(sorted(scaling.items())),
    }


def _layer_ids(config: Config, facts: VerifierFacts) -> list[int]:
    stated = config.draft.layer_ids or config.verifier.draft.layer_ids
    ids, n = stated or facts.default_layer_ids, facts.num_layers
    if stated is None and ids != sorted(set(ids)):
        raise EyasError(
            f"{config.verifier.name} has {n} layers, too few for EAGLE-3's usual ids (2, n//2, n-3); "
            "set draft.layer_ids, for instance [1, 2, 3]"
        )
    if ids != sorted(set(ids)) or not all(0 <= id < n for id in ids):
        raise EyasError(
            f"draft.layer_ids={ids}: expected distinct ids in ascending order from 0 to {n - 1} "
            f"({config.verifier.name} has {n} layers; id i is the residual stream entering layer i)"
        )
    return ids


def _draft_vocab_size(config: Config, facts: VerifierFacts) -> int:
    size = facts.vocab_size if config.draft.vocab_size is None else config.draft.vocab_size
    if size > facts.vocab_size:
        raise EyasError(
            f"draft.vocab_size={size} is larger than the vocabulary of {config.verifier.name}, {facts.vocab_size}; null means all of it"
        )
    return size


def misfits(draft: DraftConfig, shape: Shape) -> list[str]:
    """What of a draft the raw format has no place for: SGLang would leave it out without a word, and accept little.

    Seen in SGLang's llama_eagle3.py (03d5a777, 2026): one input norm for embedding and state, the residual taken before it,
    three captured layers, and unknown tensors skipped.
    """
    ids = shape.layer_ids
    found = [f"draft.{flag}=true" for flag in ("norm_before_residual", "norm_before_fc") if getattr(draft, flag)]
    if draft.architecture is not DraftArchitecture.llama:
        found.append(f"draft.architecture={draft.architecture.name}")
    if draft.num_layers != 1:
        found.append(f"draft.num_layers={draft.num_layers}")
    if draft.sliding_window is not None:
        found.append(f"draft.sliding_window={draft.sliding_window}")
    if len(ids) != 3 or 0 in ids:
        found.append(f"draft.layer_ids={ids} (three, none of them 0)")
    return found


def check_raw(draft: DraftConfig, shape: Shape) -> None:
    """Whether the raw format can hold this draft.

    Raises:
        EyasError: it can't; what stands in the way is named.
    """
    if found := misfits(draft, shape):
        off = [it for it in found if it.endswith("=true")]
        instead = f" (with {' '.join(it.replace('=true', '=false') for it in off)} a draft can)" if off else ""
        raise EyasError(
            f"export.formats has sglang, whose raw Eagle3 format has no place for {', '.join(found)}{instead}: SGLang would "
            "leave it out without a word; set export.formats=[vllm]"
        )
