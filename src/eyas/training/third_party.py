"""The `_target_` groups: building objects of other libraries from the configuration, at a few visible places."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from inspect import signature
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_object, instantiate

from eyas.errors import EyasError

Builder = Callable[..., Any]

ALLOWED = ("eyas", "lightning", "torch", "transformers", "wandb")
"""Only these packages' objects are ever built from a configuration."""

OPTIONAL = {"TensorBoardLogger": ("tensorboard", "tensorboardX"), "MLFlowLogger": ("mlflow",)}
"""Packages that Eyas doesn't bring, by the class that needs one of them."""


def build(key: str, mapping: dict[str, Any], /, **arguments: Any) -> Any:
    """Build what `mapping` names, adding `arguments`; with `_partial_: true` a function that builds it.

    Raises:
        EyasError: another package, no such object, or arguments it doesn't take.
    """
    check(key, mapping, **arguments)
    # Our own arguments reach the object as they are: instantiate would build any `_target_` it found inside them.
    builder = instantiate({**mapping, "_partial_": True})
    return partial(builder, **arguments) if mapping.get("_partial_") else builder(**arguments)


def check(key: str, mapping: dict[str, Any], /, **arguments: Any) -> None:
    """Refuse a mapping that could not be built, without building it."""
    target = str(mapping.get("_target_"))
    if target.split(".")[0] not in ALLOWED:
        raise EyasError(f"{key}._target_={target}: expected an object of one of these packages: {', '.join(ALLOWED)}")
    try:
        found = get_object(target)
    except (HydraException, ImportError, AttributeError, ValueError) as error:
        raise EyasError(f"{key}._target_={target}: there is no such object ({str(error).splitlines()[0]})") from None
    packages = OPTIONAL.get(target.rpartition(".")[2], ())
    if packages and not any(find_spec(package) for package in packages):
        raise EyasError(
            f"{key}: {target} needs the package {packages[0]}, which isn't installed: pip install {packages[0]}"
        )
    for name, value in mapping.items():
        if isinstance(value, dict) and "_target_" in value:
            check(f"{key}.{name}", value)
    given = {name: value for name, value in mapping.items() if not (name.startswith("_") and name.endswith("_"))}
    accepted = signature(found)
    try:
        accepted.bind_partial(**given, **arguments)
    except TypeError as error:
        names = ", ".join(name for name in accepted.parameters if name != "self")
        raise EyasError(f"{key}: {target} {error}; it takes: {names}") from None
