"""Hydra, and nothing else: from a command line to a checked `Config`, or to one line that says what is wrong with it."""

import difflib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eyas.config import Config, flatten, to_config
from eyas.errors import EyasError
from eyas.process import fail

CONF = "eyas.conf"


@dataclass(frozen=True)
class Composed:
    """A configuration and how to compose it again."""

    config: Config
    overrides: list[str]
    config_dirs: list[str]


def from_command_line(task: Callable[[Composed], object]) -> None:
    """Compose what sys.argv asks for, then run `task` on it; Hydra's own flags (--cfg, --help, -m) work as everywhere.

    With -m every job is composed and checked before the first one runs, one after another.
    """
    ConfigStore.instance().store(name="schema", node=Config)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that we can say it in one line
    jobs: list[tuple[DictConfig, list[str], list[str]]] = []

    def collect(composed: DictConfig) -> None:
        context = HydraConfig.get()
        config_dirs = [source.path for source in context.runtime.config_sources if source.provider == "command-line"]
        jobs.append((composed, list(context.overrides.task), config_dirs))

    try:
        hydra.main(version_base="1.3", config_path=f"pkg://{CONF}", config_name="config")(collect)()
        for composed in [
            Composed(to_config(config), overrides, config_dirs) for config, overrides, config_dirs in jobs
        ]:
            task(composed)
    except EyasError as error:
        fail(error)
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain(error))


def compose(overrides: list[str], config_dirs: list[str]) -> Config:
    """Compose without a command line.

    Raises:
        EyasError: an override that is wrong.
    """
    ConfigStore.instance().store(name="schema", node=Config)
    search = [f"hydra.searchpath=[{','.join(f'file://{path}' for path in config_dirs)}]"] if config_dirs else []
    try:
        with hydra.initialize_config_module(CONF, version_base="1.3"):
            return to_config(hydra.compose("config", overrides=[*search, *overrides]))
    except (HydraException, OmegaConfBaseException) as error:
        raise EyasError(explain(error)) from None


def explain(error: BaseException) -> str:
    """One line: the key or option, what was found, and the nearest right one."""
    root = _root_cause(error)
    where, _, text = str(root).rpartition(" raised while composing config:\n")
    file = f"{match[1]}.yaml: " if (match := re.match(r"In '([^']+)'", where)) else ""
    first_line = text.splitlines()[0]
    key = match[1] if (match := re.search(r"full_key: (\S+)", text)) else getattr(root, "full_key", None)
    if match := re.search(r"Could not find '([^']+)'\n\nAvailable options in '[^']+':\n((?:\t.*\n)*)", str(error)):
        group, _, option = match[1].rpartition("/")
        options = match[2].split()
        wrong = f"{group}={option}: there is no such option{_nearest(option, options)}"
        return f"{wrong}; {group} has: {', '.join(sorted(options))}"
    if match := re.search(r"Could not override '([^']+)'", str(error)):
        return f"{match[1]}: there is no such key{_nearest(match[1], _known_keys())}"
    if "not in '" in first_line and key:
        return f"{file}{key}: there is no such key{_nearest(key, _known_keys())}"
    if first_line.startswith("Missing mandatory value"):
        return f"{key} must be set: {key}=..."
    if match := re.search(r"Error merging override (.+)", str(error)):
        return f"{match[1]}: {first_line}"
    return f"{file}{key}: {first_line}" if key else f"{file}{first_line}"


def _known_keys() -> list[str]:
    """Every dotted key of the default configuration: the schema's, and those of the third-party groups."""
    with hydra.initialize_config_module(CONF, version_base="1.3"):
        values = OmegaConf.to_container(hydra.compose("config"))
    leaves = flatten(cast(dict[str, Any], values))
    return list(dict.fromkeys(part for key in leaves for part in (key.rpartition(".")[0], key) if part))


def saved_overrides(directory: Path) -> tuple[list[str], list[str]]:
    """(overrides, config_dirs) of a run, as `Run.opened` wrote them."""
    saved = cast(dict[str, list[str]], OmegaConf.to_container(OmegaConf.load(directory / "overrides.json")))
    return saved["overrides"], saved["config_dirs"]


def _nearest(wrong: str, right: list[str]) -> str:
    same_leaf = [key for key in right if key.split(".")[-1] == wrong.split(".")[-1]]
    near = same_leaf or difflib.get_close_matches(wrong, right, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def command_line_without(count: int) -> None:
    """Drop the first arguments of sys.argv, which named a command, before Hydra reads the rest."""
    sys.argv = [sys.argv[0], *sys.argv[1 + count :]]
