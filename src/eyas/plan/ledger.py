"""Counts the memory of what runs under it: every tensor from its creation to its end, and what there was at the peak.

Meant for fake tensors (torch's FakeTensorMode), which have shapes and types, live and die as real ones do, and hold nothing. So
what is counted is what the code does, and not what somebody thinks that it does.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Peak:
    """The moment at which there was most."""

    moment: str = "before anything"
    parts: dict[str, int] = field(default_factory=dict)
    """Bytes of each part, the largest first."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass
class _Block:
    """A piece of memory; views of it are no other piece."""

    storage: "weakref.ref[torch.UntypedStorage]"
    part: str


class Ledger(TorchDispatchMode):
    """Every tensor that is made while this mode is on belongs to the part that is named at that time.

    Args:
        part_of: Says of a tensor that it belongs to another part than the one that is named; None: it doesn't.
    """

    def __init__(self, part_of: Callable[[Tensor], str | None] = lambda _: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moment = self.part = ""
        self.part_of = part_of
        self._blocks: dict[int, _Block] = {}
        self._peak: tuple[str, int, list[tuple[_Block, int]]] = ("before anything", 0, [])

    @contextmanager
    def during(self, moment: str, part: str) -> Iterator[None]:
        """Name what happens, and the part that new tensors belong to."""
        before = self.moment, self.part
        self.moment, self.part = moment, part
        try:
            yield
        finally:
            self.moment, self.part = before

    def assign(self, tensors: Iterable[Tensor | None], part: str) -> None:
        """Tensors that turn out to belong to another part."""
        for tensor in tensors:
            if tensor is not None:
                self._block(tensor).part = part

    def peak(self) -> Peak:
        """The peak since this was last asked."""
        moment, _, blocks = self._peak
        parts: Counter[str] = Counter()
        for block, size in blocks:
            parts[block.part] += size
        self._peak = (self.moment, 0, [])
        return Peak(moment, dict(parts.most_common()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._block(leaf)
        self._look()
        return made

    def _block(self, tensor: Tensor) -> _Block:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        key = id(storage)
        if key not in self._blocks:
            gone = weakref.ref(storage, lambda _: self._blocks.pop(key, None))
            self._blocks[key] = _Block(gone, self.part_of(local) or self.part)
        return self._blocks[key]

    def _look(self) -> None:
        # Sizes are asked each time: FSDP empties and fills storages that stay.
        sizes = [
            (block, storage.nbytes()) for block in self._blocks.values() if (storage := block.storage()) is not None
        ]
        total = sum(size for _, size in sizes)
        if total > self._peak[1]:
            self._peak = (self.moment, total, sizes)
