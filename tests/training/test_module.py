"""What the Lightning module hands to the draft, sharded and in bfloat16, on one gloo rank."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from small import Documents, new_draft, rms_teacher
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from eyas.config import Config
from eyas.data.loader import PackedRow
from eyas.data.positions import plan_unroll
from eyas.draft import loss
from eyas.draft.model import Draft
from eyas.fields import Dtype
from eyas.training.module import DraftTraining
from eyas.training.schema import Loss, TrainingConfig
from eyas.verifier.teacher import DraftTeacher, Targets, Teacher


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def sharded(draft: Draft, teacher: Teacher, training: TrainingConfig) -> DraftTraining:
    """The module as Lightning sets it up, on one rank."""
    draft.freeze(trainable_head=True)
    of_draft = DraftTeacher(teacher, draft.draft_ids_D)
    module = DraftTraining(draft, of_draft, training, torch.optim.SGD, torch.optim.SGD)
    module._device_mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
    module.configure_model()
    return module


def packed(row: Documents, num_steps: int) -> PackedRow:
    return PackedRow(
        number=0,
        input_ids_T=row.input_ids,
        position_ids_T=row.position_ids,
        states_TLH=torch.cat([row.hidden, row.last[:, None]], dim=1),
        unroll=plan_unroll(row.loss_mask, row.document_ids, num_steps),
        token_J=None,
    )


@pytest.mark.usefixtures("process_group")
def test_bfloat16_computes_the_draft_and_not_the_teacher(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []

    def recording(predicted: loss.Predicted, targets: Targets) -> tuple[Tensor, Tensor]:
        assert predicted.logits_ND.dtype is targets.probs_ND.dtype is torch.float32
        seen.append(tuple(bool((it == it.bfloat16()).all()) for it in (predicted.logits_ND, targets.probs_ND)))  # type: ignore[arg-type]
        return loss.kl(predicted, targets)

    monkeypatch.setitem(loss.LOSSES, Loss.kl, recording)
    training = tiny().training
    training.compute_dtype = Dtype.bfloat16
    draft = new_draft()
    teacher = rms_teacher(torch.ones(32), torch.randn(96, 32) * 0.3, 1e-5)
    module = sharded(draft, teacher, training)
    unrolled = module.unroll(packed(Documents.random((20, 3)), training.unroll_steps))
    unrolled.loss.backward()
    assert seen == [(True, False)], "logits are products in bfloat16, the teacher's distribution is not rounded"
    assert unrolled.loss_K.dtype is torch.float32
    assert all(parameter.grad.dtype is torch.float32 for parameter in draft.parameters())


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_parts_compute_the_same(tiny: Callable[..., Config]) -> None:
    """Rows of several lengths, one compilation for all of them."""
    training = tiny().training
    training.compute_dtype = Dtype.float32
    teacher = rms_teacher(torch.ones(32), torch.randn(96, 32) * 0.3, 1e-5)
    results = []
    for training.compile in (False, True):
        module = sharded(new_draft(), teacher, training)
        for length in (40, 57, 23):
            module.unroll(packed(Documents.random((length, 3), (9, 2)), training.unroll_steps)).loss.backward()
        results.append([cast(DTensor, parameter.grad).full_tensor() for parameter in module.draft.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("process_group")
def test_noise_is_of_the_training_alone(tiny: Callable[..., Config]) -> None:
    training = tiny().training
    teacher = rms_teacher(torch.ones(32), torch.randn(96, 32) * 0.3, 1e-5)
    module = sharded(new_draft(), teacher, training)
    row = packed(Documents.random((20, 3)), training.unroll_steps)

    def loss(share: float, trains: bool) -> float:
        training.state_noise = share
        module.train(trains)
        return module.unroll(row).loss.item()

    clean = loss(0.0, trains=True)
    assert loss(0.2, trains=False) == loss(0.0, trains=False) == clean
    assert loss(0.2, trains=True) == loss(0.2, trains=True) != clean
