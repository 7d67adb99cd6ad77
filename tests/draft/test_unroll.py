"""The unroll against speculators' own forward, against loops, and across documents."""

import itertools
from typing import Any

import pytest
import torch
from naive import NAIVE_LOSSES, naive_supervised, naive_unroll
from small import Documents, new_draft
from speculators.losses.utils import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor

from eyas.data.positions import answer_run, shift, supervised, target_positions
from eyas.draft.loss import position_loss
from eyas.draft.model import Draft
from eyas.draft.schema import DraftArchitecture
from eyas.training.schema import Loss
from eyas.verifier.teacher import Targets, Teacher


def reference(draft: Draft, teacher: Teacher) -> Eagle3DraftModel:
    """speculators' model with the same weights, with its own attention and its own teacher."""
    config = draft.config
    config.transformer_layer_config._attn_implementation = "sdpa"
    model = Eagle3DraftModel(config)
    model.load_state_dict(
        {**draft.state_dict(), "verifier_norm.weight": teacher.norm, "verifier_lm_head.weight": teacher.head}
    )
    return model


@pytest.mark.parametrize("architecture", list(DraftArchitecture))
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize(
    "flags",
    [{}, {"norm_before_residual": False}, {"norm_output": False}, {"norm_before_fc": False, "fc_norm": True}],
    ids=str,
)
def test_equals_speculators_forward(
    architecture: DraftArchitecture, num_layers: int, flags: dict[str, bool], teacher: Teacher
) -> None:
    """One document, every target in the draft vocabulary: loss, logits and gradients to 1e-5."""
    changes = {"architecture": architecture, "num_layers": num_layers, **flags}
    model = reference(new_draft(**changes), teacher)
    draft = new_draft(**changes)
    draft.load_state_dict(model.state_dict(), strict=False)
    row = Documents.random((41, 0))
    mask = torch.ones(40, dtype=torch.bool)
    mask[-1] = False  # its target would be the token after the document

    model.lm_head.weight.requires_grad_(True)
    logits: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, output: logits.append(output[0]))
    _, loss, metrics = model(
        hidden_states=row.hidden.flatten(1)[None, :-1],
        input_ids=row.input_ids[None, 1:],
        document_ids=row.document_ids[None, 1:],
        loss_mask=mask[None],
        position_ids=torch.arange(1, 41)[None],
        verifier_last_hidden_states=row.last[None, 1:],
        ttt_steps=3,
        loss_config=resolve_loss_config("kl_div", "eager"),
    )
    draft.freeze(trainable_head=True)
    ours: list[Tensor] = []

    def recording_kl(logits_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        ours.extend(logits_ND.clone().split([39, 38, 37]))
        return position_loss(Loss.kl)(logits_ND, targets)

    # Their loss is the mean over a step's rows, ours the sum; with these weights they are the same.
    unrolled = row.unroll(draft, teacher, loss=recording_kl, weights=[1 / 39, 1 / 38, 1 / 37], targets_at_once=100)
    our_loss = unrolled.loss

    assert torch.allclose(our_loss, loss, rtol=1e-5)
    for step in range(3):
        assert torch.allclose(ours[step], logits[step][: 39 - step], atol=1e-5)
        assert unrolled.accepted_K[step] == metrics[f"full_acc_{step}_sum"]
        assert unrolled.supervised_K[step] == metrics[f"full_acc_{step}_total"]
    loss.backward()
    our_loss.backward()
    theirs = dict(model.named_parameters())
    for name, parameter in draft.named_parameters():
        assert torch.allclose(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6), name


FIELDS = ("loss_K", "trained_K", "supervised_K", "reached_K", "accepted_K")

ROWS = {
    "several turns": Documents.random((31, 4), (25, 0)),
    "short documents": Documents.random((17, 4), (2, 1), (1, 0), (23, 0), (3, 0), (2, 0)),
    "prompts": Documents.random((30, 27), (20, 20), (9, 8)),
}
ROWS["several turns"].loss_mask[9:13] = False
ROWS["several turns"].loss_mask[20] = False


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_layers": 2},
        {"architecture": DraftArchitecture.qwen3, "norm_before_residual": False, "sliding_window": 16},
        {"sliding_window": 20},
    ],
    ids=str,
)
@pytest.mark.parametrize("ids", [torch.arange(96), torch.arange(0, 96, 3)], ids=["all tokens", "every third"])
def test_equals_the_definition(kind: str, loss: Loss, changes: dict[str, Any], ids: Tensor, teacher: Teacher) -> None:
    row, weights = ROWS[kind], [0.8**step for step in range(4)]
    naive, ours = new_draft(ids, **changes), new_draft(ids, **changes)
    naive.freeze(trainable_head=True)
    ours.freeze(trainable_head=True)
    expected = naive_unroll(row, naive, teacher, NAIVE_LOSSES[loss], weights)
    found = row.unroll(ours, teacher, loss, weights)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-5)
    for field in FIELDS:
        assert torch.allclose(getattr(found, field), getattr(expected, field), rtol=1e-5, atol=1e-5), field
    expected.loss.backward()
    found.loss.backward()
    for (name, one), other in zip(ours.named_parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_activations_made_again_are_the_same(num_layers: int, teacher: Teacher) -> None:
    gradients = []
    for recompute in (False, True):
        draft = new_draft(num_layers=num_layers)
        draft.freeze(trainable_head=True)
        draft.recompute = recompute
        ROWS["several turns"].unroll(draft, teacher).loss.backward()
        gradients.append([parameter.grad for parameter in draft.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_targets_that_are_all_outside_the_draft_vocabulary(teacher: Teacher) -> None:
    row = ROWS["short documents"]
    greedy = teacher(row.last).argmax(-1)
    draft = new_draft(torch.tensor([token for token in range(96) if token not in greedy]))
    draft.freeze(trainable_head=True)
    unrolled = row.unroll(draft, teacher)
    unrolled.loss.backward()
    assert unrolled.loss == 0
    assert unrolled.supervised_K[0] > 20
    assert unrolled.accepted_K.tolist() == unrolled.trained_K.tolist() == [0, 0, 0]
    assert not any(parameter.grad.any() for parameter in draft.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("seed", range(5))
def test_supervision_against_the_definition(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(60, generator=generator) < 0.75
    documents = (torch.rand(60, generator=generator) < 0.15).long().cumsum(0)
    run = answer_run(mask, documents)
    targets = set()
    for step, i in itertools.product(range(5), range(60)):
        expected = naive_supervised(mask, documents, i, step)
        assert bool(supervised(run, documents, step)[i]) == expected
        targets |= {i + 1 + step} if expected else set()
    assert set(target_positions(run, documents).nonzero()[:, 0].tolist()) == targets


def test_the_first_answer_token_is_input_only_and_nothing_follows_the_last() -> None:
    mask, documents = torch.tensor([0, 0, 1, 1, 1, 0]).bool(), torch.zeros(6, dtype=torch.long)
    run = answer_run(mask, documents)
    # Row 1 reads the first answer token (2) and predicts 3; row 2 predicts 4, the last. Row 3 would predict beyond it.
    assert supervised(run, documents, 0).tolist() == [False, True, True, False, False, False]
    assert supervised(run, documents, 1).tolist() == [False, True, False, False, False, False]
    assert not supervised(run, documents, 2).any()


def test_changing_one_document_changes_no_others_loss(teacher: Teacher) -> None:
    draft = new_draft()
    draft.freeze(trainable_head=True)
    shapes = [(17, 4), (9, 2), (23, 0)]

    def loss_of_others(row: Documents, changed: int) -> list[Tensor]:
        losses = []
        for document in range(3):
            if document != changed:
                only = Documents(**{**vars(row), "loss_mask": row.loss_mask & (row.document_ids == document)})
                losses.append(only.unroll(draft, teacher).loss_K)
        return losses

    row = Documents.random(*shapes)
    for changed in range(3):
        inside, other = row.document_ids == changed, Documents.random(*shapes, seed=9)
        mixed = Documents(
            torch.where(inside, other.input_ids, row.input_ids),
            torch.where(inside[:, None, None], other.hidden, row.hidden),
            torch.where(inside[:, None], other.last, row.last),
            row.loss_mask,
            row.document_ids,
            row.position_ids,
        )
        for before, after in zip(loss_of_others(row, changed), loss_of_others(mixed, changed), strict=True):
            assert torch.equal(before, after)


def test_packed_documents_lose_what_they_lose_alone(teacher: Teacher) -> None:
    draft = new_draft()
    draft.freeze(trainable_head=True)
    row = Documents.random((17, 4), (2, 1), (1, 0), (23, 0), (3, 0))
    packed = row.unroll(draft, teacher)
    alone = []
    for document in range(5):
        inside = row.document_ids == document
        alone.append(Documents(*(getattr(row, name)[inside] for name in vars(row))).unroll(draft, teacher))
    for field in FIELDS:
        assert torch.allclose(getattr(packed, field), sum(getattr(one, field) for one in alone), atol=1e-4)


def test_targets_outside_the_draft_vocabulary_are_misses(teacher: Teacher) -> None:
    row = Documents.random((60, 0))
    full, small = new_draft(), new_draft(torch.arange(0, 96, 3))
    full.freeze(trainable_head=True)
    small.freeze(trainable_head=True)
    whole, part = row.unroll(full, teacher), row.unroll(small, teacher)
    greedy = teacher(row.last).argmax(-1)
    inside = torch.isin(greedy[1:59], small.draft_ids_D)
    assert torch.equal(part.supervised_K, whole.supervised_K)
    assert part.trained_K[0] == inside.sum()
    assert (part.accepted_K <= part.trained_K).all()


def test_a_row_without_supervision_has_no_loss_and_a_gradient_of_zero(teacher: Teacher) -> None:
    draft = new_draft()
    draft.freeze(trainable_head=True)
    row = Documents.random((5, 5), (1, 0))
    unrolled = row.unroll(draft, teacher)
    assert unrolled.loss_K.tolist() == [0, 0, 0]
    unrolled.loss.backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in draft.parameters())


def test_shift() -> None:
    values = torch.tensor([1, 2, 3])
    assert [shift(values, by).tolist() for by in (0, 1, 3, 9, -1, -3)] == [
        [1, 2, 3],
        [2, 3, 0],
        [0, 0, 0],
        [0, 0, 0],
        [0, 1, 2],
        [0, 0, 0],
    ]


def test_trained_parameters_are_all_there_is_in_the_module_tree(teacher: Teacher) -> None:
    for trainable_head in (True, False):
        draft = new_draft()
        draft.freeze(trainable_head=trainable_head)
        names = {name for name, _ in draft.named_parameters()}
        assert "embed_tokens.weight" not in names
        assert ("lm_head.weight" in names) == trainable_head
        Documents.random((30, 0)).unroll(draft, teacher).loss.backward()
        assert all(parameter.requires_grad and parameter.grad is not None for parameter in draft.parameters())
