"""Who is compared: Eyas's training step as Lightning runs it, and speculators' own model in a plain loop.

Both start from the same random draft and see the same rows, in the same order. Neither counts the making of its rows: Eyas
makes them in a thread beside the training, speculators in the workers of its DataLoader.
"""

from collections.abc import Iterator
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from speculators.losses.utils import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.products import Products
from benchmarks.rows import Case, Documents, configuration, packed_rows, shape
from eyas.config import Config
from eyas.data.loader import PackedRow, StepRows
from eyas.data.positions import TARGETS_AT_ONCE, TARGETS_AT_ONCE_ON_GPU, plan_unroll
from eyas.draft.model import Draft, draft_config
from eyas.draft.shape import Shape
from eyas.training.module import DraftTraining
from eyas.training.third_party import build
from eyas.verifier.facts import Arithmetic
from eyas.verifier.schema import NormCast, NormKind, Target
from eyas.verifier.teacher import DraftTeacher, Teacher

NUM_ROWS = 4
ARITHMETIC = Arithmetic(target=Target.pre_norm, norm=NormKind.rms, eps=1e-5, cast=NormCast.before_weight)

Steps = Iterator[None]
"""Yields when a step is asked for; asked to go on, it takes that for the step's end."""


class Inputs:
    """What both contenders start from."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        self.config: Config = configuration(case)
        self.sizes: Shape = shape(case, self.config)
        self.dtype: torch.dtype = getattr(torch, case.dtype)
        self.rows = packed_rows(case, self.config, self.sizes, NUM_ROWS, self.dtype)
        self.norm_H = torch.ones(self.sizes.hidden_size, dtype=self.dtype)
        self.draft_ids_D = torch.arange(self.sizes.draft_vocab_size)

    def head_VH(self) -> Tensor:
        """The verifier's head, made anew: whoever needs none of it, or a part, doesn't keep it."""
        torch.manual_seed(0)
        vocabulary, hidden_size = self.sizes.verifier_vocab_size, self.sizes.hidden_size
        return torch.randn(vocabulary, hidden_size).mul_(hidden_size**-0.5).to(self.dtype)

    def draft(self) -> Draft:
        torch.manual_seed(1)
        config = draft_config(self.config.draft, self.sizes, verifier="none", unroll_steps=self.case.unroll_steps)
        draft = Draft(config, self.draft_ids_D)
        draft.embed_tokens.weight.data = torch.randn(self.sizes.verifier_vocab_size, self.sizes.hidden_size)
        draft.lm_head.weight.data = self.head_VH()[self.draft_ids_D].float()
        return draft

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        if self.case.draft == "llama8b" and self.device.type == "cpu":
            return torch.optim.SGD(parameters, lr=1e-4)  # two states of AdamW, 3.4 GB each, are too much for 24 GB
        made: torch.optim.Optimizer = build("optimizer", self.config.optimizer)(parameters)
        return made


class _Asked:
    """A data loader whose next row is there when it is asked for."""

    def __init__(self, rows: list[PackedRow], asked: Steps) -> None:
        self.rows, self.asked = rows, asked

    def __len__(self) -> int:
        return 1_000_000

    def __iter__(self) -> Iterator[StepRows]:
        for number, _ in enumerate(self.asked):
            yield StepRows([self.rows[number % len(self.rows)]], 0.0)


def eyas_row(number: int, row: Documents, inputs: Inputs) -> PackedRow:
    """As the loader makes it in its thread. From the second pass on, the verifier's own tokens are known."""
    at_once = TARGETS_AT_ONCE_ON_GPU if inputs.device.type == "cuda" else TARGETS_AT_ONCE
    steps = inputs.case.unroll_steps
    unroll = plan_unroll(row.loss_mask_T, row.document_ids_T, steps, targets_at_once=at_once)
    tokens_J = None if inputs.case.first_pass else torch.zeros(len(unroll.targets_J), dtype=torch.long)
    return PackedRow(number, row.input_ids_T, row.position_ids_T, row.states_TLH, unroll, tokens_J)


def train_eyas(inputs: Inputs, asked: Steps) -> None:
    """Eyas: the Lightning module, sharded over one device."""
    draft = inputs.draft()
    draft.freeze(trainable_head=False)
    module = DraftTraining(
        draft,
        DraftTeacher(Teacher(ARITHMETIC, inputs.head_VH(), norm_H=inputs.norm_H), draft.draft_ids_D),
        inputs.config.training,
        inputs.optimizer,
        lambda optimizer: LambdaLR(optimizer, lambda _: 1.0),
    )
    lightning.Trainer(
        accelerator="cuda" if inputs.device.type == "cuda" else "cpu",
        devices=1,
        strategy=ModelParallelStrategy(tensor_parallel_size=1),
        max_steps=1_000_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    ).fit(module, _Asked([eyas_row(number, row, inputs) for number, row in enumerate(inputs.rows)], asked))


def train_speculators(inputs: Inputs, asked: Steps) -> None:
    """speculators' model: its forward, its loss, its way of packing; automatic mixed precision for bfloat16."""
    model = speculators_model(inputs, inputs.draft()).to(inputs.device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = inputs.optimizer(parameters)
    rows = [speculators_row(row, inputs) for row in inputs.rows]
    loss_config = resolve_loss_config("kl_div", "eager")
    for number, _ in enumerate(asked):
        batch = {name: it.to(inputs.device) for name, it in rows[number % len(rows)].items()}
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.dtype is torch.bfloat16):
            _, loss, _ = model(**batch, ttt_steps=inputs.case.unroll_steps, loss_config=loss_config)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(parameters, inputs.config.training.clip_norm)
        optimizer.step()


def speculators_model(inputs: Inputs, draft: Draft) -> Eagle3DraftModel:
    """With the draft's weights and the verifier's norm and head, as speculators would load them."""
    config = draft.config
    on_gpu = inputs.device.type == "cuda"
    config.transformer_layer_config._attn_implementation = "simple_flex_attention" if on_gpu else "sdpa"
    model = Eagle3DraftModel(config)
    head_DH = inputs.head_VH()[inputs.draft_ids_D].float()
    teacher = {"verifier_norm.weight": inputs.norm_H.float(), "verifier_lm_head.weight": head_DH}
    model.load_state_dict({**draft.state_dict(), **teacher})
    return model


def speculators_row(row: Documents, inputs: Inputs) -> dict[str, Tensor]:
    """Each document shifted by one, padded to the row's length: what its collation makes of the same documents."""
    last_of_document = torch.cat([row.document_ids_T.diff() != 0, torch.ones(1, dtype=torch.bool)])
    here, ahead = (~last_of_document).nonzero()[:, 0], (~last_of_document).nonzero()[:, 0] + 1
    columns = {
        "hidden_states": row.states_TLH[:, :-1].flatten(1)[here].float(),
        "input_ids": row.input_ids_T[ahead],
        "loss_mask": row.loss_mask_T[ahead],
        "verifier_last_hidden_states": row.states_TLH[:, -1][ahead].float(),
        "position_ids": row.position_ids_T[ahead],
        "document_ids": row.document_ids_T[here],
    }
    padding = inputs.case.row_length - len(here)
    return {
        name: torch.cat([it, it.new_full((padding, *it.shape[1:]), -1 if name == "document_ids" else 0)])[None]
        for name, it in columns.items()
    }


def run_products(inputs: Inputs, asked: Steps) -> None:
    """The bound (`benchmarks/products.py`)."""
    plans = [eyas_row(number, row, inputs).unroll for number, row in enumerate(inputs.rows)]
    products = Products(plans, inputs.sizes, inputs.dtype, inputs.device)
    for number, _ in enumerate(asked):
        products.run(number)


CONTENDERS = {"eyas": train_eyas, "speculators": train_speculators, "products": run_products}
