"""Whether both compute the same numbers: one document, all of it supervised, where both have the same definition.

(On packed rows speculators trains a few rows more: those before an answer, from step 1 on, whose own token is the prompt's.)
"""

import torch
from speculators.losses.utils import resolve_loss_config
from torch import Tensor, nn

from benchmarks.contenders import ARITHMETIC, Inputs, eyas_row, speculators_model, speculators_row
from benchmarks.rows import Documents
from eyas.draft.loss import position_loss
from eyas.training.schema import Loss
from eyas.verifier.teacher import DraftTeacher, Teacher


def difference(inputs: Inputs) -> tuple[float, float]:
    """How far Eyas's loss and its gradient are from speculators', relatively."""
    row = inputs.rows[0]
    size, num_steps = len(row.input_ids_T), inputs.case.unroll_steps
    row = Documents(
        row.input_ids_T,
        torch.ones_like(row.loss_mask_T),
        torch.zeros_like(row.document_ids_T),
        torch.arange(size),
        row.states_TLH,
    )
    ours, theirs = inputs.draft(), speculators_model(inputs, inputs.draft())
    ours.freeze(trainable_head=False)

    packed = eyas_row(0, row, inputs)
    last_JH = row.states_TLH[packed.unroll.targets_J, -1].float()
    # Its vocabulary is the draft's: speculators doesn't know of targets outside.
    inside = torch.arange(len(inputs.draft_ids_D))
    teacher = DraftTeacher(
        Teacher(ARITHMETIC, inputs.head_VH()[inputs.draft_ids_D].float(), norm_H=inputs.norm_H), inside
    )
    token_J = teacher.token(last_JH)
    found = ours(
        input_ids_T=row.input_ids_T,
        hidden_TLH=row.states_TLH[:, :-1].float(),
        position_ids_T=row.position_ids_T,
        plan=packed.unroll,
        targets=lambda chosen: teacher.targets(last_JH[chosen], token_J[chosen]),
        loss=position_loss(Loss.kl),
        weight_K=1 / packed.unroll.supervised_K,  # theirs is the mean over a step's rows
    ).loss
    batch = speculators_row(row, inputs)
    batch["loss_mask"][:, size - 2 :] = False  # their last row's target is the token after the document
    _, expected, _ = theirs(**batch, ttt_steps=num_steps, loss_config=resolve_loss_config("kl_div", "eager"))
    found.backward()
    expected.backward()
    named = dict(theirs.named_parameters())
    gradients = [(parameter.grad, named[name].grad) for name, parameter in ours.named_parameters()]
    apart = _norm([one - other for one, other in gradients if one is not None and other is not None])
    return float(((found - expected).abs() / expected).detach()), apart / _norm(
        [other for _, other in gradients if other is not None]
    )


def _norm(tensors: list[Tensor]) -> float:
    return float(nn.utils.get_total_norm(tensors))
