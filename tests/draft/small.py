"""Small drafts and rows, made at random."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.data.positions import plan_unroll
from eyas.draft.loss import PositionLoss, position_loss
from eyas.draft.model import Draft, draft_config
from eyas.draft.schema import DraftArchitecture, DraftConfig, DraftVocabulary
from eyas.draft.shape import Shape
from eyas.draft.unroll import Unrolled
from eyas.training.schema import Loss
from eyas.verifier.facts import Arithmetic
from eyas.verifier.schema import NormCast, NormKind, Target
from eyas.verifier.teacher import DraftTeacher, Teacher

SHAPE = Shape(
    hidden_size=32,
    verifier_vocab_size=96,
    draft_vocab_size=96,
    layer_ids=[2, 4, 5],
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=64,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    max_position_embeddings=512,
)


def options(**changes: object) -> DraftConfig:
    values = {
        "name": "test",
        "architecture": DraftArchitecture.llama,
        "num_layers": 1,
        "vocab_size": 96,
        "layer_ids": None,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_output": True,
        "sliding_window": None,
        "trainable_head": True,
        "warm_start": False,
        "init": None,
        "init_vocabulary": DraftVocabulary.keep,
    }
    return DraftConfig(**{**values, **changes})  # type: ignore[arg-type]


def new_draft(ids: Tensor | None = None, **changes: object) -> Draft:
    """A random draft whose frozen tensors are random too."""
    ids = torch.arange(96) if ids is None else ids
    torch.manual_seed(1)
    shape = Shape(**{**vars(SHAPE), "draft_vocab_size": len(ids)})
    draft = Draft(draft_config(options(**changes), shape, verifier="somewhere", unroll_steps=3), ids)
    draft.embed_tokens.weight.data = torch.randn(96, 32)
    draft.lm_head.weight.data = torch.randn(len(ids), 32) * 0.3
    return draft


@dataclass
class Documents:
    """A packed row of documents: each a length and the length of its prompt."""

    input_ids: Tensor
    hidden: Tensor
    last: Tensor
    loss_mask: Tensor
    document_ids: Tensor
    position_ids: Tensor

    @classmethod
    def random(cls, *shapes: tuple[int, int], seed: int = 0) -> "Documents":
        generator = torch.Generator().manual_seed(seed)
        lengths = [length for length, _ in shapes]
        total = sum(lengths)
        return cls(
            torch.randint(0, 96, (total,), generator=generator),
            torch.randn(total, 3, 32, generator=generator),
            torch.randn(total, 32, generator=generator),
            torch.cat([torch.arange(length) >= prompt for length, prompt in shapes]),
            torch.repeat_interleave(torch.arange(len(shapes)), torch.tensor(lengths)),
            torch.cat([torch.arange(length) for length in lengths]),
        )

    def unroll(
        self,
        draft: Draft,
        teacher: Teacher,
        loss: Loss | PositionLoss = Loss.kl,
        weights: Sequence[float] = (1, 1, 1),
        targets_at_once: int = 16,
    ) -> Unrolled:
        whole = len(draft.layers) > 1
        plan = plan_unroll(
            self.loss_mask, self.document_ids, len(weights), whole_first_step=whole, targets_at_once=targets_at_once
        )
        of_draft = DraftTeacher(teacher, draft.draft_ids_D)
        last = self.last[plan.targets_J]
        tokens = of_draft.token(last)
        unrolled: Unrolled = draft(
            input_ids_T=self.input_ids,
            hidden_TLH=self.hidden,
            position_ids_T=self.position_ids,
            plan=plan,
            targets=lambda chosen: of_draft.targets(last[chosen], tokens[chosen]),
            loss=position_loss(loss) if isinstance(loss, Loss) else loss,
            weight_K=torch.tensor(weights, dtype=self.hidden.dtype),
        )
        return unrolled


def rms_teacher(norm_H: Tensor, head_VH: Tensor, eps: float) -> Teacher:
    """A Llama's norm and head."""
    arithmetic = Arithmetic(target=Target.pre_norm, norm=NormKind.rms, eps=eps, cast=NormCast.before_weight)
    return Teacher(arithmetic, head_VH, norm_H=norm_H)
