"""A `data` group as conf/data/base has it, without Hydra."""

from pathlib import Path
from typing import Any

from eyas.data.schema import DataConfig, Responses


def data_config(path: Path | str | None, **changes: Any) -> DataConfig:
    values: dict[str, Any] = {
        "name": "test",
        "path": path and str(path),
        "split": None,
        "config": None,
        "revision": None,
    }
    values |= {"shape": None, "columns": {}, "drop_media": False, "max_bad_rows": 0, "max_row_bytes": 1 << 25}
    values |= {
        "sample": 1,
        "max_conversations": None,
        "weight": None,
        "mixture": {},
        "answers_by": None,
        "seed": 0,
        "deduplicate": False,
    }
    values |= {
        "set_aside": 0,
        "held_out": 1,
        "max_held_out": 500,
        "max_length": 100,
        "last_turn_only": False,
        "reasoning": True,
    }
    return DataConfig(**{**values, "num_processes": 1, "responses": Responses.keep, **changes})
