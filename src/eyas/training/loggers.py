"""Where a training's numbers go: metrics.csv always, and what the group `logger` names."""

import hashlib
from typing import Any

from lightning.pytorch.loggers.logger import Logger

from eyas.artifact import provenance
from eyas.config import Config, flatten, to_dict
from eyas.disclosure import disclosed
from eyas.run import Run
from eyas.stages import tokens_artifact
from eyas.training.record import MetricsCsv
from eyas.training.third_party import build

WANDB = "wandb"


def loggers(run: Run, config: Config, *, resume_step: int) -> list[Logger]:
    """metrics.csv and the others, each with the configuration, without secrets and absolute paths."""
    others = [named_logger(run, config, key) for key in config.logger]
    return [MetricsCsv(run.metrics_file, resume_step=resume_step), *others]


def named_logger(run: Run, config: Config, key: str) -> Logger:
    """`logger.<key>`: wandb is told what the run is; any other is as its YAML says."""
    mapping = config.logger[key]
    if key == WANDB:
        # Lightning's own log_model is of its own checkpoints, which there are none of; ours is of the draft (compare/publish.py).
        made: Logger = build(f"logger.{key}", {**mapping, "log_model": False}, **wandb_page(run, config))
        return made
    other: Logger = build(f"logger.{key}", mapping)
    other.log_hyperparams(flatten(disclosed(to_dict(config))))
    return other


def wandb_page(run: Run, config: Config) -> dict[str, Any]:
    """What the run is in Weights & Biases: the same directory is the same run, however often it is resumed."""
    values = disclosed(to_dict(config))
    return {
        "name": config.name,
        "id": hashlib.sha256(str(run.directory.resolve()).encode()).hexdigest()[:12],
        "group": config.group or config.name.rpartition("/")[0] or None,
        "save_dir": str(run.directory),
        "config": {**values, "eyas": {"tokens": tokens_artifact(config).fingerprint, **provenance()}},
    }
