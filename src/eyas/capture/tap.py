"""Reading residual streams out of a transformers model, by hooks on its own modules."""

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from inspect import signature
from typing import Any, Self, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from eyas.capture.modules import Modules, state_of
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.language import language_config
from eyas.verifier.schema import Stream, Target, VerifierConfig


class Tap:
    """While entered, keeps what enters the chosen layers and the final norm (or the head) in each forward of the model.

    Layer ids as everywhere in Eyas: id i is the residual stream entering layer i. B sequences, S positions, L layers.
    Where a layer exchanges several streams, their mean is kept, as vLLM does.
    """

    def __init__(self, modules: Modules, layer_ids: Sequence[int], verifier: VerifierConfig) -> None:
        self._modules = [*(modules.layers[id] for id in layer_ids), modules.last]
        self._stream = verifier.stream
        self._whole_head = verifier.target is Target.head_input
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
        """The last forward's (hidden [B, S, L, H], last [B, S, H]); the last state is before the final norm or the head."""
        states = [self._seen.pop(slot) for slot in range(len(self._modules))]
        last_BSH = states.pop()
        states = [state.to(last_BSH.device) for state in states]  # the verifier may be spread over several
        if self._stream is Stream.multiple:
            states = [_mean_of_streams(state, last_BSH.shape) for state in states]
        if any(state.shape != last_BSH.shape for state in states):
            raise EyasError(
                f"a captured layer holds {[list(state.shape) for state in states]}, the last state {list(last_BSH.shape)}: "
                "a layer that exchanges several streams needs verifier.stream: multiple"
            )
        return torch.stack(states, dim=2), last_BSH

    def arguments(self, model: PreTrainedModel) -> dict[str, Any]:
        """What a forward needs so that nothing is computed that nobody reads: logits of one position, where they can be spared.

        The position is an index, of which transformers makes a copy. A number makes a slice, which isn't contiguous, and which
        torch multiplies with the head sequence by sequence: a quarter of a capture of SmolLM2-135M in bfloat16 on a CPU.
        """
        spare = not self._whole_head and "logits_to_keep" in signature(model.forward).parameters
        return {"use_cache": False} | ({"logits_to_keep": torch.tensor([0])} if spare else {})

    def _keeper(self, slot: int) -> Any:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = state_of(args, kwargs)
            assert state is not None
            self._seen[slot] = state.detach().clone()  # the layer may write into it

        return keep


def load_verifier(
    checkpoint: Checkpoint,
    verifier: VerifierConfig,
    dtype: torch.dtype,
    device: torch.device,
    device_map: str | None = None,
) -> PreTrainedModel:
    """The whole verifier in transformers, frozen.

    Args:
        device: Where it is, unless `device_map` spreads it over several (`capture.device_map`).

    Raises:
        EyasError: it needs remote code that is not trusted, or a layout that transformers does not read.
    """
    if device_map is not None and find_spec("accelerate") is None:
        raise EyasError(
            f"capture.device_map={device_map}: transformers needs accelerate for it; pip install accelerate"
        )
    trusted = verifier.trust_remote_code
    if checkpoint.config_file != "config.json":
        raise EyasError(
            f"{checkpoint.directory} is read in the layout of {checkpoint.config_file}, which transformers does not load: "
            "set verifier.path to a directory with config.json"
        )
    if checkpoint.needs_its_own_code and not trusted.model:
        raise EyasError(
            f"{checkpoint.directory}: transformers does not know model type {checkpoint.config.get('model_type')}, and the "
            "checkpoint's own code is not allowed to run: read it, then set verifier.trust_remote_code="
            "{config: true, model: true} (eyas inspect: --trust-remote-code)"
        )
    checkpoint.fetch_all()
    try:
        model: PreTrainedModel
        model, loading = _auto_class(checkpoint, verifier).from_pretrained(
            checkpoint.directory,
            dtype=dtype,
            trust_remote_code=trusted.config and trusted.model,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **({} if device_map is None else {"device_map": device_map}),
        )
    except Exception as error:  # libraries of many hands, and with trusted code anybody's
        whose = "the checkpoint's own code fails" if trusted.model else "transformers can't load it"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EyasError(f"{checkpoint.directory}: {whose}: {reason}") from error
    _refuse_random(checkpoint, sorted(loading["missing_keys"]), sorted(key for key, *_ in loading["mismatched_keys"]))
    model.requires_grad_(False).eval()
    if device_map is None:
        try:
            cast(nn.Module, model).to(device)
        except torch.OutOfMemoryError:
            raise EyasError(
                f"{checkpoint.directory}: the verifier does not fit on one {device}; spread it over several with "
                "capture.device_map=auto, or let vLLM run it (capture=vllm, server.tensor_parallel=N)"
            ) from None
    return model


def placement(model: PreTrainedModel) -> str:
    """How many modules are on which device, where a device map put them; empty without one."""
    devices: dict[str, Any] = getattr(model, "hf_device_map", {})
    counts = Counter(f"cuda:{device}" if isinstance(device, int) else str(device) for device in devices.values())
    return ", ".join(f"{device} ({number} of {len(devices)} modules)" for device, number in counts.items())


def _refuse_random(checkpoint: Checkpoint, missing: list[str], mismatched: list[str]) -> None:
    """transformers fills in at random what it doesn't find, and only warns."""
    for keys, what in ((missing, "is not in the checkpoint"), (mismatched, "has another shape there")):
        if keys:
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            raise EyasError(
                f"{checkpoint.directory}: the model's {keys[0]}{more} {what}, and transformers would fill it at random; "
                f"the weights and {checkpoint.config_file} belong to different models, or the download is incomplete"
            )


def _auto_class(checkpoint: Checkpoint, verifier: VerifierConfig) -> Any:
    """As declared; else the one that knows the model type, where both do the text-only one for a flat config."""
    declared = verifier.transformers.auto_class
    if declared is not None:
        return getattr(transformers, declared.name)
    model_type = str(checkpoint.config.get("model_type"))
    wrapper = language_config(verifier, checkpoint) is not checkpoint.config
    image_text = model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    causal = model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if image_text and (wrapper or not causal):
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


def _mean_of_streams(state: Tensor, shape: torch.Size) -> Tensor:
    streams, left_over = divmod(state.shape[-1], shape[-1])
    if state.shape[:-1] == shape[:-1] and streams > 1 and not left_over:  # side by side in one vector
        return torch.mean(state.unflatten(-1, (streams, shape[-1])), -2)
    axes = [axis for axis in range(state.ndim) if state.shape[:axis] + state.shape[axis + 1 :] == shape]
    if not axes:
        raise EyasError(
            f"verifier.stream is multiple, but a layer reads {list(state.shape)} where the head reads {list(shape)}; "
            "set verifier.stream: single"
        )
    return state.mean(axes[-1])
