"""A layer of the draft, as the unroll runs it: step after step over fewer rows, against the keys that it has so far.

The modules and their weights are speculators' and transformers'; only the order of the work is ours. Rows are taken by
`index_select`, whose gradient is a plain addition of rows; that of indexing is serial on a CPU. The first layer reads
tokens and states side by side, so its projections are sums of two: what a token adds doesn't depend on the step and is made
once for the whole row.

Shapes: T positions of the packed row, N rows of a step, s own keys of each row, q query heads, h key-value heads, d head
dimension, H hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers.models.llama.modeling_llama import rotate_half

from eyas.data.positions import Rows
from eyas.draft.attention import attend

Rotary = tuple[Tensor, Tensor]
"""Cosine and sine of some positions [N, 1, d]."""


@dataclass(frozen=True)
class Unrolling:
    """What all layers do alike."""

    window: int | None = None
    """How many positions attention sees, its own included; None: all."""
    recompute: bool = False
    """Make the feed-forward network's activations again in the backward: most of what a step keeps is theirs."""


class UnrolledLayer:
    """One layer through one unroll."""

    def __init__(self, layer: Any, how: Unrolling) -> None:
        self.layer, self.attention, self.how = layer, layer.self_attn, how
        self.key_Thd: Tensor
        self.value_Thd: Tensor
        """Of step 0."""
        self.own_key_sNhd: Tensor
        self.own_value_sNhd: Tensor
        """Of the steps after it, for the rows that are left."""

    def __call__(self, state: Tensor, rows: Rows, rotary_N: Rotary, step: int, rotary_T: Rotary) -> Tensor:
        """The layer's output [N, H]; at step 0 the state is that of all T positions, later that of the rows."""
        normed, residual = self.normed(state)
        key, value = (self.heads(it) for it in self.keys_and_values(normed, rows, step))
        if step == 0:
            self.key_Thd, self.value_Thd = self.turned(key, rotary_T, "k_norm"), value
            self.own_key_sNhd = self.own_value_sNhd = key.new_empty((0, len(rows.positions_N), *key.shape[1:]))
            normed, residual = (it.index_select(0, rows.positions_N) for it in (normed, residual))
        else:
            key = self.turned(key, rotary_N, "k_norm")
            self.own_key_sNhd = torch.cat([self.own_key_sNhd.index_select(1, rows.kept_N), key[None]])
            self.own_value_sNhd = torch.cat([self.own_value_sNhd.index_select(1, rows.kept_N), value[None]])
        query_Nqd = self.turned(self.heads(self.queries(normed, rows)), rotary_N, "q_norm")
        seen_Nqd = attend(
            query_Nqd,
            self.key_Thd,
            self.value_Thd,
            self.own_key_sNhd,
            self.own_value_sNhd,
            rows,
            self.attention.scaling,
            # What is served stands `step` positions further on, and its own guesses are in the window too.
            None if self.how.window is None else self.how.window - step,
        )
        output_NH: Tensor = residual + self.attention.o_proj(seen_Nqd.flatten(1))
        if self.how.recompute:
            again_NH: Tensor = checkpoint(self.fed_forward, output_NH, use_reentrant=False)
            return output_NH + again_NH
        return output_NH + self.fed_forward(output_NH)

    def fed_forward(self, state_NH: Tensor) -> Tensor:
        mixed_NH: Tensor = self.layer.mlp(self.layer.post_attention_layernorm(state_NH))
        return mixed_NH

    def normed(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(what is projected, what the output is added to)."""
        return self.layer.input_layernorm(state), state

    def queries(self, normed_NH: Tensor, rows: Rows) -> Tensor:
        projected: Tensor = self.attention.q_proj(normed_NH)
        return projected

    def keys_and_values(self, normed: Tensor, rows: Rows, step: int) -> tuple[Tensor, Tensor]:
        return self.attention.k_proj(normed), self.attention.v_proj(normed)

    def heads(self, projected: Tensor) -> Tensor:
        state_Nhd: Tensor = projected.unflatten(1, (-1, self.attention.head_dim))
        return state_Nhd

    def turned(self, state_Nhd: Tensor, rotary_N: Rotary, norm: str) -> Tensor:
        """Queries or keys at their positions; Qwen3 normalises them before."""
        if hasattr(self.attention, norm):
            state_Nhd = getattr(self.attention, norm)(state_Nhd)
        cos, sin = rotary_N
        turned_Nhd: Tensor = state_Nhd * cos + rotate_half(state_Nhd) * sin
        return turned_Nhd


class FirstUnrolledLayer(UnrolledLayer):
    """The layer that reads tokens beside states: position i at step k reads the token at i+1+k."""

    def __init__(self, layer: Any, how: Unrolling, token_state_TH: Tensor, rows: Rows) -> None:
        """`token_state_TH`: the embedding of the token after each position; `rows`: those of step 0."""
        super().__init__(layer, how)
        token_TH = layer.input_layernorm(token_state_TH)
        size = token_TH.shape[1]
        query, key, value = self.attention.q_proj, self.attention.k_proj, self.attention.v_proj
        # Split once: the gradients of the halves are put together once.
        of_token, self.of_hidden = zip(*(it.weight.split(size, dim=1) for it in (query, key, value)), strict=True)
        self.token_query = linear(token_TH.index_select(0, rows.positions_N), of_token[0], query.bias)
        self.token_key, self.token_value = (
            linear(token_TH, of_token[1], key.bias),
            linear(token_TH, of_token[2], value.bias),
        )

    def normed(self, state: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.layer.hidden_norm(state)
        return normed, normed if self.layer.norm_before_residual else state

    def queries(self, normed_NH: Tensor, rows: Rows) -> Tensor:
        return self.token_query.index_select(0, rows.ahead_N) + linear(normed_NH, self.of_hidden[0])

    def keys_and_values(self, normed: Tensor, rows: Rows, step: int) -> tuple[Tensor, Tensor]:
        token_key, token_value = (
            it if step == 0 else it.index_select(0, rows.positions_N + step)
            for it in (self.token_key, self.token_value)
        )
        return token_key + linear(normed, self.of_hidden[1]), token_value + linear(normed, self.of_hidden[2])
