"""A training in a process of its own, on random states, and the memory that it took: `python tests/plan/measured.py OVERRIDES...`.

Teacher, draft, loader, module and Lightning's trainer are those of a run; only what they would read from a disk is random.

Shapes: T positions, L layers and the last state, H hidden size, V verifier vocabulary.
"""

import json
import logging
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any, cast

import lightning
import torch
from lightning import Trainer

from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.loader import PackedLoader, RowReader
from eyas.data.plan import Plan
from eyas.data.positions import plan_unroll
from eyas.data.store import Document
from eyas.data.verifier_tokens import VerifierTokens
from eyas.draft.model import Draft, draft_config
from eyas.draft.shape import Shape, resolve_shape
from eyas.plan.published import published_facts
from eyas.training.module import DraftTraining
from eyas.training.sharded import ShardedStrategy
from eyas.training.third_party import build
from eyas.verifier.facts import VerifierFacts
from eyas.verifier.teacher import DraftTeacher, Teacher


class RandomStates:
    """Documents of one row's length, all of them answers."""

    def __init__(self, config: Config, shape: Shape) -> None:
        self.length, self.shape = config.training.row_length, shape
        self.dtype: torch.dtype = getattr(torch, config.capture.dtype.name)

    def verify(self) -> None:
        pass

    def read(self, row: int) -> Document:
        states_TLH = torch.empty(
            self.length, len(self.shape.layer_ids) + 1, self.shape.hidden_size, dtype=self.dtype
        ).normal_()
        ids_T = torch.randint(self.shape.verifier_vocab_size, (self.length,))
        return Document(ids_T, torch.ones(self.length, dtype=torch.bool), states_TLH[:, :-1], states_TLH[:, -1])


def loaded(config: Config, facts: VerifierFacts, shape: Shape) -> tuple[Draft, DraftTeacher]:
    """As `fit` and `build_draft` load them, with random weights."""
    dtype: torch.dtype = getattr(torch, config.capture.dtype.name)

    def read() -> torch.Tensor:
        return torch.empty(facts.head.shape, dtype=torch.bfloat16).normal_(std=0.02)

    teacher = Teacher(facts.arithmetic, read().to(dtype), norm_H=torch.ones(facts.hidden_size, dtype=dtype))
    draft_ids_D = torch.arange(shape.draft_vocab_size)
    draft = Draft(draft_config(config.draft, shape, verifier="none", unroll_steps=1), draft_ids_D)
    draft.embed_tokens.weight.data = torch.empty(0)
    draft.embed_tokens.weight.data = read().float()
    draft.lm_head.weight.data = read()[draft_ids_D].float()
    draft.freeze(trainable_head=config.draft.trainable_head)
    return draft, DraftTeacher(teacher, draft_ids_D)


def train(config: Config, directory: Path) -> None:
    facts = published_facts(config.verifier)
    shape = resolve_shape(config, facts)
    draft, teacher = loaded(config, facts, shape)
    training = config.training
    num_rows = 2 * training.rows_per_step
    plan = Plan.of(config, [training.row_length] * (num_rows + 1), num_rows)
    reader = RowReader(
        RandomStates(config, shape),
        VerifierTokens(directory / "verifier_tokens.i32", num_rows + 1, training.row_length),
        training.row_length,
        partial(plan_unroll, num_steps=training.unroll_steps, whole_first_step=config.draft.num_layers > 1),
    )
    module = DraftTraining(
        draft,
        teacher,
        training,
        build("optimizer", config.optimizer),
        build("scheduler", config.scheduler, num_steps=plan.num_steps),
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        strategy=build("trainer.strategy", config.trainer.strategy, data_parallel_size=1),
        max_steps=plan.num_steps,
        logger=False,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
        callbacks=[Saves(directory / "checkpoint")],
    )
    trainer.fit(module, PackedLoader(reader, plan))


class Saves(lightning.Callback):
    """A checkpoint after the first step, written during the second."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 1:
            trainer.save_checkpoint(self.directory)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        cast(ShardedStrategy, trainer.strategy).finish_saving()


def resident(what: str) -> int:
    """VmRSS (now) or VmHWM (at most since it was reset), in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    lightning.seed_everything(0, verbose=False)
    chosen = compose(sys.argv[1:], [])
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    with tempfile.TemporaryDirectory() as scratch:
        train(chosen, Path(scratch))
    print(json.dumps({"before": before, "peak": resident("VmHWM") - before}))
