"""Reading conversations: a source's rows, in their shape, without the bad and the double ones; each loss is counted."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

from eyas.config import DataConfig
from eyas.data.formats import BadRow, RawRow, Reason, RowError
from eyas.data.shapes import Conversation, Converter, Example, PlainText, Shape, TokenRow, detect_shape
from eyas.data.sources import find_source, raw_rows, source_identity
from eyas.data.turns import Turns
from eyas.errors import EyasError

__all__ = ["Conversation", "Example", "PlainText", "TokenRow", "read_conversations", "reading_identity"]

ROWS_TO_DETECT = 16
ROWS_PRINTED = 5
ROWS_BEFORE_A_SHARE = 1000
"""A share of bad rows is judged early only once so many rows are known."""


def reading_identity(data: DataConfig) -> dict[str, Any]:
    """Everything that determines what `read_conversations` yields; part of the tokens' fingerprint.

    Raises:
        EyasError: the source isn't there.
    """
    return {
        "source": source_identity(find_source(data)),
        "shape": data.shape.name if data.shape else None,
        "columns": dict(data.columns),
        "drop_media": data.drop_media,
        "deduplicate": data.deduplicate,
        "max_row_bytes": data.max_row_bytes,
    }


def read_conversations(data: DataConfig, counts: Counter[str]) -> Iterator[Example]:
    """Yield the source's conversations in order.

    `counts` gets `rows`, `bad_rows` and `bad_rows_<reason>`, `duplicate_rows`, `leading_answers_dropped`,
    `media_parts_dropped`; rows = yielded + bad_rows + duplicate_rows.

    Raises:
        EyasError: nothing to read, an unclear shape, or more bad rows than data.max_bad_rows.
    """
    rows = raw_rows(find_source(data), data.max_row_bytes)
    head, shape = _detect(rows, data)
    bad = _BadRows(data, counts)
    convert = Converter(shape, data.columns, Turns(data.drop_media, counts))
    seen: set[bytes] = set()
    for row in chain(head, rows):
        counts["rows"] += 1
        example = _converted(row, convert)
        if isinstance(example, BadRow):
            bad.add(example)
        elif data.deduplicate and (key := _key(example)) in seen:
            counts["duplicate_rows"] += 1
        else:
            if data.deduplicate:
                seen.add(key)
            yield example
    bad.finish()


def _converted(row: RawRow | BadRow, convert: Converter) -> Example | BadRow:
    if isinstance(row, BadRow):
        return row
    try:
        return convert(row)
    except RowError as error:
        return BadRow(row.where, error.reason, error.detail)
    except RecursionError:
        return BadRow(row.where, Reason.too_deep, "nested too deeply to be read; flatten or remove the row")


def _detect(rows: Iterator[RawRow | BadRow], data: DataConfig) -> tuple[list[RawRow | BadRow], Shape]:
    """The rows it took, and the shape that they have in common."""
    head: list[RawRow | BadRow] = []
    found: dict[Shape, str] = {}
    num_good = 0
    for row in rows:
        head.append(row)
        if data.shape is not None:
            return head, data.shape
        if isinstance(row, RawRow):
            try:
                shape = detect_shape(row.value, data.columns)
            except RowError as error:
                raise EyasError(f"{row.where}: {error}") from None
            if shape is not None:
                found.setdefault(shape, row.where)
                num_good += 1
        # A file that begins with bad rows is read on, so far as they may be bad, and then some.
        if num_good == ROWS_TO_DETECT or len(head) == 8 * ROWS_TO_DETECT:
            break
    if len(found) > 1:
        places = ", ".join(f"{shape.name} ({where})" for shape, where in found.items())
        raise EyasError(
            f"data.path={data.path}: rows of several shapes: {places}; set data.shape, or sort them into files"
        )
    if not head:
        raise EyasError(f"data.path={data.path}: not a single row; expected conversations")
    shape = next(iter(found), Shape.messages)  # of no shape at all: each row is then refused by name
    if found:
        print(f"data     {data.path}  shape {shape.name}, by its columns", flush=True)
    return head, shape


def _key(example: Example) -> bytes:
    """The same for conversations that say the same, wherever they stand."""
    values = asdict(example)
    del values["where"]
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).digest()


class _BadRows:
    """Counts and prints bad rows, and stops at too many."""

    def __init__(self, data: DataConfig, counts: Counter[str]) -> None:
        self.data = data
        self.counts = counts
        self.first: dict[Reason, BadRow] = {}

    def add(self, row: BadRow) -> None:
        if self.data.max_bad_rows == 0:
            raise EyasError(f"{row.where}: {row.detail}")
        self.counts["bad_rows"] += 1
        self.counts[f"bad_rows_{row.reason.name}"] += 1
        self.first.setdefault(row.reason, row)
        if self.counts["bad_rows"] <= ROWS_PRINTED:
            print(f"bad row  {row.where}: {row.detail}", flush=True)
        self._check(max(self.counts["rows"], ROWS_BEFORE_A_SHARE))

    def finish(self) -> None:
        self._check(self.counts["rows"])

    def _check(self, num_rows: int) -> None:
        limit = self.data.max_bad_rows
        if self.counts["bad_rows"] <= (limit if limit >= 1 else limit * num_rows):
            return
        reasons = sorted(self.first, key=lambda reason: -self.counts[f"bad_rows_{reason.name}"])
        table = "; ".join(
            f"{self.counts[f'bad_rows_{reason.name}']} {reason.value} (first {self.first[reason].where})"
            for reason in reasons
        )
        raise EyasError(
            f"data.path={self.data.path}: {self.counts['bad_rows']} of {self.counts['rows']} rows are bad, more than "
            f"data.max_bad_rows={limit:g}: {table}; mend them or raise the limit"
        )
