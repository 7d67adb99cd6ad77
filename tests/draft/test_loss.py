"""Every loss and its gradient against autograd through the naive one, in float64; and the head in chunks."""

import pytest
import torch
from naive import NAIVE_LOSSES
from torch import Tensor

from eyas.data.positions import plan_unroll
from eyas.draft.judge import judge
from eyas.draft.loss import LOSSES, Predicted, position_loss
from eyas.training.schema import Loss
from eyas.verifier.teacher import Targets


def targets_of(log_probs_ND: Tensor, token_N: Tensor) -> Targets:
    probs_ND = log_probs_ND.exp()
    return Targets(probs_ND, -(probs_ND * log_probs_ND).sum(-1), token_N)


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 8.0])
def test_against_autograd(loss: Loss, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits, teacher = (torch.randn(9, 40, generator=generator, dtype=torch.float64) * sharpness for _ in range(2))
    teacher[0] = logits[0]
    log_probs, token = teacher.log_softmax(-1), teacher.argmax(-1)
    wanted = logits.clone().requires_grad_()
    expected = NAIVE_LOSSES[loss](wanted, log_probs, token)
    expected.sum().backward()
    found, gradient = LOSSES[loss](Predicted.of(logits.clone()), targets_of(log_probs, token))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    # Where both distributions are the same, min(p, q) has no gradient of its own: any between the two sides is one.
    alike = 1 if loss in (Loss.nla, Loss.lk_hybrid) else 0
    torch.testing.assert_close(gradient[alike:], wanted.grad[alike:], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize("loss", list(Loss))
def test_chunks_add_up(loss: Loss, at_once: int) -> None:
    generator = torch.Generator().manual_seed(3)
    mask, documents = torch.rand(60, generator=generator) < 0.8, torch.arange(60) // 25
    plan, weights = plan_unroll(mask, documents, 3, targets_at_once=at_once), torch.tensor([1.0, 0.5, 0.25])
    states = [
        torch.randn(len(rows.judged_M), 16, generator=generator, dtype=torch.float64, requires_grad=True)
        for rows in plan.steps
    ]
    head = torch.randn(40, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(len(plan.targets_J), 40, generator=generator, dtype=torch.float64)
    token = torch.where(teacher.argmax(-1) < 30, teacher.argmax(-1), -1)
    log_probs = teacher.log_softmax(-1)
    judged = judge(
        torch.cat(states), head, lambda it: targets_of(log_probs[it], token[it]), plan, position_loss(loss), weights
    )
    hits = judged.hit_R.split([len(state) for state in states])
    (3 * judged.loss).backward()
    found = [head.grad, *(state.grad for state in states)]
    head.grad, expected = None, head.new_zeros(())
    for state in states:
        state.grad = None
    for step, (state, rows) in enumerate(zip(states, plan.steps, strict=True)):
        inside = token[rows.target_M] >= 0
        logits = state @ head.T
        losses = NAIVE_LOSSES[loss](logits, log_probs[rows.target_M], token[rows.target_M].clamp_min(0))[inside]
        expected = expected + weights[step] * losses.sum()
        torch.testing.assert_close(judged.loss_K[step], losses.sum())
        assert judged.trained_K[step] == inside.sum()
        assert torch.equal(hits[step], logits.argmax(-1) == token[rows.target_M])
    torch.testing.assert_close(judged.loss, expected)
    (3 * expected).backward()
    for one, other in zip(found, [head.grad, *(state.grad for state in states)], strict=True):
        torch.testing.assert_close(one, other)
