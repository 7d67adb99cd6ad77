"""The one exception for people: printed as one line, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class EyasError(Exception):
    """Something a user can mend. The message names the thing, what was found, what was expected, and the fix."""

    check: str = ""
    """The doctor's row that this belongs to (`p02_keys`), where one does."""


@contextmanager
def checking(name: str) -> Iterator[None]:
    """Errors raised inside belong to this row of the doctor, unless they already belong to another."""
    try:
        yield
    except EyasError as error:
        error.check = error.check or name
        raise
