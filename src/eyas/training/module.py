"""The Lightning module: one optimizer step over packed rows, on any number of devices.

The draft is sharded at its root with FSDP2: one all-gather and one reduce-scatter a step, however long the unroll. Master
weights, gradients and optimizer state are float32; forward and backward run in `training.compute_dtype`. The teacher and
the draft's frozen tensors are outside the module tree: neither sharded nor saved.

The host never waits for the step that it has just launched: what it must see of one (is it finite?) it sees one step later.

Shapes: S sums (training/metrics.py), K unroll steps, T positions of a packed row, J of them that are targets, H hidden size.
"""

import time
from typing import Any, cast

import lightning
import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from eyas.data.loader import PackedRow, StepRows
from eyas.draft.loss import position_loss
from eyas.draft.model import Draft
from eyas.draft.unroll import Unrolled
from eyas.errors import EyasError
from eyas.training.behind import OneBehind
from eyas.training.metrics import FIELDS, acceptance, stacked
from eyas.training.noise import noisy
from eyas.training.schema import TrainingConfig
from eyas.training.third_party import Builder
from eyas.verifier.teacher import DraftTeacher


class DraftTraining(lightning.LightningModule):
    """Trains `draft` to agree with `teacher`."""

    step_weights_K: Tensor

    def __init__(
        self, draft: Draft, teacher: DraftTeacher, training: TrainingConfig, optimizer: Builder, scheduler: Builder
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.draft, self.teacher = draft, teacher
        self.training_config = training
        steps_K = torch.arange(training.unroll_steps)
        self.register_buffer("step_weights_K", training.step_weight_decay**steps_K, persistent=False)
        self.found_tokens: list[tuple[int, Tensor]] = []
        """(packed row, the verifier's tokens at its targets [J]), of rows that came without: `KeepsTokens` takes them."""
        self.verdicts = OneBehind()
        self.loss = position_loss(training.loss)
        draft.recompute = training.activation_checkpointing
        if training.compile:
            if torch._dynamo.config.disable:
                raise EyasError(
                    "training.compile=true with TORCHDYNAMO_DISABLE=1: nothing would be compiled; unset the one or the other"
                )
            self.loss = torch.compile(self.loss, dynamic=True)
            draft.compile_parts()
        self.build_optimizer, self.build_scheduler = optimizer, scheduler
        self.compute_dtype: torch.dtype = getattr(torch, training.compute_dtype.name)

    def configure_model(self) -> None:
        if isinstance(self.draft, FSDPModule):  # Lightning calls this hook more than once
            return
        self.draft.move_frozen(self.device, self.compute_dtype)
        self.teacher.to(self.device)
        assert self.device_mesh is not None
        # Inputs stay as they are: the teacher's distribution must reach the loss in float32.
        precision = MixedPrecisionPolicy(self.compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(self.draft, mesh=self.device_mesh["data_parallel"], mp_policy=precision)

    def configure_optimizers(self) -> Any:
        optimizer = self.build_optimizer(self.draft.named_parameters())
        return [optimizer], [self.build_scheduler(optimizer)]

    def training_step(self, batch: StepRows, step: int) -> None:
        """One optimizer step: gradients of summed losses, divided by the number of targets on all ranks."""
        started = time.monotonic()
        sharded = cast(FSDPModule, self.draft)
        totals_SK = self.zeros()
        for index, row in enumerate(batch.rows):
            last = index == len(batch.rows) - 1
            sharded.set_requires_gradient_sync(last)
            sharded.set_reshard_after_backward(last)
            unrolled = self.unroll(row)
            unrolled.loss.backward()
            totals_SK += stacked(unrolled)
        totals_SK = self.summed(totals_SK)

        optimizer = cast(Optimizer, self.optimizers())
        values = acceptance(totals_SK, self.step_weights_K)
        values |= {"grad_norm": self.scale_and_clip(totals_SK), "lr": self.number(optimizer.param_groups[0]["lr"])}
        self.refuse_unless_finite(self.verdicts.swap((self.global_step + 1, values["loss"], values["grad_norm"])))
        optimizer.step()
        optimizer.zero_grad()
        self.lr_schedulers().step()  # type: ignore[union-attr]

        seconds = time.monotonic() - started + batch.wait_seconds
        values |= {
            "tokens_per_second": self.summed(self.number(batch.num_tokens)) / seconds,
            "data_wait_share": self.number(batch.wait_seconds / seconds),
        }
        self.record("train", values)

    def on_validation_epoch_start(self) -> None:
        self.validation_SK = self.zeros()

    def validation_step(self, batch: StepRows, step: int) -> None:
        for row in batch.rows:
            self.validation_SK += stacked(self.unroll(row))

    def on_validation_epoch_end(self) -> None:
        self.record("val", acceptance(self.summed(self.validation_SK), self.step_weights_K))

    def unroll(self, row: PackedRow) -> Unrolled:
        """The draft's unroll over one packed row, against the teacher."""
        row = row.to(self.device)
        states_TLH = row.states_TLH[:, :-1].to(self.compute_dtype)
        if self.training and (share := self.training_config.state_noise):
            states_TLH = noisy(states_TLH, share, torch.initial_seed() + (self.global_step << 32) + row.number)
        last_JH = row.states_TLH[row.unroll.targets_J, -1]
        token_J = row.token_J
        if token_J is None:
            token_J = self.teacher.token(last_JH)
            self.found_tokens.append((row.number, token_J))
        unrolled: Unrolled = self.draft(
            input_ids_T=row.input_ids_T,
            hidden_TLH=states_TLH,
            position_ids_T=row.position_ids_T,
            plan=row.unroll,
            targets=lambda chosen: self.teacher.targets(last_JH[chosen], token_J[chosen]),
            loss=self.loss,
            weight_K=self.step_weights_K,
        )
        return unrolled

    def refuse_unless_finite(self, verdict: tuple[int, Tensor, Tensor] | None) -> None:
        """Raises:
        EyasError: a step whose loss or gradient isn't finite.
        """
        if verdict is None:
            return
        step, loss, norm = verdict
        if not (loss.isfinite() and norm.isfinite()):
            found = f"loss {loss.item():.4g}, gradient norm {norm.item():.4g}"
            rows = cast(Any, self.trainer).datamodule.plan.named(step - 1)
            raise EyasError(f"step {step}: {found}, on {rows}; try a lower optimizer.lr under another name")

    def scale_and_clip(self, totals_SK: Tensor) -> Tensor:
        """Gradients of the sum -> of the mean over all ranks' targets (FSDP averages over ranks), clipped; returns the norm."""
        targets = (totals_SK[FIELDS.index("trained")] * self.step_weights_K).sum().clamp_min(1)
        gradients = [parameter.grad for parameter in self.draft.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient.mul_(self.trainer.world_size / targets)
        norm = clip_grad_norm_(self.draft.parameters(), self.training_config.clip_norm)
        return cast(Any, norm).full_tensor() if hasattr(norm, "full_tensor") else norm

    def summed(self, values: Tensor) -> Tensor:
        """Over all ranks, in place; Lightning's own reduction would let the host wait at a barrier first."""
        distributed.all_reduce(values)
        return values

    def number(self, value: float) -> Tensor:
        """On the device, by a kernel there: a copy would wait for all that the device has yet to do."""
        return torch.full((), float(value), device=self.device)

    def zeros(self) -> Tensor:
        return torch.zeros(len(FIELDS), self.training_config.unroll_steps, device=self.device)

    def record(self, stage: str, values: dict[str, Tensor]) -> None:
        """Log under the number of optimizer steps done; Lightning's own count starts at 0."""
        self.log_dict(
            {"step": self.number(self.global_step), **{f"{stage}/{name}": value for name, value in values.items()}}
        )
