"""The memory of a training step, counted while the step runs: the real modules, sharded as they will be, on tensors that hold nothing.

Loading, forward, backward, clipping and optimizer are those of the training; a process group that only pretends stands for the
other devices. The tensors pretend to be a CPU's; where the training runs on GPUs, its attention and its optimizer are a GPU's.

Shapes: T positions of a packed row, L captured layers and the last state, H hidden size, V verifier vocabulary, D draft
vocabulary, J targets.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from hydra.utils import get_object
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import clip_grad_norm_
from torch.testing._internal.distributed.fake_pg import FakeStore

from eyas.config import Config
from eyas.data.loader import PackedRow
from eyas.data.positions import TARGETS_AT_ONCE, TARGETS_AT_ONCE_ON_GPU, plan_unroll
from eyas.draft import layers
from eyas.draft.model import Draft, draft_config
from eyas.draft.shape import Shape
from eyas.plan.gpu_attention import attend_on_gpu
from eyas.plan.ledger import Ledger, Peak
from eyas.tensors import map_tensors
from eyas.training.module import DraftTraining
from eyas.training.schema import Accelerator
from eyas.training.third_party import build
from eyas.verifier.facts import VerifierFacts
from eyas.verifier.teacher import DraftTeacher, Targets, Teacher

WEIGHTS = "weights, float32"
GATHERED = "weights, gathered"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
FROZEN = "embedding, frozen"
TEACHER = "teacher, frozen"
STATES = "states of the rows"
ACTIVATIONS = "activations"
LOGITS = "logits of a chunk"


@dataclass(frozen=True)
class RowLayout:
    """What of a packed row its memory depends on."""

    loss_mask_T: Tensor
    document_ids_T: Tensor

    @classmethod
    def full(cls, length: int) -> "RowLayout":
        """The dearest row that there can be: one document, all of it the verifier's."""
        return cls(torch.ones(length, dtype=torch.bool), torch.zeros(length, dtype=torch.long))

    def cut(self, length: int) -> "RowLayout":
        """Its beginning."""
        return RowLayout(self.loss_mask_T[:length], self.document_ids_T[:length])


@dataclass(frozen=True)
class StepMemory:
    """What one process of the training takes."""

    trained: int
    """Parameters of the draft that are trained."""
    frozen: int
    """Parameters that are only read: embedding, teacher, a head that isn't trained."""
    loading: Peak
    """Until step 1; on a machine with GPUs this is the host's memory."""
    step: Peak
    """From the second step on."""
    row_bytes: int
    """The states of one packed row, as the loader hands it over."""
    saved_bytes: int
    """A checkpoint: weights and optimizer state of all processes."""

    @property
    def peak(self) -> Peak:
        """Of a process whose loading and steps use the same memory."""
        return max(self.loading, self.step, key=lambda peak: peak.total)


class SizedDraft(Draft):
    """A draft of which only sizes are known: its vocabulary can't be looked into."""

    def load_vocab_mappings(self, t2d: Tensor | None, d2t: Tensor | None) -> None:
        pass


class CountedTeacher(DraftTeacher):
    """What it makes, and what is made of that before the backward, belongs to the logits."""

    ledger: Ledger

    def to(self, device: torch.device) -> None:
        """It is where it will be."""

    def token(self, state_NH: Tensor) -> Tensor:
        with self.ledger.during("searching the verifier's tokens", LOGITS):
            return super().token(state_NH)

    def targets(self, state_NH: Tensor, token_N: Tensor) -> Targets:
        self.ledger.moment, self.ledger.part = "judging a chunk of targets", LOGITS
        return super().targets(state_NH, token_N)


def step_memory(config: Config, facts: VerifierFacts, shape: Shape, layout: RowLayout) -> StepMemory:
    """Run two steps that compute nothing, and count. The first one has no optimizer state yet; the second is what is returned."""
    num_devices = config.trainer.devices * config.trainer.num_nodes
    on_gpu = config.trainer.accelerator is Accelerator.cuda
    rows_here = -(-config.training.rows_per_step // num_devices)
    training = replace(config.training, compile=False)  # nothing can be compiled here; compiled, it takes no more
    plan = plan_unroll(
        layout.loss_mask_T,
        layout.document_ids_T,
        training.unroll_steps,
        whole_first_step=config.draft.num_layers > 1,
        targets_at_once=TARGETS_AT_ONCE_ON_GPU if on_gpu else TARGETS_AT_ONCE,
    )
    gradient_shapes: set[tuple[int, ...]] = set()

    def part_of(tensor: Tensor) -> str | None:
        """Gradients are made where they are needed: they are known by their shape, FSDP's buffers by having none."""
        born_in_step = ledger.part in (ACTIVATIONS, LOGITS)
        flat = ledger.moment == "backward" and tensor.dim() == 1 and tensor.is_floating_point()
        return GRADIENTS if born_in_step and (flat or tuple(tensor.shape) in gradient_shapes) else None

    ledger = Ledger(part_of)
    attention = patch.object(layers, "attend", attend_on_gpu) if on_gpu else nullcontext()
    with _pretended_mesh(num_devices) as mesh, FakeTensorMode() as fake, ledger, attention:
        draft, teacher = _loaded(config, facts, shape, ledger)
        trained = sum(parameter.numel() for parameter in draft.parameters())
        frozen = sum(it.numel() for it in (*draft.frozen.values(), *teacher.whole.parameters()))
        with ledger.during("sharding", WEIGHTS):
            module = DraftTraining(draft, teacher, training, build("optimizer", _optimizer(config)), lambda _: None)
            module._device_mesh = mesh  # as Lightning's strategy sets it
            module.configure_model()
            sharded = cast(FSDPModule, draft)
            (optimizer,), _ = module.configure_optimizers()
        ledger.assign(draft.frozen.values(), FROZEN)
        loading = ledger.peak()

        with ledger.during("reading rows", STATES):
            row = _row(layout, plan, shape, config, fake)
            # A GPU holds one row at a time. On a CPU those of this step are there, and those of the next one.
            waiting = [] if on_gpu else [torch.empty_like(row.states_TLH) for _ in range(2 * rows_here - 1)]
        for num_rows in (1, min(rows_here, 2)):
            ledger.peak()
            for index in range(num_rows):
                last = index == num_rows - 1
                sharded.set_requires_gradient_sync(last)
                sharded.set_reshard_after_backward(last)
                with ledger.during("gathering weights", GATHERED):
                    draft.unshard()  # type: ignore[operator]
                gradient_shapes |= {tuple(it.shape) for it in draft.parameters() if it.dim() > 1}
                with ledger.during("forward", ACTIVATIONS):
                    loss = module.unroll(row).loss
                with ledger.during("backward", ACTIVATIONS):
                    loss.backward()
                module.found_tokens.clear()
            ledger.assign((it.grad for it in draft.parameters()), GRADIENTS)
            with ledger.during("clipping", OPTIMIZER):
                clip_grad_norm_(draft.parameters(), training.clip_norm)
            with ledger.during("optimizer step", OPTIMIZER):
                optimizer.step()
                optimizer.zero_grad()
        del waiting
        state = [it for values in optimizer.state.values() for it in values.values() if isinstance(it, Tensor)]
        saved_bytes = sum(it.numel() * it.element_size() for it in (*draft.parameters(), *state))
        return StepMemory(
            trained, frozen, loading, ledger.peak(), row.states_TLH.untyped_storage().nbytes(), saved_bytes
        )


def _loaded(config: Config, facts: VerifierFacts, shape: Shape, ledger: Ledger) -> tuple[Draft, DraftTeacher]:
    """Teacher and draft, as `fit` and `build_draft` load them."""
    capture_dtype: torch.dtype = getattr(torch, config.capture.dtype.name)

    def read(stored: Any, dtype: torch.dtype) -> Tensor | None:
        return None if stored is None else torch.empty(stored.shape, dtype=dtype)

    with ledger.during("loading the teacher", TEACHER):
        head_VH = torch.empty(facts.head.shape, dtype=torch.bfloat16).to(capture_dtype)
        norms = {"norm_H": facts.norm, "norm_bias_H": facts.norm_bias, "head_bias_V": facts.head_bias}
        teacher = Teacher(facts.arithmetic, head_VH, **{key: read(it, capture_dtype) for key, it in norms.items()})
    with ledger.during("loading the draft", WEIGHTS):
        built = draft_config(config.draft, shape, verifier="none", unroll_steps=config.training.unroll_steps)
        draft = SizedDraft(built, torch.arange(shape.draft_vocab_size))
        draft.embed_tokens.weight.data = torch.empty(0)
        draft.embed_tokens.weight.data = torch.empty(facts.embedding.shape, dtype=torch.bfloat16).float()
        head_VH = torch.empty(facts.head.shape, dtype=torch.bfloat16)
        draft.lm_head.weight.data = head_VH[draft.draft_ids_D].float()
        del head_VH
        draft.freeze(trainable_head=config.draft.trainable_head)
    ledger.assign(draft.frozen.values(), FROZEN)
    with ledger.during("loading the teacher", TEACHER):
        counted = CountedTeacher(teacher, draft.draft_ids_D)
    counted.ledger = ledger
    return draft, counted


def _row(layout: RowLayout, plan: Any, shape: Shape, config: Config, fake: FakeTensorMode) -> PackedRow:
    num_positions, num_states = len(layout.loss_mask_T), len(shape.layer_ids) + 1
    states_TLH = torch.empty(
        num_positions, num_states, shape.hidden_size, dtype=getattr(torch, config.capture.dtype.name)
    )
    ids_T = torch.zeros(num_positions, dtype=torch.long)
    unroll = map_tensors(fake.from_tensor, plan)
    return PackedRow(
        number=0, input_ids_T=ids_T, position_ids_T=ids_T, states_TLH=states_TLH, unroll=unroll, token_J=None
    )


def _optimizer(config: Config) -> dict[str, Any]:
    """The group `optimizer`. On a GPU torch's own update all parameters together, which takes more memory: said here, since these
    tensors pretend to be a CPU's."""
    takes = inspect.signature(get_object(config.optimizer["_target_"])).parameters
    together = (
        config.trainer.accelerator is Accelerator.cuda and "foreach" in takes and not config.optimizer.get("fused")
    )
    return {"foreach": True, **config.optimizer} if together else config.optimizer


@contextmanager
def _pretended_mesh(size: int) -> Iterator[DeviceMesh]:
    """So many devices, of which only this process exists; with the dimensions of Lightning's strategy."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield init_device_mesh("cpu", (size, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    finally:
        dist.destroy_process_group()
