"""What the device computes and the host wants to know, one step later: so that neither waits for the other."""

from typing import Any, NamedTuple

import torch

from eyas.tensors import map_tensors


class _Step(NamedTuple):
    values: Any
    copied: "torch.cuda.Event | None"


class OneBehind:
    """Hands back what was handed in at the step before, on the host; on a CPU, where nothing is behind, at once."""

    def __init__(self) -> None:
        self._held: _Step | None = None

    def swap(self, values: Any) -> Any:
        """Hand in this step's tensors (in tuples, as deep as they go), and get those that are there now; None: none yet."""
        ready = self.rest()
        self._held = _copying(values)
        return self.rest() if self._held.copied is None else ready

    def rest(self) -> Any:
        """What is left, when there is no next step, or nothing may happen before it is known."""
        held, self._held = self._held, None
        if held is None:
            return None
        if held.copied is not None:
            held.copied.synchronize()
        return held.values


def _copying(values: Any) -> _Step:
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    copies = map_tensors(lambda it: it.to("cpu", non_blocking=True), values)
    if not on_gpu:
        return _Step(copies, None)
    copied = torch.cuda.Event()
    copied.record()
    return _Step(copies, copied)
