"""Tensors wherever they are in dataclasses and tuples."""

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import TypeVar, cast

from torch import Tensor

_Any = TypeVar("_Any")


def map_tensors(change: Callable[[Tensor], Tensor], it: _Any) -> _Any:
    """The same with every tensor in it changed: of dataclasses and tuples, as deep as they go."""
    if isinstance(it, Tensor):
        return cast(_Any, change(it))
    if isinstance(it, tuple):
        return cast(_Any, tuple(map_tensors(change, part) for part in it))
    if is_dataclass(it) and not isinstance(it, type):
        return cast(_Any, replace(it, **{name: map_tensors(change, part) for name, part in vars(it).items()}))
    return it
