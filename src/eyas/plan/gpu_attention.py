"""Attention as the draft's layers have it on a GPU, for tensors that hold nothing: FlexAttention itself runs on a GPU only.

Shapes: T positions of the packed row, N rows of a step, s own keys of each row, h key-value heads, q query heads, d head
dimension.
"""

from typing import Any

import torch
from torch import Tensor

from eyas.data.positions import Rows
from eyas.draft.attention import merge_own


def attend_on_gpu(
    query_Nqd: Tensor,
    key_Thd: Tensor,
    value_Thd: Tensor,
    own_key_sNhd: Tensor,
    own_value_sNhd: Tensor,
    rows: Rows,
    scale: float,
    reach: int | None = None,
) -> Tensor:
    """In the place of `eyas.draft.attention.attend`: its kernel is pretended, what stands around it is its own."""
    prefix_Nqd, lse_Nq = _Kernel.apply(query_Nqd, key_Thd, value_Thd)  # type: ignore[no-untyped-call]
    return merge_own(query_Nqd, prefix_Nqd, lse_Nq, own_key_sNhd, own_value_sNhd, scale)[0]


class _Kernel(torch.autograd.Function):
    """What FlexAttention keeps and makes: its inputs, its output and log-sum-exp, and their gradients."""

    @staticmethod
    def forward(ctx: Any, query_Nqd: Tensor, key_Thd: Tensor, value_Thd: Tensor) -> tuple[Tensor, Tensor]:
        output_Nqd, lse_Nq = torch.empty_like(query_Nqd), query_Nqd.new_empty(query_Nqd.shape[:2], dtype=torch.float32)
        ctx.save_for_backward(query_Nqd, key_Thd, value_Thd, output_Nqd, lse_Nq)
        return output_Nqd, lse_Nq

    @staticmethod
    def backward(ctx: Any, d_output_Nqd: Tensor, d_lse_Nq: Tensor) -> tuple[Tensor, ...]:
        query_Nqd, key_Thd, value_Thd, _, _ = ctx.saved_tensors
        return torch.empty_like(query_Nqd), torch.empty_like(key_Thd), torch.empty_like(value_Thd)
