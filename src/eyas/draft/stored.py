"""A given draft's tensors and numbers, by speculators' names, whichever of the two formats they are stored in.

The raw format calls the layer `midlayer`, keeps the layer's numbers at the top level of its config, and names layers by
their output: its layer ids are one lower than ours, which name the layer that is entered.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.draft.given import find_draft, read_config, weight_files
from eyas.draft.vocabulary import from_mappings
from eyas.errors import EyasError

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True)
class StoredDraft:
    """A draft as it was found."""

    where: str
    """What it is called in messages."""
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    """By speculators' names, without the vocabulary."""
    mappings: tuple[Tensor, Tensor] | None
    """(d2t, t2d); None: the draft speaks the whole vocabulary of its verifier."""

    @property
    def is_raw(self) -> bool:
        return "speculators_model_type" not in self.config

    @property
    def layer(self) -> dict[str, Any]:
        """The numbers of its decoder layer."""
        layer: dict[str, Any] = self.config if self.is_raw else self.config.get("transformer_layer_config", {})
        return layer

    @property
    def sliding_window(self) -> int | None:
        """How many positions its attention sees; None: all.

        Raises:
            EyasError: its layers differ in that.
        """
        kinds = set(self.layer.get("layer_types") or ["full_attention"])
        if len(kinds) > 1:
            raise EyasError(
                f"{self.where}: its layer_types are {sorted(kinds)}; a draft's layers must all attend alike"
            )
        return int(self.layer["sliding_window"]) if kinds == {"sliding_attention"} else None

    @property
    def flags(self) -> dict[str, Any]:
        return {flag: bool(self.config.get(flag, False)) for flag in FLAGS}

    @property
    def layer_ids(self) -> list[int] | None:
        """The captured layers that it reads, as we count; None where it doesn't say."""
        raw = (self.config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        if self.is_raw and raw:
            return [id + 1 for id in raw]
        # At the top level vLLM reads them, by its own convention, which is ours.
        return list(self.config.get("eagle_aux_hidden_state_layer_ids") or []) or None

    @cached_property
    def draft_ids_D(self) -> Tensor:
        """Its vocabulary, as ids of the verifier's.

        Raises:
            EyasError: d2t and t2d disagree.
        """
        if self.mappings is None:
            return torch.arange(self.verifier_vocab_size)
        return from_mappings(*self.mappings, self.where)

    @property
    def verifier_vocab_size(self) -> int:
        """The size of the vocabulary that it was made for."""
        if self.mappings is not None:
            return len(self.mappings[1])
        return int(self.layer.get("vocab_size") or len(self.tensors["lm_head.weight"]))


def read_stored(path: str, where: str) -> StoredDraft:
    """Read a directory or hub id.

    Raises:
        EyasError: no such draft, or one of another method.
    """
    directory = find_draft(path, where)
    config = read_config(directory, where)
    tensors = _tensors(weight_files(directory, where))
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    _check_method(where, config, tensors)
    return StoredDraft(where, config, tensors, None if d2t is None or t2d is None else (d2t, t2d))


def _tensors(files: list[Path]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in files:
        safe = file.suffix == ".safetensors"
        tensors |= load_file(file) if safe else torch.load(file, weights_only=True, map_location="cpu")
    return tensors


def _check_method(where: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """EAGLE-3 is known by its layer: its attention reads embedding and state side by side, twice the hidden size.

    Raises:
        EyasError: these tensors are another method's (EAGLE-1, Medusa, MTP), or no draft's.
    """
    fc, queries = tensors.get("fc.weight"), tensors.get("layers.0.self_attn.q_proj.weight")
    if fc is not None and queries is not None and queries.shape[1] == 2 * fc.shape[0]:
        return
    calls_itself = ", ".join(config.get("architectures") or [str(config.get("model_type", "nothing"))])
    raise EyasError(
        f"{where} is no EAGLE-3 draft: it calls itself {calls_itself} and holds {', '.join(sorted(tensors)[:3])}, ...; expected "
        "fc.weight and a layer (layers.0, or midlayer in the raw format) whose attention reads twice the hidden size"
    )
