"""Byte streams, plain or compressed, cut into lines or into the elements of a JSON array, none longer than a limit."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from eyas.errors import EyasError

CHUNK = 1 << 20
STREAM_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What reading raises where a file is cut short or damaged."""


def opened(file: Path) -> io.BufferedReader:
    if file.suffix not in DECOMPRESSORS:
        return file.open("rb")
    return io.BufferedReader(cast(io.RawIOBase, DECOMPRESSORS[file.suffix](file)), CHUNK)


def _zst(file: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise EyasError(f"{file}: .zst needs a package that is not installed: pip install zstandard") from None
    return _ZstFile(file, zstandard)


class _ZstFile(io.RawIOBase):
    """zstandard's own reader ends a cut file without a word; this one says so."""

    def __init__(self, file: Path, zstandard: Any) -> None:
        self.file, self.zstandard = file.open("rb"), zstandard
        self.frame: Any = None
        self.rest = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def readinto(self, into: Any) -> int:
        while not self.rest:
            content = self.file.read(4096)  # small: what it expands to is held
            if not content:
                if self.frame is not None:
                    raise EOFError("the compressed file ended before its end-of-stream marker")
                return 0
            self.rest = self._expanded(content)
        size = min(len(into), len(self.rest))
        into[:size], self.rest = self.rest[:size], self.rest[size:]
        return size

    def _expanded(self, content: bytes) -> bytes:
        expanded = b""
        while content:
            self.frame = self.frame or self.zstandard.ZstdDecompressor().decompressobj()
            try:
                expanded += self.frame.decompress(content)
            except self.zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            content = self.frame.unused_data if self.frame.eof else b""
            self.frame = None if self.frame.eof else self.frame
        return expanded


def cut_lines(stream: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """(number, line); None for a line over the limit."""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := stream.readline(CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line


# A whole string, a bracket, a comma, or the quote of a string that goes on past what was read.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]|"', re.DOTALL)


def cut_elements(stream: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """The bytes of each element of a JSON array; None for one over the limit.

    Cut out first and parsed one by one: a bad element costs itself and not the array, and none is held beyond the limit.
    """
    buffer = stream.read(CHUNK).removeprefix(b"\xef\xbb\xbf")
    start = position = buffer.index(b"[") + 1
    depth = count = 0
    too_long = False
    while True:
        token = _TOKEN.search(buffer, position)
        if token is None or token[0] == b'"':
            position = len(buffer) if token is None else token.start()
            if too_long or len(buffer) - start > limit:
                too_long = True
                # Only how the rest begins matters: outside a string, or inside one (after half an escape, maybe).
                tail = b"" if token is None else b'"' + b"\\" * ((len(buffer) - len(buffer.rstrip(b"\\"))) % 2)
                buffer, start, position = tail, 0, 0
            chunk = stream.read(max(CHUNK, min(len(buffer) - start, limit)))
            if not chunk:
                raise EOFError(f"the array is not closed; it ends inside row {count + 1}")
            buffer, position, start = buffer[start:] + chunk, position - start, 0
            continue
        position = token.end()
        if token[0] in (b"[", b"{"):
            depth += 1
        elif depth and token[0] in (b"]", b"}"):
            depth -= 1
        elif not depth and len(token[0]) == 1:
            element = buffer[start : token.start()]
            if token[0] == b"," or count or element.strip() or too_long:
                count += 1
                yield None if too_long or len(element) > limit else element
            start, too_long = position, False
            if token[0] == b"]":
                break
            if token[0] == b"}":
                raise OSError(f"a stray }} after row {count}")
    if buffer[position:].strip() or any(chunk.strip() for chunk in iter(lambda: stream.read(CHUNK), b"")):
        raise OSError("there is more after the array's end")


DECOMPRESSORS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zst,
}
