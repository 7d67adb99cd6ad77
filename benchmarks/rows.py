"""The rows that both train on: the demo's conversations, packed as in training, with random states.

What a kernel takes depends on lengths and masks, not on what the states say, and so nothing need be captured.

Shapes: T positions of a packed row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.cli.compose import compose
from eyas.cli.train import prepare
from eyas.config import Config
from eyas.data.packing import pack
from eyas.data.tokens import Tokens
from eyas.draft.shape import Shape
from eyas.stages import draft_shape, tokens_artifact


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    draft: str
    """`demo` (SmolLM2-135M's) or `llama8b` (Llama-3.1-8B's)."""
    row_length: int
    unroll_steps: int = 3
    dtype: str = "float32"
    supervised: float | None = None
    """Share of each document, at its end; None: its answers."""
    first_pass: bool = False
    """Whether the verifier's own tokens have yet to be searched in its whole vocabulary."""
    compile: bool = False
    """`training.compile`; speculators compiles its forward by itself, on a GPU."""

    def __str__(self) -> str:
        supervised = "" if self.supervised is None else f", {self.supervised:.0%} supervised"
        more = f"{', first pass' if self.first_pass else ''}{', compiled' if self.compile else ''}"
        return f"{self.draft}, rows of {self.row_length}, unroll {self.unroll_steps}, {self.dtype}{supervised}{more}"


LLAMA_8B = Shape(
    hidden_size=4096,
    verifier_vocab_size=128256,
    draft_vocab_size=32000,
    layer_ids=[2, 16, 29],
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14336,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    max_position_embeddings=131072,
)


def configuration(case: Case) -> Config:
    """The demo's, with the case's sizes."""
    overrides = [
        f"data.max_length={min(case.row_length, 1024)}",
        "draft.vocab_size=8192",
        f"training.row_length={case.row_length}",
        f"training.unroll_steps={case.unroll_steps}",
        f"training.compute_dtype={case.dtype}",
        f"training.compile={case.compile}",
        "training.epochs=null",
        "training.max_steps=1000000",
    ]
    return compose(overrides, [])


def shape(case: Case, config: Config) -> Shape:
    """The draft's sizes."""
    return LLAMA_8B if case.draft == "llama8b" else draft_shape(config)


@dataclass(frozen=True)
class Documents:
    """One packed row."""

    input_ids_T: Tensor
    loss_mask_T: Tensor
    document_ids_T: Tensor
    position_ids_T: Tensor
    states_TLH: Tensor


def packed_rows(case: Case, config: Config, sizes: Shape, number: int, dtype: torch.dtype) -> list[Documents]:
    """The first rows that packing makes of the conversations."""
    if not tokens_artifact(config).exists():
        prepare(config)
    tokens = Tokens(tokens_artifact(config).directory)
    packed = pack(tokens.lengths[: tokens.num_train_rows], case.row_length)
    generator = torch.Generator().manual_seed(0)
    return [_row(tokens, documents, case, sizes, dtype, generator) for documents in packed[:number]]


def _row(
    tokens: Tokens, documents: list[int], case: Case, sizes: Shape, dtype: torch.dtype, generator: torch.Generator
) -> Documents:
    rows = [tokens.row(document) for document in documents]
    lengths = [min(len(input_ids_T), case.row_length) for input_ids_T, _ in rows]
    size = (sum(lengths), len(sizes.layer_ids) + 1, sizes.hidden_size)
    return Documents(
        input_ids_T=torch.cat(
            [input_ids_T[:length] for (input_ids_T, _), length in zip(rows, lengths, strict=True)]
        ).long(),
        loss_mask_T=torch.cat(
            [_mask(mask_T[:length], case) for (_, mask_T), length in zip(rows, lengths, strict=True)]
        ),
        document_ids_T=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        position_ids_T=torch.cat([torch.arange(length) for length in lengths]),
        states_TLH=torch.randn(size, generator=generator).to(dtype),
    )


def _mask(loss_mask_T: Tensor, case: Case) -> Tensor:
    if case.supervised is None:
        return loss_mask_T
    return torch.arange(len(loss_mask_T)) >= (1 - case.supervised) * len(loss_mask_T)
