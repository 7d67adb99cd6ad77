"""From a checkpoint to the YAML that is right for it: what `verifier=auto` and `eyas inspect` do.

The knowledge is in the YAML library: a file lists the model types whose arithmetic it states. Detection finds that file
by the checkpoint's own `model_type` (a wrapper's, else the language model's inside it) and adds what only this checkpoint
can say: which of the known names it uses and whether its head is tied. Where two readings are possible it refuses.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.language import candidates, descend, language_config
from eyas.verifier.library import Entry, entry_for
from eyas.verifier.schema import VerifierConfig

Composer = Callable[[str, dict[str, Any]], VerifierConfig]
"""(option, values below `verifier`) -> the composed verifier."""

KEYS = ("embedding", "norm", "norm_bias", "head", "head_bias")


class UnlistedError(EyasError):
    """No YAML lists this checkpoint's model type."""


@dataclass(frozen=True)
class Reading:
    """One way to read a checkpoint: an option of the group `verifier`, and what differs from it."""

    option: str
    values: dict[str, Any] = field(default_factory=dict)
    """Dotted below `verifier`."""
    why: tuple[str, ...] = ()

    @property
    def overrides(self) -> list[str]:
        """As a command line says it."""
        return [
            f"verifier={self.option}",
            *(f"verifier.{key}={_literal(value)}" for key, value in self.values.items()),
        ]

    @property
    def yaml(self) -> str:
        """As a file of `conf/verifier/` says it."""
        lines = [f"defaults: [{self.option}@_here_]"]
        tree: dict[str, Any] = {}
        for key, value in self.values.items():
            node = tree
            *parents, leaf = key.split(".")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
        return "\n".join([*lines, *(f"{key}: {_literal(value)}" for key, value in tree.items())]) + "\n"


def detect(checkpoint: Checkpoint, name: str, library: Sequence[Entry], compose: Composer) -> Reading:
    """The reading that the library gives a checkpoint.

    Raises:
        UnlistedError: no YAML lists its model type: only a trial by parity can tell.
        EyasError: two readings are possible.
    """
    option, values, why = _choose(checkpoint, library)
    values = {"name": name, "path": str(checkpoint.directory)} | _files(checkpoint) | values
    verifier = compose(option, values)
    if verifier.refused is not None:
        return Reading(option, values, (*why, f"refused: {verifier.refused}"))
    language = language_config(verifier, checkpoint)
    for key in KEYS:
        if found := _other_names(checkpoint, verifier, key, library):
            values[f"keys.{key}"] = found
            why += (f"{key} is called {found[0]}",)
    if verifier.keys.head_bias and not any(
        verifier.keys.prefix + it in checkpoint.file_of for it in verifier.keys.head_bias
    ):
        values["keys.head_bias"] = []
        why += ("the head has no bias",)
    verifier = compose(option, values)
    tied = not _has_head(checkpoint, verifier)
    flags = {
        where: it["tie_word_embeddings"] for where, it in _levels(checkpoint, language) if "tie_word_embeddings" in it
    }
    if tied and flags and not any(flags.values()):
        raise EyasError(
            f"{checkpoint.directory}: the config says tie_word_embeddings: false, but no key begins like a head "
            f"({', '.join(verifier.keys.head)}): name it with verifier.keys.head, or say verifier.tied: true"
        )
    if tied != verifier.tied:
        values["tied"] = tied
    why += (f"tied: {tied}, as the weights have {'no head' if tied else 'a head'}",)
    if True in flags.values() and not tied:
        why += ("the config's tie_word_embeddings says otherwise, and is not believed",)
    return Reading(option, values, why)


def _choose(checkpoint: Checkpoint, library: Sequence[Entry]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    own_layout = [it for it in library if (it.values.get("files") or {}).get("config") == checkpoint.config_file]
    if own_layout and checkpoint.config_file != "config.json":
        return own_layout[0].option, {}, (f"{checkpoint.config_file} is read by verifier/{own_layout[0].option}.yaml",)
    outer = str(checkpoint.config.get("model_type"))
    if entry := entry_for(library, outer):
        return entry.option, {}, (f"model type {outer} is listed in verifier/{entry.option}.yaml",)
    paths = candidates(checkpoint.config)
    readings = {}
    for path in paths:
        inner = str(descend(checkpoint.config, path).get("model_type"))
        if entry := entry_for(library, inner):
            readings[path] = (entry.option, inner)
    if len(readings) > 1:
        each = "; ".join(f"config.path={path!r} is {inner} ({option})" for path, (option, inner) in readings.items())
        raise EyasError(
            f"{checkpoint.directory}: {checkpoint.config_file} describes {len(readings)} language models: "
            f"{each}. Choose one: verifier=OPTION verifier.config.path=PATH"
        )
    if not readings:
        raise UnlistedError(
            f"no YAML of the verifier library lists model type {outer}"
            + "".join(
                f", nor {descend(checkpoint.config, path).get('model_type')} at {path!r}" for path in paths if path
            )
        )
    path, (option, inner) = next(iter(readings.items()))
    where = f"{inner}, found at {path!r}," if path else inner
    return option, {"config.path": path}, (f"model type {where} is listed in verifier/{option}.yaml",)


def _files(checkpoint: Checkpoint) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if checkpoint.config_file != "config.json":
        values["files.config"] = checkpoint.config_file
    if checkpoint.weights is not None:
        values["files.weights"] = checkpoint.weights
    return values


def _other_names(checkpoint: Checkpoint, verifier: VerifierConfig, key: str, library: Sequence[Entry]) -> list[str]:
    """Where no name of this YAML exists: the one name of another YAML that does. Exact names, never patterns."""
    own = [verifier.keys.prefix + name for name in getattr(verifier.keys, key)]
    if not own or any(_is_there(checkpoint, name) for name in own):
        return []
    known = {
        entry.values["keys"].get("prefix", "") + name
        for entry in library
        if isinstance(entry.values.get("keys"), dict)
        for name in entry.values["keys"].get(key) or []
    }
    found = sorted(name for name in known if _is_there(checkpoint, name))
    if len(found) > 1:
        raise EyasError(
            f"{checkpoint.directory}: {' and '.join(found)} both could be the {key}: set verifier.keys.{key}"
        )
    return [name.removeprefix(verifier.keys.prefix) for name in found]


def _has_head(checkpoint: Checkpoint, verifier: VerifierConfig) -> bool:
    stems = tuple((verifier.keys.prefix + name).rpartition(".")[0] + "." for name in verifier.keys.head)
    biases = {verifier.keys.prefix + name for name in verifier.keys.head_bias}
    return any(key.startswith(stems) and key not in biases for key in checkpoint.file_of)


def _is_there(checkpoint: Checkpoint, name: str) -> bool:
    return name in checkpoint.file_of or f"{name}_packed" in checkpoint.file_of


def _levels(checkpoint: Checkpoint, language: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("top", checkpoint.config), ("language", language)]


def _literal(value: Any) -> str:
    """A value as YAML in one line, which Hydra's command line reads alike."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if re.fullmatch(r"[A-Za-z_/.][\w/.@-]*", value) and isinstance(yaml.safe_load(value), str):
        return value
    quote = '"' if "'" in value else "'"
    return f"{quote}{value}{quote}"
