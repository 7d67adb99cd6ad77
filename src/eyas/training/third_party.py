"""The `_target_` groups: building objects of other libraries from the configuration, at a few visible places."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_object, instantiate

from eyas.errors import EyasError

Builder = Callable[..., Any]

ALLOWED = ("eyas", "lightning", "torch", "transformers", "wandb")
"""Only these packages' objects are ever built from a configuration."""


def build(group: str, mapping: dict[str, Any], **arguments: Any) -> Any:
    """Build what `mapping` names, adding `arguments`; with `_partial_: true` a function that builds it.

    Raises:
        EyasError: another package, no such object, or arguments it doesn't take.
    """
    check(group, mapping, **arguments)
    return instantiate(mapping, **arguments)


def check(group: str, mapping: dict[str, Any], **arguments: Any) -> None:
    """Refuse a mapping that could not be built, without building it."""
    target = str(mapping.get("_target_"))
    if target.split(".")[0] not in ALLOWED:
        raise EyasError(f"{group}._target_={target}: expected an object of one of these packages: {', '.join(ALLOWED)}")
    try:
        found = get_object(target)
    except (HydraException, ImportError, AttributeError, ValueError) as error:
        raise EyasError(f"{group}._target_={target}: there is no such object ({str(error).splitlines()[0]})") from None
    given = {key: value for key, value in mapping.items() if not (key.startswith("_") and key.endswith("_"))}
    accepted = signature(found)
    try:
        accepted.bind_partial(**given, **arguments)
    except TypeError as error:
        names = ", ".join(name for name in accepted.parameters if name != "self")
        raise EyasError(f"{group}: {target} {error}; it takes: {names}") from None
