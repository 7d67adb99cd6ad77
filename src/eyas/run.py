"""The run directory `outputs/<name>`: what a run is, and whether a command may start or resume it. Torch-free."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml

from eyas.artifact import MANIFEST, locked, read_manifest, write_file
from eyas.config import Config, config_yaml, flatten, to_dict
from eyas.draft.given import PROVENANCE_FILE
from eyas.draft.schema import Checkpoint, ExportFormat
from eyas.errors import EyasError
from eyas.stages import measurement_identity, run_identity


@dataclass(frozen=True)
class Run:
    """A run's directory and the files in it."""

    directory: Path
    kind: ClassVar[str] = "run"
    identity_name: ClassVar[str] = "identity.yaml"

    @classmethod
    def of(cls, config: Config) -> Self:
        return cls(Path(config.outputs) / config.name)

    @staticmethod
    def identity(config: Config) -> dict[str, Any]:
        """What the directory's content depends on."""
        return run_identity(config)

    @property
    def config_file(self) -> Path:
        return self.directory / "config.yaml"

    @property
    def identity_file(self) -> Path:
        return self.directory / self.identity_name

    @property
    def metrics_file(self) -> Path:
        return self.directory / "metrics.csv"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def logs(self) -> Path:
        """What each of several ranks wrote to stderr, since the last start."""
        return self.directory / "logs"

    def log_of_rank(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    @property
    def draft(self) -> Path:
        return self.directory / "draft"

    @property
    def raw_draft(self) -> Path:
        """The draft in the raw Eagle3 format, where `export.formats` has sglang."""
        return self.directory / "draft-sglang"

    @property
    def server_log(self) -> Path:
        return self.directory / "server.log"

    @property
    def verifier_tokens(self) -> Path:
        """What the verifier says at each target, as the training has found it (`eyas.data.verifier_tokens`)."""
        return self.directory / "verifier_tokens.i32"

    @property
    def report_file(self) -> Path:
        return self.directory / "report.md"

    @property
    def window(self) -> Path:
        """Where states stand between a capture and the training beside it (`eyas.data.window`)."""
        return self.directory / "window"

    def open_window(self) -> None:
        """Before either side starts: states that an earlier start left are kept, what it said is not."""
        self.window.mkdir(exist_ok=True)
        for file in self.window.iterdir():
            if file.suffix != ".safetensors":
                file.unlink()

    @property
    def evaluation_file(self) -> Path:
        return self.directory / "evaluation.json"

    def measured_file(self, step: int) -> Path:
        """evaluation.json of a step on the way (`evaluation.every_n_steps`)."""
        return self.directory / "evaluations" / f"step-{step:08d}.json"

    def exists(self) -> bool:
        return self.identity_file.exists()

    def check(self, config: Config) -> None:
        """Whether `config` may use this directory; nothing is written.

        Raises:
            EyasError: it holds another run, something that is no run, or can't be written.
        """
        if not self.exists():
            if self.directory.exists() and any(not path.name.startswith(".") for path in self.directory.iterdir()):
                raise EyasError(f"{self.directory} exists and is no {self.kind} of Eyas; choose another name=...")
            _check_writable(self.directory)
            return
        found, wanted = flatten(yaml.safe_load(self.identity_file.read_text())), flatten(self.identity(config))
        different = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
        if different:
            changes = "; ".join(f"{key}: {found.get(key)} there, {wanted.get(key)} now" for key in different[:6])
            more = f" and {len(different) - 6} more" if len(different) > 6 else ""
            raise EyasError(
                f"{self.directory} holds another {self.kind} ({changes}{more}); start this one anew with name={config.name}-2"
            )

    @contextmanager
    def opened(self, config: Config, overrides: list[str], config_dirs: list[str]) -> Iterator[None]:
        """Create or reopen the directory and hold it: one process per run.

        Raises:
            EyasError: another process is at work in it.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.held():
            self.check(config)  # again, now that nobody else can be at it
            if not self.exists():
                write_file(self.identity_file, yaml.safe_dump(self.identity(config), sort_keys=False))
            write_file(self.config_file, config_yaml(config))
            composed = {"overrides": overrides, "config_dirs": config_dirs}
            write_file(self.directory / "overrides.json", json.dumps(composed) + "\n")
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """One process per run.

        Raises:
            EyasError: another process is at work in it.
        """
        try:
            with locked(self.directory, wait=False):
                yield
        except BlockingIOError:
            raise EyasError(
                f"{self.directory} is in use by another process; wait for it, or choose another name=..."
            ) from None

    def newest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint; None before the first.

        Raises:
            EyasError: there are checkpoints, but none is complete.
        """
        every, whole = self.all_checkpoints(), self.whole_checkpoints()
        if every and not whole:
            newest = every[-1]
            raise EyasError(
                f"{self.checkpoints} holds checkpoints, but none is complete (the newest, {newest.name}: {damage_of(newest)}); "
                "move them away to start anew"
            )
        return whole[-1] if whole else None

    def all_checkpoints(self) -> list[Path]:
        """Complete or damaged, oldest first."""
        return sorted(path for path in self.checkpoints.glob("step-*") if path.suffix != ".partial")

    def whole_checkpoints(self) -> list[Path]:
        """The complete ones, oldest first."""
        return [path for path in self.all_checkpoints() if not damage_of(path)]

    def best_checkpoints(self) -> list[Path]:
        """Those whose step was validated, by `val/tau_sim`, the best first."""
        tau_sims = {path: read_manifest(path).get("tau_sim") for path in self.whole_checkpoints()}
        validated = {path: float(tau_sim) for path, tau_sim in tau_sims.items() if tau_sim is not None}
        return sorted(validated, key=lambda path: (validated[path], path.name), reverse=True)

    def trained_steps(self) -> int:
        """The step of the newest complete checkpoint; 0 before the first."""
        newest = self.newest_checkpoint()
        return int(read_manifest(newest)["step"]) if newest else 0

    def is_trained(self, config: Config) -> bool:
        """Whether the newest checkpoint ends a training of the length, or of the patience, that `config` asks for."""
        newest = self.newest_checkpoint()
        ended = read_manifest(newest) if newest else {}
        return ended.get("finished_length") == length(config) and ended.get("patience") in (
            None,
            config.training.patience,
        )

    def checkpoint_to_export(self, config: Config) -> Path | None:
        """The newest checkpoint; at the end of a training that which `export.checkpoint` names."""
        newest = self.newest_checkpoint()
        if config.export.checkpoint is Checkpoint.best and self.is_trained(config):
            return next(iter(self.best_checkpoints()), newest)
        return newest

    def exported_step(self) -> int | None:
        """The step of the draft that was exported; None before the first export."""
        return _step(self.draft)

    def is_exported(self, config: Config) -> bool:
        """Whether the draft of the checkpoint to export is there, in every format that `config` asks for."""
        chosen = self.checkpoint_to_export(config)
        wanted = [self.draft, *([self.raw_draft] if ExportFormat.sglang in config.export.formats else [])]
        return chosen is not None and all(_step(it) == read_manifest(chosen)["step"] for it in wanted)

    def evaluation(self) -> dict[str, Any]:
        """evaluation.json; empty where the draft that is there has not been measured."""
        report: dict[str, Any] = json.loads(self.evaluation_file.read_text()) if self.evaluation_file.exists() else {}
        return report if report and report["draft"]["step"] == self.exported_step() else {}

    def is_measured(self, config: Config) -> bool:
        """Whether the draft that is there has been measured as `config` asks, if it asks."""
        return config.evaluation.engine is None or self.evaluation().get("asked") == to_dict(config.evaluation)


@dataclass(frozen=True)
class Measurement(Run):
    """The directory of a draft that is given, and only measured: `eyas evaluate DRAFT`."""

    kind = "evaluation of a draft"
    identity_name = "measurement.yaml"

    @staticmethod
    def identity(config: Config) -> dict[str, Any]:
        return measurement_identity(config)


def damage_of(checkpoint: Path) -> str | None:
    """What a checkpoint lacks; None where each file is there, as long as it was written."""
    manifest = read_manifest(checkpoint)
    if not manifest:
        return f"no {MANIFEST}"
    for name, size in manifest.get("files", {}).items():
        file = checkpoint / name
        if not file.exists():
            return f"{name} is missing"
        if (found := file.stat().st_size) != size:
            return f"{name} has {found:,} bytes of {size:,}"
    return None


def length(config: Config) -> dict[str, Any]:
    """What sets the run's length: no part of its identity, so that a longer one continues it."""
    return {"max_steps": config.training.max_steps, "epochs": config.training.epochs}


def read_metrics(file: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv, each with the columns it has a value for; none where there is no file."""
    if not file.exists():
        return []
    with file.open(newline="") as stream:
        return [
            {key: int(value) if key == "step" else float(value) for key, value in row.items() if value}
            for row in csv.DictReader(stream)
        ]


def _step(draft: Path) -> int | None:
    """The step that a draft was exported at; None also for one that no run made."""
    file = draft / PROVENANCE_FILE
    step: int | None = json.loads(file.read_text())["step"] if file.exists() else None
    return step


def _check_writable(directory: Path) -> None:
    """Try to create the directory, and leave nothing behind."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EyasError(f"outputs: {directory} can't be written ({error.strerror}); set outputs=DIR") from None
    finally:
        for path in missing:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
