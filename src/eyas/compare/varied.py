"""What was varied: the keys of configurations in which entries differ, without names, places and devices."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from eyas.compare.entry import Entry
from eyas.stages import INTERVALS, OF_NO_RUN, OF_NO_STATE

NOISE = re.compile(
    rf"({'|'.join(OF_NO_RUN)}|generation)(\.|$)|.*\._(convert|partial|recursive)_$"
    r"|data\.(num_processes|responses|max_bad_rows)$|.*\.answers_by$"
    rf"|capture\.({'|'.join(OF_NO_STATE)}|tokens_per_batch|tokens_per_shard)$"
    rf"|training\.({'|'.join(INTERVALS)})$"
    r"|verifier\.(evidence|published|files|vllm|deployment|trust_remote_code)(\.|$)"
)
"""What doesn't change what a draft learns, or is the setting of its measurement."""

NAMED = ("verifier", "data", "draft")
"""Groups whose name stands for all of their keys, where it differs."""

UNSAID = "-"


def varied_keys(entries: Sequence[Entry]) -> list[str]:
    """The keys in which these entries differ, in the configuration's order."""
    known = [entry.config for entry in entries if entry.config]
    keys = dict.fromkeys(key for config in known for key in config if not NOISE.match(key))
    different = [key for key in keys if _differs(key, known)]
    named = [group for group in NAMED if f"{group}.name" in keys and _differs(f"{group}.name", known)]
    kept = [key for key in different if key.split(".")[0] not in named]
    return [*(f"{group}.name" for group in named), *kept]


def _differs(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Among those that know of its group: a draft that was only measured doesn't say how it was trained."""
    group = key.split(".")[0]
    knowing = [config for config in configs if any(other.split(".")[0] == group for other in config)]
    return len({shown(config.get(key)) for config in knowing}) > 1


def shown(value: Any) -> str:
    """A value for people; of a path its last part, so that a run that was moved is the same run."""
    if value is None:
        return UNSAID
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and value.startswith(("/", "~", "../", "./")):
        return PurePath(value).name
    return ", ".join(map(shown, value)) if isinstance(value, list) else str(value)
