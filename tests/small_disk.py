"""A disk that a test can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_BYTES = 48 << 20


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of a few MB; needs the right to mount one (root's)."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    mounted = subprocess.run(command, text=True, capture_output=True)
    assert mounted.returncode == 0, f"a disk that can be filled needs the right to mount one: {mounted.stderr}"
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(disk: Path, *, leaving: int = 0) -> Path:
    """A file that leaves no room, or so many bytes."""
    ballast, size = disk / "ballast", 0
    with ballast.open("wb") as stream:
        while (room := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - leaving) > 0:
            with suppress(OSError):  # somebody else was faster: there is less room by now
                os.posix_fallocate(stream.fileno(), size, room)
                size += room
    return ballast
