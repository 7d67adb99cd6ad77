"""Files of rows -> rows, one at a time: JSON lines, JSON arrays, CSV, TSV and Parquet, plain or compressed.

Memory does not grow with the file: lines and elements are cut out of the stream before they are parsed, and one that is
longer than the limit is skipped without being held. What is wrong with one row becomes a `BadRow`; what makes the rest
of the file unreadable (a cut archive, a broken array) is an EyasError, so that no row is ever lost in silence.
"""

import csv
import json
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, cast

from eyas.data.streams import DECOMPRESSORS, STREAM_ERRORS, cut_elements, cut_lines, opened
from eyas.errors import EyasError

ROWS_PER_BATCH = 256


class Reason(Enum):
    """Why a row can't be used; rows are counted by it."""

    json = "not valid JSON"
    utf8 = "not valid UTF-8"
    duplicate_key = "a key given twice"
    too_long = "longer than data.max_row_bytes"
    too_deep = "nested too deeply"
    columns = "missing or wrong columns"
    turns = "turns of the wrong form"
    role = "unknown role"
    no_answer = "no assistant turn"
    media = "image, audio or video parts"
    tools = "tool calls of the wrong form"
    tokens = "ids or loss mask of the wrong form"
    template = "refused by the chat template"


class RowError(Exception):
    """One row is unusable; the reader adds where it stands."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class RawRow:
    """A row as its file has it."""

    where: str
    """file:line, or "file row N" where lines mean nothing."""
    value: Any


@dataclass(frozen=True)
class BadRow:
    """A row that can't be used, for people."""

    where: str
    reason: Reason
    detail: str


def shown(value: Any) -> str:
    """A value in one short line, however long or deep it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    short.maxlevel = 3
    return short.repr(value)[:120]


def parse_json(content: bytes | str) -> Any:
    """A JSON value, strictly: no NaN, no key twice in an object.

    Raises:
        RowError: it is none.
    """
    try:
        return _DECODER.decode(content.decode("utf-8-sig") if isinstance(content, bytes) else content)
    except UnicodeDecodeError as error:
        raise RowError(
            Reason.utf8, f"not valid UTF-8 (byte {error.start}: {error.reason}); save the file as UTF-8"
        ) from None
    except RecursionError:
        raise RowError(Reason.too_deep, "nested too deeply to be read; flatten or remove the row") from None
    except ValueError as error:
        raise RowError(Reason.json, f"not valid JSON ({error}); mend or remove the row") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python keeps the last of two equal keys and says nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowError(Reason.duplicate_key, f"the key {shown(twice)} stands twice in one object; remove one of them")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def file_format(file: Path) -> str | None:
    """The suffix that says how a file is read, compression aside; None: it is not one of ours."""
    compressed = file.suffix in DECOMPRESSORS
    suffix = Path(file.stem).suffix if compressed else file.suffix
    # Parquet is read from its end and compresses within.
    return suffix if suffix in _READERS and not (compressed and suffix == ".parquet") else None


def known_suffixes() -> str:
    return f"{' '.join(_READERS)} (each but Parquet also with {' '.join(DECOMPRESSORS)})"


def read_file(file: Path, max_row_bytes: int) -> Iterator[RawRow | BadRow]:
    """Every row of a file, in order.

    Raises:
        EyasError: the file, or its rest, can't be read.
    """
    reader = _READERS[cast(str, file_format(file))]
    number = 0
    try:
        for row in reader(file, max_row_bytes):
            number += 1
            yield row
    except STREAM_ERRORS as error:
        raise EyasError(
            f"{file}: can't be read past row {number} ({_first_line(error)}); it is cut short, damaged or not what its "
            "name says: fetch or write it again"
        ) from None


def batches(where: str, tables: Iterator[Any]) -> Iterator[RawRow | BadRow]:
    """Rows of Arrow batches or tables; "where row N"."""
    number = 0
    for table in tables:
        for value in _python_rows(table):
            number += 1
            place = f"{where} row {number}"
            yield BadRow(place, value.reason, value.detail) if isinstance(value, RowError) else RawRow(place, value)


def _python_rows(table: Any) -> list[Any]:
    try:
        return cast(list[Any], table.to_pylist())
    except (ValueError, OverflowError) as error:
        if len(table) > 1:  # find the row; the others are good
            return [row for index in range(len(table)) for row in _python_rows(table.slice(index, 1))]
        reason = Reason.utf8 if isinstance(error, UnicodeDecodeError) else Reason.columns
        return [RowError(reason, f"can't be read ({_first_line(error)}); mend or remove the row")]


def _read_lines(file: Path, limit: int) -> Iterator[RawRow | BadRow]:
    with opened(file) as stream:
        for number, line in cut_lines(stream, limit):
            if line is None or line.strip():
                yield _parsed(f"{file}:{number}", line, limit)


def _read_json(file: Path, limit: int) -> Iterator[RawRow | BadRow]:
    """One array of rows, or, as many tools write it, one object a line."""
    with opened(file) as stream:
        start = stream.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip()  # a whole buffer of blanks is no array
    if not start.startswith(b"["):
        yield from _read_lines(file, limit)
        return
    with opened(file) as stream:
        for number, element in enumerate(cut_elements(stream, limit), start=1):
            yield _parsed(f"{file} row {number}", element, limit)


def _read_csv(file: Path, limit: int) -> Iterator[RawRow | BadRow]:
    """Rows as objects of strings, named by the first line."""
    csv.field_size_limit(limit)
    with opened(file) as stream:
        lines = _TextLines(stream, limit)
        # strict: an open quote at the file's end is an error, not a field that swallowed the rows after it
        records = csv.reader(lines, delimiter="\t" if file_format(file) == ".tsv" else ",", strict=True)
        names: list[str] | None = None
        while True:
            lines.begin()
            where, detail, fields = f"{file}:{lines.number + 1}", "", []
            try:
                fields = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                detail = f"not valid CSV ({_first_line(error)}); mend or remove the row"
            if lines.problem:
                yield BadRow(where, *lines.problem)
            elif detail:
                yield BadRow(where, Reason.columns, detail)
            elif names is None:
                names = _header(fields, where)
            elif fields and len(fields) != len(names):
                yield BadRow(
                    where, Reason.columns, f"{len(fields)} fields, expected {len(names)} as in the first line; mend it"
                )
            elif fields:
                yield RawRow(where, dict(zip(names, fields, strict=True)))


def _header(fields: list[str], where: str) -> list[str]:
    if not fields or len(set(fields)) < len(fields):
        raise EyasError(f"{where}: expected the columns' names, each once, found {shown(fields)}; mend the first line")
    return fields


class _TextLines:
    """Lines for csv.reader, which may take several for one record; what is wrong with them is remembered."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self.lines = cut_lines(stream, limit)
        self.number = 0
        self.problem: tuple[Reason, str] | None = None

    def begin(self) -> None:
        self.problem = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number, line = next(self.lines)
        if line is None:
            self.problem = (Reason.too_long, _TOO_LONG)
            return "\n"
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            self.problem = (Reason.utf8, "not valid UTF-8; save the file as UTF-8")
            return line.decode(errors="replace")


def _read_parquet(file: Path, limit: int) -> Iterator[RawRow | BadRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            yield from batches(str(file), table.iter_batches(batch_size=ROWS_PER_BATCH))
    except pyarrow.ArrowException as error:
        raise OSError(f"no Parquet: {_first_line(error)}") from None


def _parsed(where: str, content: bytes | None, limit: int) -> RawRow | BadRow:
    if content is None:
        return BadRow(where, Reason.too_long, _TOO_LONG)
    try:
        return RawRow(where, parse_json(content))
    except RowError as error:
        return BadRow(where, error.reason, error.detail)


_TOO_LONG = "longer than data.max_row_bytes; remove the row or raise the limit"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


_READERS: dict[str, Callable[[Path, int], Iterator[RawRow | BadRow]]] = {
    ".jsonl": _read_lines,
    ".ndjson": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
