"""What the states of one row must be, whoever captured them.

Shapes: T tokens, L chosen layers (the last state is one more), H hidden size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.capture.refusal import WAY_OUT
from eyas.config import Config
from eyas.errors import EyasError
from eyas.stages import draft_shape, verifier_facts


@dataclass(frozen=True)
class Expected:
    """What holds for every row of a capture."""

    layer_ids: Sequence[int]
    """The chosen layers and the one after the last (n)."""
    hidden_size: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: Config) -> "Expected":
        facts = verifier_facts(config)
        layer_ids = [*draft_shape(config).layer_ids, facts.num_layers]
        return cls(layer_ids, facts.hidden_size, getattr(torch, config.capture.dtype.name))

    def check(
        self, states_TLH: Tensor, captured_T: Tensor, ids_T: Tensor, *, source: str, layer_ids: list[int] | None = None
    ) -> None:
        """Whether states are those of these tokens.

        Args:
            captured_T: The tokens that were run.
            source: Who says so, for the message.
            layer_ids: Which layers the source says that it captured, where it does.

        Raises:
            EyasError: they can't be.
        """
        shape = (len(ids_T), len(self.layer_ids), self.hidden_size)
        if layer_ids not in (None, [*self.layer_ids]):
            raise EyasError(f"{source} hands over layers {layer_ids}, expected {[*self.layer_ids]}")
        if captured_T.tolist() != ids_T.tolist():
            raise EyasError(
                f"{source} captured other tokens than it was given: {len(captured_T)} of them, {captured_T[:8].tolist()}..., "
                f"expected {len(ids_T)}, {ids_T[:8].tolist()}..."
            )
        if tuple(states_TLH.shape) != shape:
            raise EyasError(
                f"{source} hands over states of shape {[*states_TLH.shape]}, expected {[*shape]} (tokens, layers "
                f"{[*self.layer_ids]}, hidden size)"
            )
        if states_TLH.dtype is not self.dtype:
            raise EyasError(
                f"{source} hands over {states_TLH.dtype}, and capture.dtype is {self.dtype}: make them equal (of a server, "
                "verifier.vllm.args or server.args may set another dtype)"
            )
        largest_L = torch.linalg.vector_norm(states_TLH, ord=float("inf"), dim=(0, 2)).tolist()  # nan where one is
        for layer, largest in zip(self.layer_ids, largest_L, strict=True):
            if not math.isfinite(largest):
                raise EyasError(f"{source}: the states of layer {layer} are not finite; try capture.dtype=float32")
            if largest == 0:
                raise EyasError(
                    f"{source}: the states of layer {layer} are all zero: that layer is not captured; {WAY_OUT}"
                )
