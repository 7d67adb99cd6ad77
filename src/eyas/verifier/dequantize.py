"""Rules that turn a quantised embedding or head into plain floats.

Shapes: R rows, C columns.
"""

import torch
from torch import Tensor


def fp8(weight_RC: Tensor, scale: Tensor, block: tuple[int, int] | None) -> Tensor:
    """float8 times its scale: one per block (DeepSeek-V3's 128 x 128), else one per row or one in all."""
    scale = scale.float()
    if block is None:
        return weight_RC.float() * scale.reshape(-1, 1)
    spread_RC = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return weight_RC.float() * spread_RC[: weight_RC.shape[0], : weight_RC.shape[1]]


def packed_int4(packed: Tensor, scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Eight symmetric int4 in each int32, low bits first, offset by 8; one scale per row and group of columns."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    nibbles = (packed.int()[:, :, None] >> shifts) & 0xF
    weight_RC = nibbles.reshape(shape[0], -1)[:, : shape[1]].float() - 8
    return weight_RC * scale.float().repeat_interleave(shape[1] // scale.shape[1], 1)
