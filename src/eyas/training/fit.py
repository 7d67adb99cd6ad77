"""Training, from a run directory: everything is built here, and Lightning runs it."""

import logging
import warnings
from datetime import timedelta
from functools import partial

import lightning
import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import EarlyStopping

from eyas.artifact import read_manifest, sha256_of
from eyas.capture.schema import CaptureEngine
from eyas.config import Config, load_config
from eyas.data.loader import PackedLoader, RowReader, StepRows, ValidationLoader
from eyas.data.plan import Plan
from eyas.data.positions import TARGETS_AT_ONCE, TARGETS_AT_ONCE_ON_GPU, plan_unroll
from eyas.data.row_files import RowStore
from eyas.data.store import States, StateStore
from eyas.data.tokens import Tokens
from eyas.data.verifier_tokens import VerifierTokens
from eyas.data.window import Window
from eyas.draft.build import build_draft
from eyas.draft.model import Draft
from eyas.draft.vocabulary import coverage
from eyas.errors import EyasError
from eyas.run import Run
from eyas.stages import is_online, states_artifact, tokens_artifact, verifier_facts
from eyas.training.agreement import Agreement, checksum
from eyas.training.checkpoints import Checkpoints
from eyas.training.cost import Cost
from eyas.training.loggers import loggers
from eyas.training.module import DraftTraining
from eyas.training.pause import Pause
from eyas.training.preemption import Preemption
from eyas.training.record import HandsBack, KeepsTokens, ProgressLines
from eyas.training.schema import Accelerator
from eyas.training.third_party import build
from eyas.verifier.locate import locate
from eyas.verifier.teacher import DraftTeacher, Teacher

ENOUGH_COVERAGE = 0.95


class PackedData(lightning.LightningDataModule):
    """Training and held-out documents in packed rows, for Lightning: from the store, or as a capture hands them over."""

    def __init__(self, config: Config, run: Run) -> None:
        super().__init__()
        tokens = Tokens(tokens_artifact(config).directory)
        self.lengths = tokens.lengths
        self.plan = Plan.of(config, tokens.lengths, tokens.num_train_rows)
        self.states = states_of(config, run, tokens)
        self.reader = row_reader(config, run, self.plan, self.states)

    def prepare_data(self) -> None:
        """On one rank of each machine, before step 1: the states are what was captured."""
        self.states.verify()

    def train_dataloader(self) -> PackedLoader:
        return PackedLoader(self.reader, self.plan, **self._ranks)

    def val_dataloader(self) -> ValidationLoader:
        return ValidationLoader(self.reader, self.plan, **self._ranks)

    def transfer_batch_to_device(self, batch: StepRows, device: torch.device, dataloader_idx: int) -> StepRows:
        """The module moves row by row, as it works through them: a device holds one at a time."""
        return batch

    @property
    def _ranks(self) -> dict[str, int]:
        assert self.trainer is not None
        return {"rank": self.trainer.global_rank, "num_ranks": self.trainer.world_size}


def states_of(config: Config, run: Run, tokens: Tokens) -> States:
    """From a capture beside this training, from files that were there before, or from the store."""
    if is_online(config):
        return Window(run.window, tokens)
    directory = states_artifact(config).directory
    return RowStore(directory, tokens) if config.capture.engine is CaptureEngine.files else StateStore(directory)


def row_reader(config: Config, run: Run, plan: Plan, states: States) -> RowReader:
    """Packed rows as this training works through them."""
    training, on_gpu = config.training, config.trainer.accelerator is Accelerator.cuda
    return RowReader(
        states,
        VerifierTokens(run.verifier_tokens, len(plan.rows) + len(plan.held_out_rows), training.row_length),
        training.row_length,
        partial(
            plan_unroll,
            num_steps=training.unroll_steps,
            whole_first_step=config.draft.num_layers > 1,
            targets_at_once=TARGETS_AT_ONCE_ON_GPU if on_gpu else TARGETS_AT_ONCE,
        ),
        pinned=on_gpu,
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

    data = PackedData(config, run)
    num_steps = data.plan.num_steps
    teacher = Teacher.from_checkpoint(
        locate(config.verifier), verifier_facts(config), getattr(torch, config.capture.dtype.name)
    )
    draft = build_draft(config)
    draft.freeze(trainable_head=config.draft.trainable_head)
    module = DraftTraining(
        draft,
        DraftTeacher(teacher, draft.draft_ids_D),
        config.training,
        build("optimizer", config.optimizer),
        build("scheduler", config.scheduler, num_steps=num_steps),
    )

    newest, step = run.newest_checkpoint(), run.trained_steps()
    if step > num_steps:
        raise EyasError(f"{newest} is past the {num_steps} steps asked for; ask for more, or start anew with name=...")
    trained = sum(parameter.numel() for parameter in draft.parameters())
    before = read_manifest(newest).get("cost", {}) if newest else {}
    cost = Cost(data.plan, data.lengths, parameters=trained, before=before)
    timeout, preemption = timedelta(seconds=config.trainer.timeout_seconds), Preemption()
    patience = None
    if config.training.patience is not None:
        patience = EarlyStopping("val/tau_sim", mode="max", patience=config.training.patience)
    checkpoints = Checkpoints(run, config, num_steps, cost, preemption, patience)
    callbacks: list[Callback] = [
        Agreement(what_ranks_share(run, config, draft), timeout),
        ProgressLines(num_steps),
        KeepsTokens(data.reader.verifier_tokens),
        preemption,
        cost,  # before the checkpoints, which write it down
        *([patience] if patience else []),
        checkpoints,
    ]
    if isinstance(data.states, Window):
        callbacks.append(HandsBack(data.states))
    if config.evaluation.every_n_steps is not None:
        callbacks.append(Pause(config.evaluation.every_n_steps))
    trainer = Trainer(
        accelerator=config.trainer.accelerator.name,
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        strategy=build("trainer.strategy", config.trainer.strategy, data_parallel_size=num_devices, timeout=timeout),
        plugins=[LightningEnvironment()],  # the ranks are ours (training/launch.py), under SLURM and torchrun too
        max_steps=num_steps,
        logger=loggers(run, config, resume_step=step),
        callbacks=callbacks,
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
        length = f"{num_steps} steps of {config.training.rows_per_step} rows, {trained:,} parameters"
        print(f"train    {coverage_line(config, draft)}", flush=True)
        print(f"train    {f'resumes at step {step}' if newest else 'starts'}: {length}", flush=True)
    trainer.fit(module, data, ckpt_path=newest)
    return trainer.is_global_zero and (checkpoints.ended or trainer.global_step == num_steps)


def what_ranks_share(run: Run, config: Config, draft: Draft) -> dict[str, str]:
    """By name, what must be the same on every rank before step 1."""
    return {
        "configuration": sha256_of(run.config_file),
        "data": states_artifact(config).fingerprint,
        "draft": checksum([*draft.state_dict().values(), *draft.frozen.values(), draft.draft_ids_D]),
    }


def coverage_line(config: Config, draft: Draft) -> str:
    """How much of what the verifier says the draft vocabulary can express; below 95 % acceptance suffers for it."""
    share = coverage(Tokens(tokens_artifact(config).directory).counts_V, draft.draft_ids_D.cpu())
    line = f"draft vocabulary of {len(draft.draft_ids_D):,} tokens covers {share:.1%} of the training answers"
    return line if share >= ENOUGH_COVERAGE else f"{line}: warning, below {ENOUGH_COVERAGE:.0%}; raise draft.vocab_size"
