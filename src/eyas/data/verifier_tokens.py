"""What the verifier itself says at each target of each packed row: searched in its whole vocabulary once, then known.

A file that all ranks map. A row's slot holds the tokens of its targets, each plus one; zero: nobody has searched yet. Whoever
searches finds the same, so it doesn't matter who writes, nor how often. It is a run's own: runs that share it could differ in
the last bit by who came first.

Shapes: J targets of a row.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class VerifierTokens:
    """The tokens of a plan's packed rows, numbered as there; held-out rows after those to train on."""

    def __init__(self, file: Path, num_rows: int, row_length: int) -> None:
        size = num_rows * row_length * np.dtype(np.int32).itemsize
        with file.open("ab") as opened:
            opened.truncate(size)  # sparse: it takes room as rows are written
        self._slots = np.memmap(file, np.int32, "r+", shape=(num_rows, row_length))

    def known(self, row: int, num_targets: int) -> Tensor | None:
        """The tokens of a row's targets [J], where all of them are known."""
        slot = self._slots[row, :num_targets]
        return torch.from_numpy(slot.astype(np.int64) - 1) if slot.all() else None

    def keep(self, row: int, token_J: Tensor) -> None:
        """Write what was found."""
        self._slots[row, : len(token_J)] = token_J.numpy() + 1
