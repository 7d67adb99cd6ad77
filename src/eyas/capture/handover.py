"""The files by which vLLM hands captured states over: waited for, checked, and removed at once.

For each request vLLM names a file; a lock file beside it is held until it is whole (it is written after the answer).

Shapes: T tokens, L chosen layers (the last state is one more), H hidden size.
"""

import fcntl
import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from eyas.capture.refusal import WAY_OUT
from eyas.errors import EyasError


class LostStatesError(EyasError):
    """A file that is not there, or not whole: asking again may help."""


@dataclass(frozen=True)
class Handover:
    """What every file must be."""

    layer_ids: Sequence[int]
    """The chosen layers and the one after the last (n)."""
    hidden_size: int
    dtype: torch.dtype
    timeout: float
    """Seconds for which a file may be unfinished."""

    def take(self, answer: dict[str, Any], ids_T: Tensor) -> Tensor:
        """The states [T, L + 1, H] that an answer of /v1/completions names, for these tokens; its file is gone afterwards.

        Raises:
            LostStatesError: there is no whole file.
            EyasError: it holds something else than was asked for, which asking again will not mend.
        """
        named = (answer.get("kv_transfer_params") or {}).get("hidden_states_path")
        if named is None:
            raise EyasError(
                "the server answers without states: it was not started for capture; with server=endpoints start it with "
                "the arguments that Eyas printed, or let Eyas start it: server=local"
            )
        file = Path(named)
        try:
            content = self._read(file)
        finally:
            remove_states(file)
        try:
            tensors = load(content)
            states_TLH, captured_T = tensors["hidden_states"], tensors["token_ids"]
        except (SafetensorError, KeyError) as error:
            raise LostStatesError(f"{file} is not whole ({error})") from None
        self._check(states_TLH, captured_T, ids_T, _layer_ids(content))
        return states_TLH

    def _read(self, file: Path) -> bytes:
        """The content, once vLLM has finished writing. Not mapped: a mapped file takes its place on the disk even removed."""
        deadline = time.monotonic() + self.timeout
        try:
            with file.with_name(f"{file.name}.lock").open() as lock:
                while not _locked(lock.fileno()):
                    if time.monotonic() > deadline:
                        raise LostStatesError(f"{file} was still being written after {self.timeout:g} seconds")
                    time.sleep(0.002)
                return file.read_bytes()
        except FileNotFoundError as error:
            hint = "" if file.parent.exists() else "; is that directory shared with the server's machine?"
            raise LostStatesError(f"{error.filename} is not there{hint}") from None

    def _check(self, states_TLH: Tensor, captured_T: Tensor, ids_T: Tensor, layer_ids: list[int] | None) -> None:
        expected = (len(ids_T), len(self.layer_ids), self.hidden_size)
        if layer_ids not in (None, [*self.layer_ids]):
            raise EyasError(f"the server hands over layers {layer_ids}, expected {[*self.layer_ids]}")
        if captured_T.tolist() != ids_T.tolist():
            raise EyasError(
                f"the server captured other tokens than it was sent: {len(captured_T)} of them, {captured_T[:8].tolist()}..., "
                f"expected {len(ids_T)}, {ids_T[:8].tolist()}..."
            )
        if tuple(states_TLH.shape) != expected:
            raise EyasError(
                f"the server hands over states of shape {[*states_TLH.shape]}, expected {[*expected]} (tokens, layers "
                f"{[*self.layer_ids]}, hidden size)"
            )
        if states_TLH.dtype is not self.dtype:
            raise EyasError(
                f"the server hands over {states_TLH.dtype}, and capture.dtype is {self.dtype}: an argument in verifier.vllm.args "
                "or server.args sets another dtype; make them equal"
            )
        largest_L = torch.linalg.vector_norm(states_TLH, ord=float("inf"), dim=(0, 2)).tolist()  # nan where one is
        for layer, largest in zip(self.layer_ids, largest_L, strict=True):
            if not math.isfinite(largest):
                raise EyasError(f"the verifier's states of layer {layer} are not finite; try capture.dtype=float32")
            if largest == 0:
                raise EyasError(
                    f"the verifier's states of layer {layer} are all zero: vLLM does not hand that layer over for this model; "
                    f"{WAY_OUT}"
                )


def remove_states(file: Path) -> None:
    """Remove a file of states and its lock, whatever of them is there."""
    for path in (file, file.with_name(f"{file.name}.lock")):
        with suppress(FileNotFoundError):
            path.unlink()


def _locked(descriptor: int) -> bool:
    """Whether nobody writes any more."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _layer_ids(content: bytes) -> list[int] | None:
    """The layers that the file says it holds, where the connector was ours."""
    size = int.from_bytes(content[:8], "little")
    stated = json.loads(content[8 : 8 + size]).get("__metadata__", {}).get("layer_ids")
    return None if stated is None else json.loads(stated)
