"""Training, from a run directory: everything is built here, and Lightning runs it."""

import hashlib
import logging
import warnings
from typing import Any

import lightning
import torch
from lightning import Trainer
from lightning.pytorch.loggers.logger import Logger

from eyas.artifact import read_manifest
from eyas.config import Config, load_config, to_dict
from eyas.data.loader import PackedLoader, ValidationLoader
from eyas.data.packing import num_steps, pack
from eyas.data.store import StateStore
from eyas.data.tokens import Tokens
from eyas.draft.build import build_draft
from eyas.draft.model import Draft
from eyas.draft.vocabulary import coverage
from eyas.errors import EyasError
from eyas.run import Run
from eyas.stages import states_artifact, tokens_artifact, verifier_facts
from eyas.training.checkpoints import Checkpoints
from eyas.training.module import DraftTraining
from eyas.training.record import MetricsCsv, ProgressLines
from eyas.training.third_party import build
from eyas.verifier.locate import locate
from eyas.verifier.teacher import Teacher

ENOUGH_COVERAGE = 0.95


class PackedData(lightning.LightningDataModule):
    """The store's training and held-out documents in packed rows, for Lightning."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.store = StateStore(states_artifact(config).directory)
        first_held_out = Tokens(tokens_artifact(config).directory).num_train_rows
        row_length = config.training.row_length
        self.train_rows = pack(self.store.lengths[:first_held_out], row_length)
        held_out = pack(self.store.lengths[first_held_out:], row_length)
        self.held_out_rows = [[first_held_out + document for document in row] for row in held_out]

    @property
    def num_steps(self) -> int:
        training = self.config.training
        return num_steps(
            len(self.train_rows), training.rows_per_step, max_steps=training.max_steps, epochs=training.epochs
        )

    def prepare_data(self) -> None:
        """On one rank of each machine, before step 1: the states are what was captured."""
        self.store.verify()

    def train_dataloader(self) -> PackedLoader:
        assert self.trainer is not None
        return PackedLoader(
            self.store,
            self.train_rows,
            row_length=self.config.training.row_length,
            rows_per_step=self.config.training.rows_per_step,
            num_steps=self.num_steps,
            seed=self.config.seed,
            rank=self.trainer.global_rank,
            num_ranks=self.trainer.world_size,
        )

    def val_dataloader(self) -> ValidationLoader:
        assert self.trainer is not None
        row_length = self.config.training.row_length
        return ValidationLoader(
            self.store,
            self.held_out_rows,
            row_length=row_length,
            rank=self.trainer.global_rank,
            num_ranks=self.trainer.world_size,
        )


def fit(run: Run) -> bool:
    """Train the run's draft to its full length, from its newest complete checkpoint where there is one.

    Returns whether this process is the one that goes on: of several ranks, the first.
    """
    config = load_config(run.config_file)
    num_devices = config.trainer.devices * config.trainer.num_nodes
    for name in ("lightning.pytorch", "lightning.fabric"):  # what they say, our own lines say
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # lightning, on torch's pytrees
    warnings.filterwarnings("ignore", message=".*(does not have many workers|_all_gather_base|sync_dist=True).*")
    lightning.seed_everything(config.seed, verbose=False)

    data = PackedData(config)
    teacher = Teacher.from_checkpoint(
        locate(config.verifier), verifier_facts(config), getattr(torch, config.capture.dtype.name)
    )
    draft = build_draft(config)
    draft.freeze(trainable_head=config.draft.trainable_head)
    module = DraftTraining(
        draft,
        teacher,
        config.training,
        build("optimizer", config.optimizer),
        build("scheduler", config.scheduler, num_steps=data.num_steps),
    )

    newest = run.newest_checkpoint()
    step = read_manifest(newest)["step"] if newest else 0
    if step > data.num_steps:
        raise EyasError(
            f"{newest} is past the {data.num_steps} steps asked for; ask for more, or start anew with name=..."
        )
    trainer = Trainer(
        accelerator=config.trainer.accelerator.name,
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        strategy=build("trainer.strategy", config.trainer.strategy, data_parallel_size=num_devices),
        max_steps=data.num_steps,
        logger=loggers(run, config, resume_step=step),
        callbacks=[ProgressLines(data.num_steps), Checkpoints(run, config, data.num_steps)],
        log_every_n_steps=config.training.log_every_n_steps,
        val_check_interval=config.training.validate_every_n_steps,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=run.directory,
    )
    if trainer.is_global_zero:
        trained = sum(parameter.numel() for parameter in draft.parameters())
        length = f"{data.num_steps} steps of {config.training.rows_per_step} rows, {trained:,} parameters"
        print(f"train    {coverage_line(config, draft)}", flush=True)
        print(f"train    {f'resumes at step {step}' if newest else 'starts'}: {length}", flush=True)
    trainer.fit(module, data, ckpt_path=newest)
    return trainer.is_global_zero and trainer.global_step >= data.num_steps


def coverage_line(config: Config, draft: Draft) -> str:
    """How much of what the verifier says the draft vocabulary can express; below 95 % acceptance suffers for it."""
    share = coverage(Tokens(tokens_artifact(config).directory).counts_V, draft.draft_ids_D.cpu())
    line = f"draft vocabulary of {len(draft.draft_ids_D):,} tokens covers {share:.1%} of the training answers"
    return line if share >= ENOUGH_COVERAGE else f"{line}: warning, below {ENOUGH_COVERAGE:.0%}; raise draft.vocab_size"


def loggers(run: Run, config: Config, *, resume_step: int) -> list[Logger]:
    """metrics.csv, and what the group `logger` names; wandb knows the run by its directory and resumes it."""
    wandb: dict[str, Any] = {
        "name": config.name,
        "id": hashlib.sha256(str(run.directory.resolve()).encode()).hexdigest()[:12],
        "group": config.group,
        "save_dir": str(run.directory),
        "config": to_dict(config),
    }
    others = [
        build(f"logger.{key}", mapping, **(wandb if key == "wandb" else {})) for key, mapping in config.logger.items()
    ]
    return [MetricsCsv(run.metrics_file, resume_step=resume_step), *others]
