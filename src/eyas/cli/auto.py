"""`verifier=auto verifier.path=DIR`, and `eyas inspect`: from a checkpoint to the overrides that are right for it."""

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eyas.cli.explain import CONF, explain
from eyas.config import Config, to_dict
from eyas.errors import EyasError
from eyas.process import run_child
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.detect import Composer, Reading, UnlistedError, detect
from eyas.verifier.library import arithmetics, read_library
from eyas.verifier.schema import VerifierConfig


def without_auto(arguments: Sequence[str]) -> list[str]:
    """A command line with `verifier=auto` replaced by what was found; any other one as it is.

    Raises:
        EyasError: no verifier.path, or a checkpoint that can be read in no or in several ways.
    """
    if "verifier=auto" not in arguments:
        return list(arguments)
    paths = [argument.partition("=")[2] for argument in arguments if argument.startswith("verifier.path=")]
    if not paths:
        raise EyasError("verifier=auto needs verifier.path: the directory of a checkpoint")
    trust = any("trust_remote_code" in argument and "true" in argument.lower() for argument in arguments)
    reading = find(open_directory(Path(paths[-1])), config_dirs(arguments), trust=trust)
    for line in (*reading.why, " ".join(reading.overrides)):
        print(f"auto     {line}", file=sys.stderr)
    given = {argument.partition("=")[0] for argument in arguments} - {"verifier"}
    found = [it for it in reading.overrides if it.partition("=")[0] not in given]
    place = arguments.index("verifier=auto")  # between flags, argparse wants overrides in one piece
    return [*arguments[:place], *found, *arguments[place + 1 :]]


def config_dirs(arguments: Sequence[str]) -> list[str]:
    """The directories of --config-dir, in Hydra's spellings."""
    flags = ("--config-dir", "-cd")
    apart = [it for flag, it in pairwise([*arguments, ""]) if flag in flags]
    joined = [it.partition("=")[2] for it in arguments if it.partition("=")[0] in flags and "=" in it]
    return apart + joined


def find(checkpoint: Checkpoint, directories: Sequence[str], *, trust: bool) -> Reading:
    """What the library says of a checkpoint; for a model type it does not list, what a trial shows.

    `trust`: a trial may run the checkpoint's own code.

    Raises:
        EyasError: no reading, or several.
    """
    compose, library = verifier_composer(directories), read_library(directories)
    name = re.sub(r"[^a-z0-9]+", "_", checkpoint.directory.resolve().name.lower()).strip("_") or "verifier"
    try:
        return detect(checkpoint, name, library, compose)
    except UnlistedError as unlisted:
        print(f"auto     {unlisted}: trying every arithmetic of the library on the model itself", flush=True)
        values = {"name": name, **({f"trust_remote_code.{use}": True for use in ("config", "model")} if trust else {})}
        reading = _trial(checkpoint, name, {option: compose(option, values) for option in arithmetics(library)})
        return replace(reading, values={**reading.values, **values})


def open_directory(directory: Path) -> Checkpoint:
    """A directory in the layout it has; where it holds two, transformers' is read.

    Raises:
        EyasError: no such directory, or no config in it.
    """
    if (directory / "params.json").exists() and not (directory / "config.json").exists():
        return Checkpoint(directory, "params.json", "consolidated*.safetensors")
    checkpoint = Checkpoint(directory)
    _ = checkpoint.config
    return checkpoint


def search_path(directories: Sequence[str]) -> list[str]:
    """The override that makes Hydra look into these directories as well."""
    paths = ",".join(f"file://{Path(directory).absolute()}" for directory in directories)
    return [f"hydra.searchpath=[{paths}]"] if directories else []


def verifier_composer(directories: Sequence[str]) -> Composer:
    """Compose verifiers alone, each option once."""
    ConfigStore.instance().store(name="schema", node=Config)
    composed: dict[str, DictConfig] = {}

    def compose(option: str, values: dict[str, Any]) -> VerifierConfig:
        try:
            if option not in composed:
                with hydra.initialize_config_module(CONF, version_base="1.3"):
                    composed[option] = hydra.compose(
                        "config", overrides=[*search_path(directories), f"verifier={option}"]
                    ).verifier
            verifier = composed[option].copy()
            for key, value in values.items():
                OmegaConf.update(verifier, key, value)
            return cast(VerifierConfig, OmegaConf.to_object(verifier))
        except (hydra.errors.HydraException, OmegaConfBaseException) as error:
            raise EyasError(explain(error)) from None

    return compose


def _trial(checkpoint: Checkpoint, name: str, candidates: dict[str, VerifierConfig]) -> Reading:
    with tempfile.TemporaryDirectory(prefix="eyas-") as directory:
        request = Path(directory) / "request.json"
        options = [{"option": option, "verifier": to_dict(verifier)} for option, verifier in candidates.items()]
        request.write_text(json.dumps({"path": str(checkpoint.directory), "name": name, "candidates": options}))
        run_child("eyas.doctor.trial", request)
        return Reading(**json.loads((request.parent / "reading.json").read_text()))
