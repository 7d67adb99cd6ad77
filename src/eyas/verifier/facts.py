"""`VerifierConfig` (YAML, may be unknown) + a checkpoint -> `VerifierFacts` (no optionals, checked)."""

from dataclasses import dataclass
from typing import Any

from eyas.config import Number, VerifierConfig
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class VerifierFacts:
    """All that the rest of Eyas needs to know of a verifier."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    """Rows of the embedding."""
    embedding_key: str
    norm_key: str
    head_key: str
    """The embedding's key where the head is tied."""
    norm_eps: float
    language_config: dict[str, Any]
    """The language model's own config, as the checkpoint states it."""

    @property
    def default_layer_ids(self) -> list[int]:
        """The layers EAGLE-3 reads, by vLLM's convention: id i is the residual stream entering layer i."""
        return [2, self.num_layers // 2, self.num_layers - 3]


def resolve(verifier: VerifierConfig, checkpoint: Checkpoint) -> VerifierFacts:
    """Read and check every fact that the YAML points at.

    Raises:
        EyasError: a path, key or shape that is not what the YAML says.
    """
    where = f"verifier {verifier.name} ({checkpoint.directory})"
    language = _descend(checkpoint.config, verifier.config.path, f"{where}: verifier.config.path")
    if not isinstance(language, dict):
        raise EyasError(f"{where}: verifier.config.path={verifier.config.path!r} is no mapping in config.json")

    def count(field: str) -> int:
        key = getattr(verifier.config, field)
        value = _descend(language, key, f"{where}: verifier.config.{field}")
        if not isinstance(value, int) or value < 1:
            raise EyasError(
                f"{where}: verifier.config.{field}={key} is {value!r} in config.json, expected a positive integer"
            )
        return value

    hidden_size, vocab_size = count("hidden_size"), count("vocab_size")
    heads_present = [key for key in verifier.keys.head if key in checkpoint.tensors]
    if verifier.tied and heads_present:
        raise EyasError(
            f"{where}: verifier.tied is true, but the checkpoint holds a head, {heads_present[0]}; set verifier.tied: false"
        )
    embedding_key = _key(verifier, checkpoint, "embedding", (vocab_size, hidden_size))
    return VerifierFacts(
        hidden_size=hidden_size,
        num_layers=count("num_layers"),
        vocab_size=vocab_size,
        embedding_key=embedding_key,
        norm_key=_key(verifier, checkpoint, "norm", (hidden_size,)),
        head_key=embedding_key if verifier.tied else _key(verifier, checkpoint, "head", (vocab_size, hidden_size)),
        norm_eps=_number(verifier.norm.eps, language, f"{where}: verifier.norm.eps"),
        language_config=language,
    )


def _key(verifier: VerifierConfig, checkpoint: Checkpoint, field: str, shape: tuple[int, ...]) -> str:
    candidates: list[str] = getattr(verifier.keys, field)
    key = next((key for key in candidates if key in checkpoint.tensors), None)
    where = f"verifier {verifier.name} ({checkpoint.directory}): verifier.keys.{field}"
    if key is None:
        stem = candidates[0].split(".")[-2]
        near = [name for name in checkpoint.tensors if stem in name and "layers." not in name][:4]
        fix = "; set verifier.tied: true if the head is the embedding" if field == "head" else ""
        raise EyasError(
            f"{where}: none of {candidates} is in the checkpoint; similar keys there: {near or 'none'}{fix}"
        )
    header = checkpoint.tensors[key]
    if header.shape != shape:
        raise EyasError(f"{where}: {key} has shape {list(header.shape)}, config.json says {list(shape)}")
    if header.dtype not in ("F32", "BF16", "F16"):
        raise EyasError(f"{where}: {key} is stored as {header.dtype}, expected a plain float (F32, BF16, F16)")
    return key


def _number(number: Number, language: dict[str, Any], where: str) -> float:
    value = number.value if number.config is None else _descend(language, number.config, where)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EyasError(f"{where} is {value!r}, expected a number: {{config: dotted.path}} or {{value: x}}")
    return float(value)


def _descend(config: dict[str, Any], path: str, where: str) -> Any:
    node: Any = config
    for part in path.split(".") if path else ():
        if not isinstance(node, dict) or part not in node:
            have = ", ".join(sorted(node)[:12]) if isinstance(node, dict) else type(node).__name__
            raise EyasError(f"{where}={path!r}: config.json has no {part!r} there (it has: {have})")
        node = node[part]
    return node
