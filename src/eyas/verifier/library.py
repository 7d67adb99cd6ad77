"""The YAML library under `verifier/`: which file says that it is right for which model type. Read plainly, without Hydra."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from eyas.errors import EyasError


@dataclass(frozen=True)
class Entry:
    """One YAML: the option that chooses it (`arch/gemma2`), and what stands in it itself, nothing inherited."""

    option: str
    values: dict[str, Any]
    comment: str
    own: bool = False
    """From a --config-dir, not shipped."""

    @property
    def model_types(self) -> list[str]:
        return list(self.values.get("model_types") or [])


def read_library(config_dirs: Sequence[str] = ()) -> list[Entry]:
    """Every YAML of the group: a user's own first, the shipped ones after them."""
    shipped = Path(str(files("eyas.conf")))
    entries: dict[str, Entry] = {}
    for root in [*(Path(directory) for directory in config_dirs), shipped]:
        for file in sorted((root / "verifier").rglob("*.yaml")):
            option = file.relative_to(root / "verifier").with_suffix("").as_posix()
            if option not in entries:
                entries[option] = _read(option, file, own=root is not shipped)
    return list(entries.values())


def entry_for(library: Sequence[Entry], model_type: str) -> Entry | None:
    """The YAML that lists a model type; a user's own goes before a shipped one.

    Raises:
        EyasError: two list it.
    """
    listing = [entry for entry in library if model_type in entry.model_types]
    listing = [entry for entry in listing if entry.own] or listing
    if len(listing) > 1:
        raise EyasError(
            f"model type {model_type} is listed by {' and '.join(f'verifier/{entry.option}.yaml' for entry in listing)}: "
            "choose one with verifier=..."
        )
    return listing[0] if listing else None


def inherited(library: Sequence[Entry], entry: Entry, *keys: str) -> Any:
    """A value as `entry` has it, from itself or the nearest YAML that it extends; None where none has it."""
    node: Any = entry.values
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    if node is not None:
        return node
    for parent in reversed(parents(library, entry)):
        if (node := inherited(library, parent, *keys)) is not None:
            return node
    return None


def parents(library: Sequence[Entry], entry: Entry) -> list[Entry]:
    """The YAMLs that one extends, in the order of its defaults list."""
    names = [str(it).removesuffix("@_here_").removeprefix("/verifier/") for it in entry.values.get("defaults") or []]
    by_option = {it.option: it for it in library}
    return [by_option[name] for name in names if name in by_option]


def arithmetics(library: Sequence[Entry]) -> list[str]:
    """The archetypes that state an arithmetic of their own, the plainest first."""
    stating = {"norm", "pre_head", "post_head", "head_transform"}
    own = [it.option for it in library if it.option.startswith("arch/") and stating & it.values.keys()]
    return ["arch/llama", *(option for option in own if option != "arch/llama")]


def _read(option: str, file: Path, *, own: bool) -> Entry:
    text = file.read_text()
    try:
        values = OmegaConf.to_container(OmegaConf.create(text))
    except Exception as error:  # PyYAML and OmegaConf raise a dozen kinds; all mean that the file is no YAML mapping
        raise EyasError(f"{file} is not valid YAML: {str(error).splitlines()[0]}") from None
    lines = [line.lstrip("# ").rstrip() for line in text.splitlines() if line.startswith("#")]
    return Entry(option, cast(dict[str, Any], values) if isinstance(values, dict) else {}, " ".join(lines), own)
