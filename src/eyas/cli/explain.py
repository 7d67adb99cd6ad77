"""Hydra's errors in one line: the key or option, what was found, and the nearest right one."""

import difflib
import re
from typing import Any, cast

import hydra
from omegaconf import OmegaConf

from eyas.config import flatten

CONF = "eyas.conf"
MANY = 20
"""Options of a group that are worth listing whole."""


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
        if option.startswith("submitit") and "submitit_slurm" not in options:
            return f'{group}={option} comes with a plugin: pip install "eyas[slurm]"'
        wrong = f"{group}={option}: there is no such option{_nearest(option, options)}"
        shown = sorted(options) if len(options) <= MANY else difflib.get_close_matches(option, options, n=5, cutoff=0)
        more = f" and {len(options) - len(shown)} more" if len(options) > len(shown) else ""
        return f"{wrong}; {group} has: {', '.join(shown)}{more}"
    if type(root) is AttributeError:  # OmegaConf's, where a mapping overrides a section that is null
        return "a mapping on the command line can't replace a section that is null: set it in a YAML (--config-dir)"
    if "Config group override must be a string" in first_line:
        return "a group can't be set to null on the command line; where nothing is wanted it has an option `none`, as experiment=none"
    if match := re.search(r"Could not override '([^']+)'", str(error)):
        return f"{match[1]}: there is no such key{_nearest(match[1], _known_keys())}"
    if "not in '" in first_line and key:
        return f"{file}{key}: there is no such key{_nearest(key, _known_keys())}"
    if match := re.search(r"is not a subclass of Number. value: (\S+)", first_line):
        return f"{key}: {match[1]} is no number of a verifier, which is {{config: dotted.path}} or {{value: x}}"
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


def _nearest(wrong: str, right: list[str]) -> str:
    same_leaf = [key for key in right if key.split(".")[-1] == wrong.split(".")[-1]]
    same_leaf.sort(key=lambda key: key.count("."))
    near = same_leaf or difflib.get_close_matches(wrong, right, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
