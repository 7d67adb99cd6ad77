"""Between a capture and the training beside it: a directory with one file for each row that was captured and is still needed.

The capture adds and removes rows; training reads them, waits for those that are not there yet, and says how far it is.
"""

import time
from pathlib import Path

from torch import Tensor

from eyas.artifact import write_file
from eyas.data.row_files import read_document, row_file, rows_in, write_row
from eyas.data.store import Document
from eyas.data.tokens import Tokens
from eyas.errors import EyasError

ENDED = "ended"
"""A file that says: no row will come any more."""

STEPS = "steps"
"""A file with the number of steps that are done."""


class Window:
    """T tokens, L chosen layers (the last state is one more), H hidden size."""

    def __init__(self, directory: Path, tokens: Tokens) -> None:
        self.directory, self.tokens = directory, tokens

    def verify(self) -> None:
        """Each file is checked before it stands here."""

    def read(self, row: int) -> Document:
        """A row's states, once they are there.

        Raises:
            EyasError: they will not come.
        """
        while True:
            over = (self.directory / ENDED).exists()  # looked up first: what came before the end is there
            try:
                return read_document(self.directory, row, self.tokens)
            except FileNotFoundError:
                if over:
                    raise EyasError("the capture beside this training has ended; what it printed says why") from None
            time.sleep(0.01)

    def hand_back(self, num_steps: int) -> None:
        """So many steps are done: what only they needed may go."""
        write_file(self.directory / STEPS, str(num_steps))

    def steps_done(self) -> int:
        """What `hand_back` said last; 0 before."""
        file = self.directory / STEPS
        return int(file.read_text()) if file.exists() else 0

    def rows(self) -> list[int]:
        return rows_in(self.directory)

    def add(self, row: int, states_TLH: Tensor) -> None:
        write_row(self.directory, row, self.tokens.row(row)[0], states_TLH)

    def remove(self, row: int) -> None:
        row_file(self.directory, row).unlink()

    def end(self) -> None:
        (self.directory / ENDED).touch()
