"""States with one file for each row of a tokens artifact, as speculators writes them.

`hs_<row>.safetensors`: `hidden_states` [T, L + 1, H] (the chosen layers in ascending order, then the last state before the
final norm) and `token_ids` [T], the row's `input_ids`.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from eyas.artifact import read_manifest
from eyas.data.store import Document
from eyas.data.tokens import Tokens
from eyas.errors import EyasError


class RowStore:
    """A states artifact whose states are in such files, wherever these are."""

    def __init__(self, directory: Path, tokens: Tokens) -> None:
        self.tokens = tokens
        self.files: dict[str, Any] = read_manifest(directory)["counts"]["files"]
        self.directory = Path(self.files["path"])

    def verify(self) -> None:
        """Whether they are still the files that were checked.

        Raises:
            EyasError: one is missing or another, by name.
        """
        for row, size in enumerate(self.files["sizes"]):
            file = row_file(self.directory, row)
            if not file.exists() or file.stat().st_size != size:
                state = "changed since it was checked" if file.exists() else "missing"
                raise EyasError(f"{file} is {state}; bring it back, or capture anew")

    def read(self, row: int) -> Document:
        """One document."""
        return read_document(self.directory, row, self.tokens)


def row_file(directory: Path, row: int) -> Path:
    return directory / f"hs_{row}.safetensors"


def write_row(directory: Path, row: int, ids_T: Tensor, states_TLH: Tensor) -> None:
    """Write a row's file completely or not at all."""
    file = row_file(directory, row)
    partial = file.with_suffix(".partial")
    partial.write_bytes(save({"hidden_states": states_TLH.contiguous(), "token_ids": ids_T}))
    partial.rename(file)


def read_row(directory: Path, row: int) -> tuple[Tensor, Tensor]:
    """(token_ids [T], hidden_states [T, L + 1, H]) of a row.

    Raises:
        FileNotFoundError: it has no file.
        EyasError: the file is no such thing.
    """
    file = row_file(directory, row)
    content = file.read_bytes()  # not mapped: a mapped file takes its place on the disk even removed
    try:
        tensors = load(content)
        return tensors["token_ids"], tensors["hidden_states"]
    except (SafetensorError, KeyError) as error:
        raise EyasError(
            f"{file} is no file of states ({error}): expected the tensors hidden_states and token_ids"
        ) from None


def read_document(directory: Path, row: int, tokens: Tokens) -> Document:
    """A row of the tokens artifact with its states; raises what `read_row` does."""
    ids_T, mask_T = tokens.row(row)
    _, states_TLH = read_row(directory, row)
    return Document(ids_T.long(), mask_T, states_TLH[:, :-1], states_TLH[:, -1])


def rows_in(directory: Path) -> list[int]:
    """The rows that have a file."""
    return sorted(int(file.stem.removeprefix("hs_")) for file in directory.glob("hs_*.safetensors"))
