"""The Lightning module: one optimizer step over packed rows, on any number of devices.

The draft is sharded at its root with FSDP2: one all-gather and one reduce-scatter a step, however long the unroll. Master
weights, gradients and optimizer state are float32; forward and backward run in `training.compute_dtype`. The teacher and
the draft's frozen tensors are outside the module tree: neither sharded nor saved.
"""

import time
from typing import Any, cast

import lightning
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from eyas.config import TrainingConfig
from eyas.data.loader import PackedRow, StepRows
from eyas.draft.loss import LOSSES
from eyas.draft.model import Draft
from eyas.draft.unroll import Unrolled, answer_run, target_positions
from eyas.errors import EyasError
from eyas.training.third_party import Builder
from eyas.verifier.teacher import Teacher


class DraftTraining(lightning.LightningModule):
    """Trains `draft` to agree with `teacher`."""

    def __init__(
        self, draft: Draft, teacher: Teacher, training: TrainingConfig, optimizer: Builder, scheduler: Builder
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.draft = draft
        self._teacher = [teacher]  # in a list: not a submodule
        self.training_config = training
        self.build_optimizer, self.build_scheduler = optimizer, scheduler
        self._started = time.monotonic()

    @property
    def teacher(self) -> Teacher:
        return self._teacher[0]

    def configure_model(self) -> None:
        if isinstance(self.draft, FSDPModule):  # Lightning calls this hook more than once
            return
        dtype = getattr(torch, self.training_config.compute_dtype.name)
        self.draft.move_frozen(self.device, dtype)
        self.teacher.to(self.device)
        assert self.device_mesh is not None
        fully_shard(
            self.draft,
            mesh=self.device_mesh["data_parallel"],
            mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        )

    def configure_optimizers(self) -> Any:
        optimizer = self.build_optimizer(self.draft.parameters())
        return [optimizer], [self.build_scheduler(optimizer)]

    def training_step(self, batch: StepRows, step: int) -> None:
        """One optimizer step: gradients of summed losses, divided by the weighted number of targets on all ranks."""
        started = time.monotonic()
        sharded = cast(FSDPModule, self.draft)
        weight_K = self.step_weights
        totals_SK = torch.zeros(len(FIELDS), len(weight_K), device=self.device)
        for index, row in enumerate(batch.rows):
            sharded.set_requires_gradient_sync(index == len(batch.rows) - 1)
            unrolled = self.unroll(row)
            (unrolled.loss_K * weight_K).sum().backward()
            totals_SK += stacked(unrolled)
        totals_SK = self.summed(totals_SK)

        optimizer = cast(Optimizer, self.optimizers())
        loss = (totals_SK[0] * weight_K).sum() / (totals_SK[1] * weight_K).sum()
        norm = self.scale_and_clip(1 / (totals_SK[1] * weight_K).sum())
        if not (loss.isfinite() and norm.isfinite()):
            raise EyasError(
                f"step {self.global_step + 1}: loss {loss.item():.4g}, gradient norm {norm.item():.4g}; lower optimizer.lr"
            )
        optimizer.step()
        optimizer.zero_grad()
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]

        seconds = time.monotonic() - started + batch.wait_seconds
        num_tokens = self.summed(
            torch.tensor(float(sum(len(row.input_ids_T) for row in batch.rows)), device=self.device)
        )
        speed = {"tokens_per_second": num_tokens / seconds, "data_wait_share": batch.wait_seconds / seconds}
        rates = {"grad_norm": norm, "lr": optimizer.param_groups[0]["lr"]}
        self.log_dict(
            {
                f"train/{name}": value
                for name, value in {"loss": loss, **acceptance(totals_SK), **rates, **speed}.items()
            }
        )

    def on_validation_epoch_start(self) -> None:
        self._validation_SK = torch.zeros(len(FIELDS), self.training_config.unroll_steps, device=self.device)

    def validation_step(self, batch: StepRows, step: int) -> None:
        for row in batch.rows:
            self._validation_SK += stacked(self.unroll(row))

    def on_validation_epoch_end(self) -> None:
        totals_SK, weight_K = self.summed(self._validation_SK), self.step_weights
        loss = (totals_SK[0] * weight_K).sum() / (totals_SK[1] * weight_K).sum()
        self.log_dict({f"val/{name}": value for name, value in {"loss": loss, **acceptance(totals_SK)}.items()})

    def unroll(self, row: PackedRow) -> Unrolled:
        """The draft's unroll over one packed row, against the teacher."""
        run_T = answer_run(row.loss_mask_T, row.document_ids_T)
        last_NH = row.last_TH[target_positions(run_T, row.document_ids_T)]
        unrolled: Unrolled = self.draft(
            input_ids_T=row.input_ids_T,
            hidden_TLH=row.hidden_TLH.to(getattr(torch, self.training_config.compute_dtype.name)),
            run_T=run_T,
            document_ids_T=row.document_ids_T,
            position_ids_T=row.position_ids_T,
            targets=self.teacher.targets(last_NH.to(self.teacher.norm.dtype), self.draft.draft_ids_D),
            loss=LOSSES[self.training_config.loss],
            num_steps=self.training_config.unroll_steps,
        )
        return unrolled

    @property
    def step_weights(self) -> Tensor:
        steps = torch.arange(self.training_config.unroll_steps, device=self.device)
        return torch.tensor(self.training_config.step_weight_decay, device=self.device) ** steps

    def scale_and_clip(self, scale: Tensor) -> Tensor:
        """Multiply every gradient by `scale` (FSDP has averaged over ranks: undo that), clip, return the norm before clipping."""
        parameters = [parameter for parameter in self.draft.parameters() if parameter.grad is not None]
        for parameter in parameters:
            cast(Tensor, parameter.grad).mul_(scale * self.trainer.world_size)
        norm = clip_grad_norm_(parameters, self.training_config.clip_norm)
        return cast(Any, norm).full_tensor() if hasattr(norm, "full_tensor") else norm

    def summed(self, values: Tensor) -> Tensor:
        """Over all ranks."""
        return cast(Tensor, self.trainer.strategy.reduce(values, reduce_op="sum"))


FIELDS = ("loss", "trained", "supervised", "reached", "accepted")


def stacked(unrolled: Unrolled) -> Tensor:
    """An unroll's sums as one tensor [FIELDS, K], without gradient."""
    return torch.stack([getattr(unrolled, f"{field}_K").detach().float() for field in FIELDS])


def acceptance(totals_SK: Tensor) -> dict[str, Tensor]:
    """Acceptance per step, joint (all steps so far right) and conditional, and the tau they add up to.

    tau counts tokens per verifier forward: 1 + the sum of joint prefix hits, teacher-forced; a target outside the draft
    vocabulary is a miss.
    """
    _, _, supervised_K, reached_K, accepted_K = totals_SK
    joint_K, conditional_K = accepted_K / supervised_K.clamp_min(1), accepted_K / reached_K.clamp_min(1)
    steps = range(len(joint_K))
    return {
        **{f"acceptance_{step}": joint_K[step] for step in steps},
        **{f"acceptance_cond_{step}": conditional_K[step] for step in steps},
        "tau_sim": 1 + joint_K.sum(),
    }
