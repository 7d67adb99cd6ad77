"""Hydra, and nothing else: from a command line to a checked `Config`, or to one line that says what is wrong with it."""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eyas.cli.auto import search_path, without_auto
from eyas.cli.explain import CONF, explain
from eyas.config import Config, to_config
from eyas.errors import EyasError
from eyas.fields import open_paths
from eyas.process import fail

DIRECTORY_FLAGS = ("--config-dir", "-cd", "--config-path", "-cp")
OPEN_PATHS = tuple(f"{path}." for path in open_paths(Config))


@dataclass(frozen=True)
class Composed:
    """A configuration and how to compose it again."""

    config: Config
    overrides: list[str]
    config_dirs: list[str]


@dataclass(frozen=True)
class Multirun:
    """What `-m`, or a file of sweeps/, asks for: every job, composed and checked."""

    jobs: list[Composed]
    params: list[str]
    """The keys of hydra.sweeper.params."""
    hydra: list[str]
    """The overrides of Hydra itself, among them that of a launcher."""


def from_command_line(task: Callable[[Composed], object], many: Callable[[Multirun], object] | None = None) -> None:
    """Compose what sys.argv asks for, then run `task` on it; Hydra's own flags (--cfg, --help, -m) work as everywhere.

    With -m every job is composed and checked before the first one runs: by `many`, or else by `task` one after another.
    """
    ConfigStore.instance().store(name="schema", node=Config)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that we can say it in one line
    jobs: list[tuple[DictConfig, list[str], list[str]]] = []
    multirun: list[tuple[list[str], list[str]]] = []

    def collect(composed: DictConfig) -> None:
        context = HydraConfig.get()
        config_dirs = [source.path for source in context.runtime.config_sources if source.provider == "command-line"]
        jobs.append((composed, list(context.overrides.task), config_dirs))
        if context.mode is RunMode.MULTIRUN:
            multirun.append((list(context.sweeper.params or {}), launching))

    try:
        arguments = list(map(opened, without_auto(sys.argv[1:])))
        # Hydra's own sweeper and launcher only list the jobs here; they leave a multirun.yaml.
        launching = [it for it in arguments if it.lstrip("+").startswith(("hydra/launcher=", "hydra.launcher."))]
        arguments = [it for it in arguments if it not in launching]
        with tempfile.TemporaryDirectory(prefix="eyas-") as scratch:
            listing = ["hydra/launcher=basic", f"hydra.sweep.dir={scratch}"]
            sys.argv[1:] = beside_overrides(arguments, listing)
            hydra.main(version_base="1.3", config_path=f"pkg://{CONF}", config_name="config")(collect)()
        if jobs and launching and not (multirun and many):
            raise EyasError(
                f"{launching[0]}: a launcher is for the jobs of a sweep of `eyas train`; leave it away here"
            )
        all_composed = [Composed(to_config(config), overrides, config_dirs) for config, overrides, config_dirs in jobs]
    except EyasError as error:
        fail(error)
    except (HydraException, OmegaConfBaseException, ValueError, AttributeError) as error:
        fail(explain(error))
    try:
        if multirun and many is not None:
            many(Multirun(all_composed, *multirun[0]))
        else:
            for composed in all_composed:
                task(composed)
    except EyasError as error:
        fail(error)


def compose(overrides: list[str], config_dirs: list[str]) -> Config:
    """Compose without a command line.

    Raises:
        EyasError: an override that is wrong.
    """
    ConfigStore.instance().store(name="schema", node=Config)
    try:
        with hydra.initialize_config_module(CONF, version_base="1.3"):
            return to_config(hydra.compose("config", overrides=[*search_path(config_dirs), *map(opened, overrides)]))
    except (HydraException, OmegaConfBaseException, ValueError, AttributeError) as error:
        raise EyasError(explain(error)) from None


def beside_overrides(arguments: Sequence[str], more: Sequence[str]) -> list[str]:
    """A command line with more overrides: argparse wants all of them in one piece."""
    before = ["", *arguments]
    place = next(
        (
            place
            for place, argument in enumerate(arguments)
            if before[place] not in DIRECTORY_FLAGS and ("=" in argument or argument[:1] == "~") and argument[:1] != "-"
        ),
        len(arguments),
    )
    return [*arguments[:place], *more, *arguments[place:]]


def opened(override: str) -> str:
    """An override that adds to an open mapping (`data.columns={prompt: q}`), as Hydra wants it said."""
    key, equals, _ = override.partition("=")
    if equals and f"{key}.".startswith(OPEN_PATHS):
        return f"++{override}"
    return override


def saved_overrides(directory: Path) -> tuple[list[str], list[str]]:
    """(overrides, config_dirs) of a run, as `Run.opened` wrote them."""
    saved = cast(dict[str, list[str]], OmegaConf.to_container(OmegaConf.load(directory / "overrides.json")))
    return saved["overrides"], saved["config_dirs"]


def command_line_without(count: int) -> None:
    """Drop the first arguments of sys.argv, which named a command, before Hydra reads the rest."""
    sys.argv = [sys.argv[0], *sys.argv[1 + count :]]
