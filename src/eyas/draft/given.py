"""A draft that is given: where it lies, what its config says, and which verifier it was trained for. Torch-free.

It is in speculators' format or the raw Eagle3 one (EAGLE's authors, SpecForge, SGLang).
"""

import json
import re
from pathlib import Path
from typing import Any

from eyas.artifact import sha256_of
from eyas.config import Config
from eyas.errors import EyasError
from eyas.verifier.locate import locate

PROVENANCE_FILE = "eyas.json"
"""In an exported draft: which run, step, verifier and data it came from."""

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""What a draft's tensors are looked for in, the first that is there."""


def find_draft(path: str, where: str) -> Path:
    """The draft's directory; a hub id is fetched.

    Raises:
        EyasError: there is none.
    """
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    if path.count("/") != 1 or path.startswith((".", "/", "~")):
        raise EyasError(f"{where}: there is no such directory")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path))
    except Exception as error:  # the hub client raises a dozen kinds: no network, no such repository, no access
        raise EyasError(
            f"{where} is no local directory, and the hub did not give it ({type(error).__name__})"
        ) from error


def read_config(directory: Path, where: str) -> dict[str, Any]:
    """Its config.json.

    Raises:
        EyasError: there is none, or it names another method than EAGLE-3.
    """
    file = directory / "config.json"
    if not file.exists():
        raise EyasError(f"{where}: no config.json in it, so it is no draft")
    config: dict[str, Any] = json.loads(file.read_text())
    if config.get("speculators_model_type", "eagle3") != "eagle3":
        raise EyasError(f"{where} is a {config['speculators_model_type']} draft, expected eagle3")
    return config


def weight_files(directory: Path, where: str) -> list[Path]:
    """The files that its tensors are in.

    Raises:
        EyasError: there are none.
    """
    for pattern in WEIGHTS:
        if found := sorted(directory.glob(pattern)):
            return found
    raise EyasError(f"{where}: neither *.safetensors nor pytorch_model.bin in it")


def content(directory: Path, where: str) -> dict[str, str]:
    """What makes it this draft: the sha256 of its config and its weights."""
    return {file.name: sha256_of(file) for file in [directory / "config.json", *weight_files(directory, where)]}


def provenance_of(directory: Path) -> dict[str, Any]:
    """What Eyas recorded beside a draft that it exported; empty for any other."""
    file = directory / PROVENANCE_FILE
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return record


def short_name(path: str) -> str:
    """What a draft is called in the name of its evaluation: the run that exported it, or its own directory or repository."""
    directory = Path(path).expanduser()
    name = provenance_of(directory).get("run") or (directory.resolve().name if directory.is_dir() else path)
    return re.sub(r"[^\w.+=,-]", "-", name.rpartition("/")[2]).strip("-._") or "draft"


def trained_for(config: Config, directory: Path) -> str | None:
    """What is to be said of the verifier that a draft was trained for; None where it is the one that is configured."""
    record, here = provenance_of(directory).get("verifier"), locate(config.verifier).identity
    if record is None:
        named = read_config(directory, str(directory)).get("speculators_config", {}).get("verifier", {})
        return f"unknown weights; its config names {named['name_or_path']}" if named.get("name_or_path") else None
    if record["weights"] == here:
        return None
    return (
        f"another verifier: weights {record['weights'][:12]} ({record['path'] or record['name']}), measured with "
        f"{here[:12]} ({config.verifier.path or config.verifier.name})"
    )
