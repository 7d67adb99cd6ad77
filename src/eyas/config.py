"""The configuration: one dataclass per group of `conf/`, in the `schema.py` of its room, checked once at the border.

All of them are imported before a configuration is known to be right, so none of them may import torch.
Field = YAML key = argument, spelled alike everywhere; every default a user can see stands in `conf/`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eyas.capture.schema import CaptureConfig, Keep
from eyas.data.schema import DataConfig, GenerationConfig
from eyas.draft.schema import DraftConfig, ExportConfig
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine, EvaluationConfig
from eyas.plan.schema import PlanConfig
from eyas.serving.schema import ServerConfig
from eyas.sweep.schema import SweepConfig
from eyas.training.schema import Accelerator, TrainerConfig, TrainingConfig
from eyas.verifier.schema import VerifierConfig


@dataclass(kw_only=True)
class Config:
    """Everything one run needs."""

    name: str = MISSING
    """The run: its directory is outputs/<name>; the same name starts or resumes."""
    group: str | None = MISSING
    """Runs that belong together (a wandb group)."""
    seed: int = MISSING
    outputs: str = MISSING
    """The directory of all runs and of the shared store."""
    serve: bool = MISSING
    """`eyas doctor serve=true`: serve the untrained draft too, as every training does that vLLM will evaluate."""
    verifier: VerifierConfig = MISSING
    data: DataConfig = MISSING
    generation: GenerationConfig = MISSING
    capture: CaptureConfig = MISSING
    draft: DraftConfig = MISSING
    training: TrainingConfig = MISSING
    optimizer: dict[str, Any] = MISSING
    scheduler: dict[str, Any] = MISSING
    trainer: TrainerConfig = MISSING
    logger: dict[str, Any] = MISSING
    export: ExportConfig = MISSING
    evaluation: EvaluationConfig = MISSING
    server: ServerConfig = MISSING
    plan: PlanConfig = MISSING
    sweep: SweepConfig = MISSING

    def __post_init__(self) -> None:
        if self.training.row_length < self.data.max_length:
            raise EyasError(
                f"training.row_length={self.training.row_length} is shorter than data.max_length={self.data.max_length}: "
                "conversations would be cut a second time; make them equal"
            )
        window, steps = self.draft.sliding_window, self.training.unroll_steps
        if window is not None and window <= steps:
            raise EyasError(
                f"draft.sliding_window={window} with training.unroll_steps={steps}: the last steps would see nothing but drafted "
                f"tokens; set draft.sliding_window to more than {steps}"
            )
        every, saved = self.evaluation.every_n_steps, self.training.checkpoint_every_n_steps
        if every is not None and every % saved:
            raise EyasError(
                f"evaluation.every_n_steps={every} is no multiple of training.checkpoint_every_n_steps={saved}: what is "
                "measured is a checkpoint; change one of them"
            )
        if self.evaluation.engine is Engine.vllm and self.server.endpoints is not None:
            raise EyasError(
                "evaluation=vllm with server=endpoints: a server that already runs can't be given the draft; say evaluation=none "
                "here, and measure the run afterwards with a server of its own: eyas evaluate RUN_DIR evaluation=vllm server=local"
            )
        if (
            self.capture.online
            and self.trainer.accelerator is Accelerator.cuda
            and self.server.endpoints is None
            and self.server.gpus is None
        ):
            raise EyasError(
                "capture.online=true: the server and the training need GPUs at the same time; set server.gpus=[...], training takes "
                f"{self.trainer.devices} (trainer.devices) of the others, or use servers elsewhere: server=endpoints"
            )
        two_steps = 2 * self.training.rows_per_step * self.training.row_length
        if self.capture.online and self.capture.keep is not Keep.all and self.capture.window_tokens < two_steps:
            raise EyasError(
                f"capture.window_tokens={self.capture.window_tokens} is less than two steps of training may need ({two_steps}: twice "
                "training.rows_per_step x training.row_length); make it larger"
            )
        if (
            not re.fullmatch(r"[A-Za-z0-9][\w.+=,-]*(/[A-Za-z0-9][\w.+=,-]*)*", self.name)
            or self.name.split("/")[0] == "store"
        ):
            raise EyasError(
                f"name={self.name!r} is no run name: it becomes a directory under {self.outputs}/, so use letters, "
                "digits and . _ - + = , (with / for a sub-directory); `store` is taken"
            )


def to_config(composed: DictConfig) -> Config:
    """Convert what Hydra composed into types, once; past this border nobody sees a DictConfig.

    The values are merged into a fresh schema, so that a key Hydra let in (`+typo=1`) is refused as well.

    Raises:
        OmegaConfBaseException: an unknown key, a wrong type, a missing value.
        EyasError: values that do not go together.
    """
    values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    return cast(Config, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), values)))


def to_dict(config: Any) -> dict[str, Any]:
    """The plain values of a configuration dataclass, enums by name: what is saved, hashed and compared."""
    values = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return cast(dict[str, Any], values)


def load_config(file: Path) -> Config:
    """Read a resolved configuration that was written as `config_yaml`.

    Raises:
        EyasError: another version of Eyas wrote it.
    """
    try:
        return to_config(cast(DictConfig, OmegaConf.load(file)))
    except OmegaConfBaseException as error:
        raise EyasError(
            f"{file} was written by another version of Eyas ({error.full_key}: {str(error).splitlines()[0]}); use that version, "
            "or start anew with another name=..."
        ) from None


def config_yaml(config: Config) -> str:
    """The resolved configuration as YAML, in the schema's order."""
    return OmegaConf.to_yaml(OmegaConf.create(to_dict(config)))


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
