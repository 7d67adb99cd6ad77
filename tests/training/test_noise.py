"""Noise on captured states: of each one's own size, and the same for the same seed."""

import torch

from eyas.training.noise import noisy


def test_each_state_gets_noise_of_its_own_size() -> None:
    scales_L1 = torch.tensor([[0.01], [1.0], [100.0]])
    states_TLH = torch.randn(50, 3, 400) * scales_L1
    added_TLH = noisy(states_TLH, 0.1, seed=1) - states_TLH
    sizes_TL = added_TLH.square().mean(-1).sqrt() / states_TLH.square().mean(-1).sqrt()
    torch.testing.assert_close(sizes_TL, torch.full((50, 3), 0.1), rtol=0.1, atol=0.0)
    assert abs(float((added_TLH / scales_L1).mean())) < 1e-3
    assert added_TLH.abs().max() <= 0.1 * 3**0.5 * states_TLH.square().mean(-1).sqrt().max() * 1.001


def test_the_same_seed_gives_the_same_noise() -> None:
    states_TLH = torch.randn(5, 3, 40).bfloat16()
    once = noisy(states_TLH, 0.1, seed=1)
    torch.rand(7)
    assert torch.equal(once, noisy(states_TLH, 0.1, seed=1))
    assert not torch.equal(once, noisy(states_TLH, 0.1, seed=2))
    assert once.dtype is torch.bfloat16
