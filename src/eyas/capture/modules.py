"""Which modules of a transformers model are the decoder layers, the final norm and the head: found, then proved.

What the YAML leaves null is found by structure and one forward; what it names, or what was found, must then behave: each
layer runs once, hands its output to the next, and the last one to the norm. So a model whose residual stream is not what
its layers exchange is refused instead of captured wrongly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from eyas.errors import EyasError
from eyas.verifier.schema import NormKind, Target, VerifierConfig


@dataclass(frozen=True)
class Modules:
    """The hooked modules of one model, and where they were found."""

    layers: list[nn.Module]
    last: nn.Module
    """What reads the last slot: the final norm (`pre_norm`) or the head (`head_input`)."""
    paths: dict[str, str]


@dataclass
class _Calls:
    """What one forward fed to a module and got from it."""

    inputs: list[Tensor]
    outputs: list[Tensor]


def find_modules(
    model: PreTrainedModel, verifier: VerifierConfig, num_layers: int, inputs: dict[str, Tensor] | None = None
) -> Modules:
    """Find what `verifier.transformers` leaves null, and prove the whole by one short forward (of `inputs`, or a few ids).

    Raises:
        EyasError: nothing or several things fit, or they do not exchange the residual stream.
    """
    names = {module: name for name, module in model.named_modules()}
    wanted = verifier.transformers
    layers = _layers(model, wanted.layers, num_layers, names)
    head = module_at(model, wanted.head, "verifier.transformers.head") if wanted.head else model.get_output_embeddings()
    if head is None:
        raise EyasError(f"{type(model).__name__} does not say which module its head is: set verifier.transformers.head")
    inside = {inner for layer in layers for inner in layer.modules()}
    around = {module for module in names if any(child in inside for child in module.modules())}
    outside = [module for module in names if module not in around and module not in inside]
    calls = _watch(model, [*layers, *outside], inputs)
    _check_stream(layers, calls, names)
    if verifier.target is Target.head_input:
        last = head
    elif wanted.norm:
        last = module_at(model, wanted.norm, "verifier.transformers.norm")
    elif verifier.norm.kind is NormKind.none:
        last = head
    else:
        last = _norm(outside, head, calls, calls[layers[-1]].outputs[-1], names)
    paths = {"layers": names[layers[0]].rpartition(".")[0], "last": names[last], "head": names[head]}
    if last not in calls:
        raise EyasError(
            f"{paths['last']} does not stand behind the layers of {type(model).__name__}; "
            "set verifier.transformers.norm: null, which finds the one that does"
        )
    if len(calls[last].inputs) != 1:
        raise EyasError(f"{paths['last']} does not run once in a forward of {type(model).__name__}")
    if verifier.target is Target.pre_norm and not _same(calls[last].inputs[0], calls[layers[-1]].outputs[-1]):
        wrong = f"{paths['last']} does not read what the last layer writes"
        if wanted.norm:
            raise EyasError(
                f"{wrong}, so it is not the final norm; set verifier.transformers.norm: null, which finds it"
            )
        if verifier.norm.kind is NormKind.none:
            raise EyasError(
                f"{wrong}, so there is a norm between them; set verifier.norm.kind, or verifier.target: head_input"
            )
        raise EyasError(
            f"{wrong}: something stands between them, so the state before the norm can't be captured; "
            "set verifier.target: head_input"
        )
    return Modules(layers, last, paths)


def module_at(model: nn.Module, path: str, key: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        names = ", ".join(name for name, _ in model.named_modules() if name.count(".") <= 1 and name)[:300]
        raise EyasError(f"{key}={path}: {type(model).__name__} has no such module; it has: {names}") from None


def _layers(model: PreTrainedModel, path: str | None, num_layers: int, names: dict[nn.Module, str]) -> list[nn.Module]:
    """The list of `num_layers` modules nearest to the embedding."""
    if path:
        layers = module_at(model, path, "verifier.transformers.layers")
        if not isinstance(layers, nn.ModuleList) or len(layers) != num_layers:
            found = f"of {len(layers)}" if isinstance(layers, nn.ModuleList) else "of none"
            raise EyasError(
                f"verifier.transformers.layers={path} is a {type(layers).__name__} {found} layers, "
                f"expected the {num_layers} decoder layers"
            )
        return list(layers)
    place = names[model.get_input_embeddings()]
    lists = [module for module in names if isinstance(module, nn.ModuleList) and len(module) == num_layers]
    # A list inside another list (heads of a layer, experts) is never the layers.
    lists = [it for it in lists if not any(part.isdigit() for part in names[it].split("."))]
    while True:
        place = place.rpartition(".")[0]
        near = [it for it in lists if names[it].startswith(f"{place}." if place else "")]
        if len(near) == 1:
            return list(near[0])
        if near or not place:
            found = ", ".join(f"{names[it]} ({len(it)})" for it in near) or "no list of that length"
            raise EyasError(
                f"which {num_layers} layers of {type(model).__name__}? Found {found}: set verifier.transformers.layers "
                "(or verifier.config.num_layers, if the number is wrong)"
            )


def _norm(
    outside: list[nn.Module],
    head: nn.Module,
    calls: dict[nn.Module, _Calls],
    state: Tensor,
    names: dict[nn.Module, str],
) -> nn.Module:
    """The module outside the layers that reads what the last layer wrote."""
    readers = [
        module
        for module in outside
        if module is not head and any(_same(it, state) for it in calls[module].inputs) and not list(module.children())
    ]
    # A module that hands its input through (dropout in evaluation) reads the same state and is no norm.
    readers = [module for module in readers if not _same(calls[module].outputs[-1], calls[module].inputs[-1])]
    if len(readers) != 1:
        found = ", ".join(names[module] for module in readers) or "none"
        raise EyasError(
            f"which module is the final norm? Modules that read the last layer's output: {found}; "
            "set verifier.transformers.norm, or verifier.target: head_input if the model mixes its state before the head"
        )
    return readers[0]


def _check_stream(layers: list[nn.Module], calls: dict[nn.Module, _Calls], names: dict[nn.Module, str]) -> None:
    for index, layer in enumerate(layers):
        if (count := len(calls[layer].inputs)) != 1:
            raise EyasError(
                f"{names[layer]} runs {count} times in one forward, so `the residual stream entering layer {index}` "
                "is not one thing: this architecture can't be captured"
            )
    for index, (this, following) in enumerate(pairwise(layers)):
        if not _same(calls[this].outputs[0], calls[following].inputs[0]):
            raise EyasError(
                f"{names[following]} does not read what {names[this]} writes: these are not the layers of one residual "
                f"stream (broken between {index} and {index + 1}); set verifier.transformers.layers"
            )


@torch.no_grad()
def _watch(
    model: PreTrainedModel, modules: list[nn.Module], inputs: dict[str, Tensor] | None
) -> dict[nn.Module, _Calls]:
    """One forward of a few tokens, with every module's inputs and outputs."""
    calls = {module: _Calls([], []) for module in modules}
    handles = [module.register_forward_hook(_recorder(calls[module]), with_kwargs=True) for module in calls]
    try:
        ids_1S = torch.tensor([[3, 7, 5, 11, 4, 9]], device=model.device)
        model(**(inputs or {"input_ids": ids_1S, "attention_mask": torch.ones_like(ids_1S)}), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _recorder(calls: _Calls) -> Callable[..., None]:
    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = state_of(args, kwargs)
        made = output[0] if isinstance(output, (tuple, list)) and output else output
        if given is not None and isinstance(made, Tensor):
            calls.inputs.append(given.detach().clone())  # a layer may write into its input
            calls.outputs.append(made.detach().clone())

    return record


def state_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The hidden state among a module's arguments: the first floating-point tensor."""
    given = [*args[:1], *(value for key, value in kwargs.items() if key == "hidden_states"), *args[1:]]
    return next((it for it in given if isinstance(it, Tensor) and it.is_floating_point()), None)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b.to(a.device))
