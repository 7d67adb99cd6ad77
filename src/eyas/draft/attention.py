"""Attention of the unroll: the true prefix by a flash kernel, and beside it the few keys of a row's own guesses.

Step k attends, inside its document, to the keys of step 0 up to its own position, and to its own position's keys of steps
1..k. The prefix is causal attention, for which there are kernels; the rest is k scores per row. Two softmaxes over parts of the
keys are one over all of them when each part is weighted by its share of the sum, which the log-sum-exp tells (ring attention
merges its blocks so). Backwards, a kernel that is given the *merged* output and log-sum-exp returns exactly its part of the
gradient: there is no mask, and nothing that grows with T x T. With a sliding window a row's prefix is its last `reach` positions.

Shapes: T positions of the packed row, N rows of a step, s own keys of each row, h key-value heads, q query heads, d head
dimension.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import pad

from eyas.data.positions import Rows, Span

WINDOWED_ROWS = 256
"""Rows that share a mask where there is a window."""

SMALLEST_HEAD = 16
"""FlexAttention's kernel takes none below; zeros behind a smaller one change no product."""
COMPILATIONS = 64
"""FlexAttention compiles anew where there is one block of rows or of keys, and for gradients; some ten times in all."""

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    query_Nqd: Tensor,
    key_Thd: Tensor,
    value_Thd: Tensor,
    own_key_sNhd: Tensor,
    own_value_sNhd: Tensor,
    rows: Rows,
    scale: float,
    reach: int | None = None,
) -> Tensor:
    """What each row sees [N, q, d]. `reach`: how many positions of its prefix, itself included; None: all."""
    if query_Nqd.device.type == "cpu":
        output_Nqd: Tensor = _CpuAttention.apply(  # type: ignore[no-untyped-call]
            query_Nqd, key_Thd, value_Thd, own_key_sNhd, own_value_sNhd, rows.spans, scale, reach
        )
        return output_Nqd
    prefix_Nqd, lse_Nq = flex_prefix(query_Nqd, key_Thd, value_Thd, rows, scale, reach)
    return merge_own(query_Nqd, prefix_Nqd, lse_Nq, own_key_sNhd, own_value_sNhd, scale)[0]


def merge_own(
    query_Nqd: Tensor, prefix_Nqd: Tensor, lse_Nq: Tensor, own_key_sNhd: Tensor, own_value_sNhd: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp) over the prefix and the row's own keys, from the prefix's alone."""
    if not len(own_key_sNhd):
        return prefix_Nqd, lse_Nq
    score_sNq = _own_scores(query_Nqd, own_key_sNhd) * scale
    total_Nq = torch.logaddexp(lse_Nq, score_sNq.logsumexp(0))
    weight_sNq = (score_sNq - total_Nq).exp().to(prefix_Nqd.dtype)
    output_Nqd = prefix_Nqd * (lse_Nq - total_Nq).exp().to(prefix_Nqd.dtype)[..., None]
    for weight_Nq, value_Nhd in zip(weight_sNq, own_value_sNhd, strict=True):
        output_Nqd = output_Nqd + weight_Nq[..., None] * _for_queries(value_Nhd, query_Nqd)
    return output_Nqd, total_Nq


def _own_scores(query_Nqd: Tensor, own_key_sNhd: Tensor) -> Tensor:
    """Products of each row's queries with the row's own keys [s, N, q], in float32 at least."""
    scores = [(query_Nqd * _for_queries(key_Nhd, query_Nqd)).sum(-1) for key_Nhd in own_key_sNhd]
    return torch.stack(scores).to(torch.promote_types(query_Nqd.dtype, torch.float32))


def _for_queries(state_Nhd: Tensor, query_Nqd: Tensor) -> Tensor:
    """Of each query head, its key-value head's [N, q, d]."""
    return state_Nhd.repeat_interleave(query_Nqd.shape[1] // state_Nhd.shape[1], dim=1)


def _over_queries(state_Nqd: Tensor, num_heads: int) -> Tensor:
    """Summed over the query heads of each key-value head [N, h, d]."""
    state_Nhgd: Tensor = state_Nqd.unflatten(1, (num_heads, -1))
    return state_Nhgd.sum(2)


class _CpuAttention(torch.autograd.Function):
    """PyTorch's flash kernel for CPUs, span by span."""

    @staticmethod
    def forward(
        ctx: Any,
        query_Nqd: Tensor,
        key_Thd: Tensor,
        value_Thd: Tensor,
        own_key_sNhd: Tensor,
        own_value_sNhd: Tensor,
        spans: tuple[Span, ...],
        scale: float,
        reach: int | None,
    ) -> Tensor:
        prefix_Nqd = torch.empty_like(query_Nqd)
        lse_Nq = query_Nqd.new_empty(query_Nqd.shape[:2], dtype=torch.promote_types(query_Nqd.dtype, torch.float32))
        for span, keys_of_span in _blocks(spans, reach):
            parts = [
                _FLASH(*_states(span, keys, query_Nqd, key_Thd, value_Thd), **keys.how(query_Nqd, scale))
                for keys in keys_of_span
            ]
            output, lse = parts[0]
            for more, more_lse in parts[1:]:
                total = torch.logaddexp(lse, more_lse)
                shares = ((it - total).exp().to(output.dtype)[..., None] for it in (lse, more_lse))
                output, lse = output * next(shares) + more * next(shares), total
            prefix_Nqd[span.rows], lse_Nq[span.rows] = output[0].transpose(0, 1), lse[0].T
        output_Nqd, lse_Nq = merge_own(query_Nqd, prefix_Nqd, lse_Nq, own_key_sNhd, own_value_sNhd, scale)
        ctx.save_for_backward(query_Nqd, key_Thd, value_Thd, own_key_sNhd, own_value_sNhd, output_Nqd, lse_Nq)
        ctx.spans, ctx.scale, ctx.reach = spans, scale, reach
        return output_Nqd

    @staticmethod
    def backward(ctx: Any, d_output_Nqd: Tensor) -> tuple[Tensor | None, ...]:
        query_Nqd, key_Thd, value_Thd, own_key_sNhd, own_value_sNhd, output_Nqd, lse_Nq = ctx.saved_tensors
        d_query_Nqd = torch.zeros_like(query_Nqd)
        d_key_Thd, d_value_Thd = torch.zeros_like(key_Thd), torch.zeros_like(value_Thd)
        for span, keys_of_span in _blocks(ctx.spans, ctx.reach):
            rows = span.rows
            d_output, output = (it[rows].transpose(0, 1)[None] for it in (d_output_Nqd, output_Nqd))
            lse = lse_Nq[rows].T[None]
            for keys in keys_of_span:
                states, how = _states(span, keys, query_Nqd, key_Thd, value_Thd), keys.how(query_Nqd, ctx.scale)
                d_query, d_key, d_value = _FLASH_BACKWARD(d_output, *states, output, lse, **how)
                d_query_Nqd[rows] += d_query[0].transpose(0, 1)
                d_key_Thd[keys.positions] += d_key[0].transpose(0, 1)
                d_value_Thd[keys.positions] += d_value[0].transpose(0, 1)
        d_own_key_sNhd, d_own_value_sNhd = torch.empty_like(own_key_sNhd), torch.empty_like(own_value_sNhd)
        if len(own_key_sNhd):
            num_heads = own_key_sNhd.shape[2]
            weight_sNq = (_own_scores(query_Nqd, own_key_sNhd) * ctx.scale - lse_Nq).exp().to(query_Nqd.dtype)
            along_Nq = (d_output_Nqd * output_Nqd).sum(-1)
            for index, weight_Nq in enumerate(weight_sNq):
                key_Nqd = _for_queries(own_key_sNhd[index], query_Nqd)
                value_Nqd = _for_queries(own_value_sNhd[index], query_Nqd)
                d_score_Nq = weight_Nq * ((d_output_Nqd * value_Nqd).sum(-1) - along_Nq) * ctx.scale
                d_query_Nqd += d_score_Nq[..., None] * key_Nqd
                d_own_key_sNhd[index] = _over_queries(d_score_Nq[..., None] * query_Nqd, num_heads)
                d_own_value_sNhd[index] = _over_queries(weight_Nq[..., None] * d_output_Nqd, num_heads)
        return d_query_Nqd, d_key_Thd, d_value_Thd, d_own_key_sNhd, d_own_value_sNhd, None, None, None


@dataclass(frozen=True)
class _Keys:
    """Keys side by side, and which of them each of some rows sees: all, those up to its own, or what the mask says."""

    positions: slice
    causal: bool = False
    sees: Tensor | None = None

    def how(self, query_Nqd: Tensor, scale: float) -> dict[str, Any]:
        """The kernel's arguments."""
        mask = None
        if self.sees is not None:
            mask = query_Nqd.new_zeros(self.sees.shape).masked_fill_(~self.sees, -torch.inf)[None, None]
        return {"dropout_p": 0.0, "is_causal": self.causal, "attn_mask": mask, "scale": scale}


def _blocks(spans: tuple[Span, ...], reach: int | None) -> Iterator[tuple[Span, list[_Keys]]]:
    """Rows that go through the kernel together, with the keys that they see."""
    for span in spans:
        if reach is None:
            before = slice(span.document, span.start)
            beside = _Keys(slice(span.start, span.stop), causal=True)
            yield span, [beside, _Keys(before)] if before.start < before.stop else [beside]
            continue
        for start in range(span.start, span.stop, WINDOWED_ROWS):
            stop = min(start + WINDOWED_ROWS, span.stop)
            keys = slice(max(span.document, start - reach + 1), stop)
            back = torch.arange(start, stop)[:, None] - torch.arange(keys.start, keys.stop)
            block = Span(span.document, start, stop, span.first + start - span.start)
            yield block, [_Keys(keys, sees=(back >= 0) & (back < reach))]


def _states(span: Span, keys: _Keys, query_Nqd: Tensor, key_Thd: Tensor, value_Thd: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values as the kernel takes them [1, heads, length, d]."""
    chosen = (query_Nqd[span.rows], key_Thd[keys.positions], value_Thd[keys.positions])
    return tuple(it.transpose(0, 1)[None] for it in chosen)


def flex_prefix(
    query_Nqd: Tensor, key_Thd: Tensor, value_Thd: Tensor, rows: Rows, scale: float, reach: int | None = None
) -> tuple[Tensor, Tensor]:
    """(output [N, q, d], log-sum-exp [N, q]) over the prefix, by FlexAttention: on a GPU one compiled kernel."""
    positions_N, document_T = rows.positions_N, rows.document_T
    if not len(positions_N):
        return query_Nqd, query_Nqd.new_empty(query_Nqd.shape[:2], dtype=torch.float32)

    def sees(_: Tensor, __: Tensor, row: Tensor, key: Tensor) -> Tensor:
        seen = (document_T[positions_N[row]] == document_T[key]) & (key <= positions_N[row])
        return seen if reach is None else seen & (key > positions_N[row] - reach)

    device, size = query_Nqd.device, query_Nqd.shape[-1]
    states = (pad(it, (0, max(0, SMALLEST_HEAD - size))) for it in (query_Nqd, key_Thd, value_Thd))
    mask = create_block_mask(sees, None, None, len(query_Nqd), len(key_Thd), device=device)
    run = _compiled_flex() if device.type == "cuda" else flex_attention
    output, more = run(
        *(it.transpose(0, 1)[None] for it in states),
        block_mask=mask,
        scale=scale,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    return output[0, ..., :size].transpose(0, 1), more.lse[0].T


@cache
def _compiled_flex() -> Any:
    """Whole or not at all: what isn't compiled would hold a row's scores against all keys, and say so in a log at most."""
    return torch.compile(  # type: ignore[call-overload]
        flex_attention, dynamic=True, fullgraph=True, recompile_limit=COMPILATIONS
    )
