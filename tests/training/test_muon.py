"""Muon and AdamW as one optimizer: the same steps as torch's two, also after a checkpoint."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon

from eyas.errors import EyasError
from eyas.training.muon import MuonAndAdamW, orthogonalised

HOW: dict[str, Any] = {"momentum": 0.9, "ns_steps": 4, "weight_decay": 0.1}


class Tiny(nn.Module):
    """A matrix, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4, bias=False)
        self.norm = nn.RMSNorm(4)
        self.lm_head = nn.Linear(4, 7, bias=False)

    def forward(self, state_NH: Tensor) -> Tensor:
        logits_NV: Tensor = self.lm_head(self.norm(self.fc(state_NH)))
        return logits_NV.square().sum()


def ours(model: Tiny) -> MuonAndAdamW:
    return MuonAndAdamW(model.named_parameters(), lr=1e-2, adamw_lr=1e-3, betas=(0.9, 0.95), **HOW)


def train(model: Tiny, *optimizers: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        model(torch.randn(5, 6, generator=torch.Generator().manual_seed(step))).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def assert_equal(one: Tiny, other: Tiny) -> None:
    for (name, it), (_, expected) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(it, expected), name


def test_it_steps_as_the_two_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.training.muon.fast_dtype", lambda device: torch.bfloat16)  # torch's
    model = Tiny()
    twin = copy.deepcopy(model)
    train(model, ours(model), steps=3)
    muon = Muon([twin.fc.weight], lr=1e-2, adjust_lr_fn="match_rms_adamw", **HOW)
    adamw = AdamW([twin.norm.weight, twin.lm_head.weight], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(3):
        twin(torch.randn(5, 6, generator=torch.Generator().manual_seed(step))).backward()
        for optimizer in (muon, adamw):
            optimizer.step()
        twin.zero_grad()
    assert_equal(model, twin)


def test_it_goes_on_from_its_state() -> None:
    model = Tiny()
    optimizer = ours(model)
    train(model, optimizer, steps=2)
    twin = copy.deepcopy(model)
    resumed = ours(twin)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, steps=2)
    train(twin, resumed, steps=2)
    assert_equal(model, twin)
    for group in resumed.param_groups:  # what a schedule changes, the parts see
        group["lr"] = 0.0
    before = copy.deepcopy(twin)
    for part in resumed.parts:
        for group in part.param_groups:
            assert group["lr"] == 0.0
            group["weight_decay"] = 0.0
    train(twin, resumed, steps=1)
    assert_equal(twin, before)


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_orthogonalised_in_float32(shape: tuple[int, int]) -> None:
    """The directions stay, and what they are stretched by is near 1 (between 0.7 and 1.2 by the iteration's design)."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    stretches = torch.linalg.svdvals(orthogonalised(matrix, torch.float32, 5))
    assert stretches.min() > 0.65
    assert stretches.max() < 1.25
    exact_left, _, exact_right = torch.linalg.svd(matrix, full_matrices=False)
    assert (
        torch.nn.functional.cosine_similarity(
            orthogonalised(matrix, torch.float32, 5).flatten(), (exact_left @ exact_right).flatten(), dim=0
        )
        > 0.97
    )


def test_it_refuses_not_to_orthogonalise() -> None:
    with pytest.raises(EyasError, match=r"optimizer\.ns_steps=0: must be at least 1"):
        MuonAndAdamW(Tiny().named_parameters(), lr=1e-2, adamw_lr=1e-3, betas=(0.9, 0.95), **{**HOW, "ns_steps": 0})
