"""Reading residual streams out of a transformers model, by hooks on its own modules."""

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from eyas.config import ModulePaths
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint


class Tap:
    """While entered, keeps what enters the chosen layers and the final norm in each forward of the model.

    Layer ids as everywhere in Eyas: id i is the residual stream entering layer i. B sequences, S positions, L layers.
    """

    def __init__(self, model: PreTrainedModel, paths: ModulePaths, layer_ids: Sequence[int], num_layers: int) -> None:
        layers = module_at(model, paths.layers, "verifier.transformers.layers")
        if not isinstance(layers, nn.ModuleList) or len(layers) != num_layers:
            raise EyasError(
                f"verifier.transformers.layers={paths.layers} is a {type(layers).__name__} of "
                f"{len(layers) if isinstance(layers, nn.ModuleList) else 'no'} layers, expected the {num_layers} decoder layers"
            )
        norm = module_at(model, paths.norm, "verifier.transformers.norm")
        self._modules = [*(layers[id] for id in layer_ids), norm]
        self._seen: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        for slot, module in enumerate(self._modules):
            self._handles.append(module.register_forward_pre_hook(self._keeper(slot), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self) -> tuple[Tensor, Tensor]:
        """The last forward's (hidden [B, S, L, H], last [B, S, H]); the last state is before the final norm."""
        states = [self._seen.pop(slot) for slot in range(len(self._modules))]
        return torch.stack(states[:-1], dim=2), states[-1]

    def _keeper(self, slot: int) -> Any:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._seen[slot] = (args[0] if args else kwargs["hidden_states"]).detach()

        return keep


def module_at(model: nn.Module, path: str, key: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        names = ", ".join(name for name, _ in model.named_modules() if name.count(".") <= 1 and name)[:300]
        raise EyasError(f"{key}={path}: {type(model).__name__} has no such module; it has: {names}") from None


def load_verifier(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The whole verifier in transformers, frozen."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint.directory, dtype=dtype)
    model.requires_grad_(False).eval()
    cast(nn.Module, model).to(device)
    return model
