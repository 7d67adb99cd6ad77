"""The files by which vLLM hands captured states over: waited for, checked, and removed at once.

For each request vLLM names a file; a lock file beside it is held until it is whole (it is written after the answer).

Shapes: T tokens, L chosen layers (the last state is one more), H hidden size.
"""

import fcntl
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from eyas.capture.expected import Expected
from eyas.disk import full_disk, is_full
from eyas.errors import EyasError

REST_BYTES = 1 << 16
"""What a file holds beside the states: its header, and the token ids."""


class LostStatesError(EyasError):
    """A file that is not there, or not whole: asking again may help."""


@dataclass(frozen=True)
class Handover:
    """How files are taken over."""

    expected: Expected
    timeout: float
    """Seconds for which a file may be unfinished."""

    def take(self, answer: dict[str, Any], ids_T: Tensor) -> Tensor:
        """The states [T, L + 1, H] that an answer of /v1/completions names, for these tokens; its file is gone afterwards.

        Raises:
            LostStatesError: there is no whole file.
            EyasError: it holds something else than was asked for, or the disk is full, which asking again will not mend.
        """
        named = (answer.get("kv_transfer_params") or {}).get("hidden_states_path")
        if named is None:
            raise EyasError(
                "the server answers without states: it was not started for capture; with server=endpoints start it with "
                "the arguments that Eyas printed, or let Eyas start it: server=local"
            )
        file = Path(named)
        try:
            states_TLH, captured_T, layer_ids = self._taken(file)
        except LostStatesError:
            num_values = len(ids_T) * len(self.expected.layer_ids) * self.expected.hidden_size
            # Where there is no room for it even now, asking again will not mend it.
            if is_full(file.parent, num_values * self.expected.dtype.itemsize + REST_BYTES):
                raise full_disk(file.parent) from None
            raise
        self.expected.check(states_TLH, captured_T, ids_T, source="the server", layer_ids=layer_ids)
        return states_TLH

    def _taken(self, file: Path) -> tuple[Tensor, Tensor, list[int] | None]:
        """States, token ids and the layers that the file says it holds."""
        try:
            content = self._read(file)
        finally:
            remove_states(file)
        try:
            tensors = load(content)
            return tensors["hidden_states"], tensors["token_ids"], _layer_ids(content)
        except (SafetensorError, KeyError) as error:
            raise LostStatesError(f"{file} is not whole ({error})") from None

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
