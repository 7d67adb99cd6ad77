"""Noise on the captured states, so that a draft can't learn those of its training text by heart."""

import torch
from torch import Tensor


def noisy(states_TLH: Tensor, share: float, seed: int) -> Tensor:
    """Each state plus uniform noise, as large as `share` of that state's own root mean square.

    Of its own: layers differ a hundredfold in size, and one number for all would leave some as they are and drown others.

    Args:
        seed: The same seed gives the same noise: a training that was interrupted goes on as if it had not been.
    """
    generator = torch.Generator(states_TLH.device).manual_seed(seed)
    unit_TLH = torch.empty(states_TLH.shape, dtype=torch.float32, device=states_TLH.device)
    unit_TLH.uniform_(-(3**0.5), 3**0.5, generator=generator)  # variance 1
    size_TL1 = states_TLH.float().square().mean(-1, keepdim=True).sqrt()
    return (states_TLH + share * size_TL1 * unit_TLH).to(states_TLH.dtype)
