"""A disk that is full: said in one line, whichever library met it."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eyas.errors import EyasError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_explained(directory: Path) -> Iterator[None]:
    """A disk that fills up while something is written below a directory, in one line.

    Raises:
        EyasError: it is full.
    """
    try:
        yield
    except EyasError:
        raise
    except Exception as error:
        if not comes_from_full_disk(error):
            raise
        raise full_disk(directory) from None


def comes_from_full_disk(error: BaseException | None) -> bool:
    """Whether the system's word for it is in an error: safetensors has it as text, torch leaves it behind an error of its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(f"(os error {code})" in str(error) for code in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_disk(directory: Path) -> EyasError:
    return EyasError(
        f"the disk of {directory} is full: make room there, and the same command carries on after what is whole"
    )


def is_full(directory: Path, num_bytes: int) -> bool:
    """Whether a file of so many bytes has no room in a directory (on this machine)."""
    return directory.exists() and shutil.disk_usage(directory).free < num_bytes
