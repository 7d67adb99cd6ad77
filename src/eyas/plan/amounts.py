"""How much there is to do, and what it takes outside the devices: tokens, steps, disk, time."""

import math
from dataclasses import dataclass
from pathlib import Path

from eyas.capture.schema import CaptureEngine, Keep
from eyas.config import Config, load_config
from eyas.data.plan import Plan
from eyas.data.tokens import Tokens
from eyas.draft.shape import Shape
from eyas.errors import EyasError
from eyas.fields import Dtype
from eyas.plan.step import RowLayout, StepMemory
from eyas.run import Run, read_metrics
from eyas.stages import regenerates, tokens_artifact

LOOKED_AT = 500
"""Packed rows among which the one with the most supervised tokens is looked for; the longest documents are in the first."""
BYTES = {Dtype.float32: 4, Dtype.bfloat16: 2}


@dataclass(frozen=True)
class Work:
    """The data, as far as it is known. None: not known."""

    source: str
    """Where the numbers come from."""
    tokens: int | None
    """Of all conversations, held-out ones too: what is captured."""
    steps: int | None
    trained_tokens: int | None
    """In all steps."""
    fullest_row: RowLayout
    row_source: str


@dataclass(frozen=True)
class Rate:
    """Tokens per second."""

    tokens_per_second: float
    source: str


def work(config: Config, *, has_checkpoint: bool) -> Work:
    """From the tokens, where they are made; else from `plan.tokens`; else the steps alone, if `training.max_steps` says them."""
    training = config.training
    dearest = RowLayout.full(training.row_length), f"a full row of {training.row_length:,} tokens, all of it answer"
    if config.plan.tokens is None and has_checkpoint and config.data.name != "none":
        artifact = tokens_artifact(config)
        if artifact.exists():
            tokens = Tokens(artifact.directory)
            plan = Plan.of(config, tokens.lengths, tokens.num_train_rows)
            per_row = sum(min(it, training.row_length) for it in tokens.lengths[: tokens.num_train_rows]) / len(
                plan.rows
            )
            trained = round(plan.num_steps * training.rows_per_step * per_row)
            layout, number = _fullest(tokens, plan, training.row_length)
            said = f"row {number}, the fullest of {min(len(plan.rows), LOOKED_AT):,}"
            return Work(f"{artifact.directory}", sum(tokens.lengths), plan.num_steps, trained, layout, said)
    if config.plan.tokens is not None:
        steps = training.max_steps
        if steps is None:
            assert training.epochs is not None  # the configuration has exactly one of them
            num_rows = math.ceil(config.plan.tokens / training.row_length)
            steps = max(1, int(training.epochs * num_rows / training.rows_per_step))
        trained = steps * training.rows_per_step * training.row_length
        return Work("plan.tokens, in full rows", config.plan.tokens, steps, trained, *dearest)
    answers = (
        "eyas generate and eyas prepare make them"
        if has_checkpoint and regenerates(config)
        else "eyas prepare makes them"
    )
    return Work(f"no tokens yet: {answers}, or state plan.tokens=N", None, training.max_steps, None, *dearest)


def _fullest(tokens: Tokens, plan: Plan, row_length: int) -> tuple[RowLayout, int]:
    import torch

    layouts = []
    for documents in plan.rows[:LOOKED_AT]:
        masks = [tokens.row(document)[1][:row_length] for document in documents]
        lengths = torch.tensor([len(mask) for mask in masks])
        layouts.append(RowLayout(torch.cat(masks), torch.repeat_interleave(torch.arange(len(masks)), lengths)))
    number = max(range(len(layouts)), key=lambda it: (int(layouts[it].loss_mask_T.sum()), len(layouts[it].loss_mask_T)))
    return layouts[number], number


def token_bytes(config: Config, shape: Shape) -> int:
    """A token in the store of states: each captured layer's and the last, its id, and whether it is supervised."""
    return (len(shape.layer_ids) + 1) * shape.hidden_size * BYTES[config.capture.dtype] + 5


def states_bytes(config: Config, shape: Shape, num_tokens: int) -> int:
    """The disk that states need at most at one time."""
    if config.capture.engine is CaptureEngine.files:
        return 0
    if config.capture.online and config.capture.keep is not Keep.all:
        num_tokens = min(num_tokens, config.capture.window_tokens)
    return num_tokens * token_bytes(config, shape)


def checkpoint_bytes(config: Config, memory: StepMemory) -> int:
    """All checkpoints that are there at a time: those that stay, and the one that is being written."""
    return memory.saved_bytes * (config.training.keep_last + config.training.keep_best + 1)


def training_rate(config: Config) -> Rate | None:
    """Stated, or measured by a run: `plan.like`, or this one, if it has begun.

    Raises:
        EyasError: `plan.like` is no run, or one that measured nothing.
    """
    if config.plan.training_tokens_per_second is not None:
        return Rate(config.plan.training_tokens_per_second, "plan.training_tokens_per_second")
    run = Run.of(config) if config.plan.like is None else Run(Path(config.plan.like))
    speeds = [
        row["train/tokens_per_second"] for row in read_metrics(run.metrics_file) if "train/tokens_per_second" in row
    ]
    if not speeds:
        if config.plan.like is not None:
            raise EyasError(
                f"plan.like={config.plan.like}: expected a run's directory (outputs/NAME) with steps in metrics.csv"
            )
        return None
    trainer = load_config(run.config_file).trainer
    there, here = trainer.devices * trainer.num_nodes, config.trainer.devices * config.trainer.num_nodes
    # The first ones warm up: what the middle one took is what a step takes.
    rate = sorted(speeds)[len(speeds) // 2] * here / there
    scaled = f", times {here} devices / {there} there" if here != there else ""
    return Rate(rate, f"measured by {run.directory}{scaled}")
