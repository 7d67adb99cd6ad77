"""What the dataclass schemas of the configuration share. Torch-free."""

import dataclasses
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

from eyas.errors import EyasError


def at_least(key: str, value: float, least: float) -> None:
    """Refuse a setting that is too small.

    Raises:
        EyasError: it is.
    """
    if value < least:
        raise EyasError(f"{key}={value}: must be at least {least}")


class Dtype(Enum):
    """A floating-point type, by torch's name."""

    float32 = "float32"
    bfloat16 = "bfloat16"


OPEN = {"open": True}
"""Metadata of a mapping whose keys are the user's own, such as environment variables; elsewhere a new key is a mistake."""


def open_paths(schema: Any, prefix: str = "") -> Iterator[str]:
    """The dotted paths of all open mappings of a schema."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if field.metadata.get("open"):
            yield prefix + field.name
        elif dataclasses.is_dataclass(hints[field.name]):
            yield from open_paths(hints[field.name], f"{prefix}{field.name}.")
