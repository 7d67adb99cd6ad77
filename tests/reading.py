"""A `data` group as conf/data/base/reading.yaml has it, without Hydra."""

from pathlib import Path
from typing import Any

from eyas.config import DataConfig


def data_config(path: Path | str, **changes: Any) -> DataConfig:
    values: dict[str, Any] = {"name": "test", "path": str(path), "split": None, "config": None, "shape": None}
    values |= {"columns": {}, "drop_media": False, "deduplicate": False, "max_bad_rows": 0, "max_row_bytes": 1 << 25}
    return DataConfig(**{**values, "num_held_out": 1, "max_length": 100, **changes})
