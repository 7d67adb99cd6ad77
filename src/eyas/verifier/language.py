"""Where in a checkpoint's config the language model is described, and how its quantisation is."""

from typing import Any

from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig


def language_config(verifier: VerifierConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """The language model's config inside the checkpoint's.

    Raises:
        EyasError: the path is absent, or it is null and not exactly one part describes a language model.
    """
    path, where = verifier.config.path, f"verifier {verifier.name} ({checkpoint.directory}): verifier.config.path"
    if path is None:
        return _only_candidate(checkpoint, where)
    try:
        language = descend(checkpoint.config, path)
    except KeyError as missing:
        others = candidates(checkpoint.config)
        hint = f"; a language model's config seems to be at {' or '.join(map(repr, others))}" if others else ""
        raise EyasError(
            f"{where}={path!r}: {checkpoint.config_file} has no {missing.args[0]} there{hint}: set verifier.config.path"
        ) from None
    if not isinstance(language, dict):
        raise EyasError(f"{where}={path!r} is no mapping in {checkpoint.config_file}")
    return language


def _only_candidate(checkpoint: Checkpoint, where: str) -> dict[str, Any]:
    found = candidates(checkpoint.config)
    if len(found) != 1:
        each = " and at ".join(f"{path!r}" if path else "the top level" for path in found)
        what = (
            f"describes language models at {each}"
            if found
            else "describes no language model (no vocab_size beside layers)"
        )
        raise EyasError(
            f'{where} is null, and {checkpoint.config_file} {what}: set it to the one whose logits are wanted ("" is the top)'
        )
    language: dict[str, Any] = descend(checkpoint.config, found[0])
    return language


def quantization_block(path: str | None, config: dict[str, Any], language: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint's own account of its quantisation; {} where it has none."""
    try:
        block = (
            descend(config, path) if path else config.get("quantization_config") or language.get("quantization_config")
        )
    except KeyError:
        return {}
    return block if isinstance(block, dict) else {}


def candidates(config: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths of the parts of a config that look like a language model's: a vocabulary, and layers of some width.

    The names are those that transformers' own text configs use; they serve error messages and detection, never facts.
    """
    width = {"hidden_size", "d_model", "n_embd", "dim", "embed_dim", "num_hidden_layers", "n_layers"}
    found = [prefix] if "vocab_size" in config and width & config.keys() else []
    for key, value in config.items():
        if isinstance(value, dict) and "config" in key and "quantization" not in key:
            found += candidates(value, f"{prefix}.{key}" if prefix else key)
    return found


def descend(config: dict[str, Any], path: str) -> Any:
    """The value at a dotted path.

    Raises:
        KeyError: the first part that is absent.
    """
    node: Any = config
    for part in path.split(".") if path else ():
        if not isinstance(node, dict) or part not in node:
            raise KeyError(part)
        node = node[part]
    return node
