"""Reading conversations: a source's rows, in their shape, without the bad ones; each loss is counted."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

from eyas.data.formats import BadRow, RawRow, Reason, RowError
from eyas.data.schema import SourceConfig
from eyas.data.shapes import Conversation, Converter, Example, PlainText, Shape, TokenRow, detect_shape
from eyas.data.sources import find_source, raw_rows, source_identity
from eyas.data.turns import Turns
from eyas.errors import EyasError

__all__ = ["Conversation", "Example", "PlainText", "TokenRow", "read_conversations", "reading_identity"]

ROWS_TO_DETECT = 16
ROWS_PRINTED = 5
ROWS_BEFORE_A_SHARE = 1000
"""A share of bad rows is judged early only once so many rows are known."""


def reading_identity(source: SourceConfig) -> dict[str, Any]:
    """Everything that determines what `read_conversations` yields; part of the tokens' fingerprint.

    Raises:
        EyasError: the source isn't there.
    """
    return {
        "rows": source_identity(find_source(source)),
        "shape": source.shape.name if source.shape else None,
        "columns": dict(source.columns),
        "drop_media": source.drop_media,
        "max_row_bytes": source.max_row_bytes,
    }


def read_conversations(source: SourceConfig, counts: Counter[str], *, unanswered: bool = False) -> Iterator[Example]:
    """Yield the source's conversations in order.

    `counts` gets `rows`, `bad_rows` and `bad_rows_<reason>`, `leading_answers_dropped`, `media_parts_dropped`;
    rows = yielded + bad_rows.

    Args:
        unanswered: Rows may be questions alone; `ANSWER_TO_COME` stands for each answer.

    Raises:
        EyasError: nothing to read, an unclear shape, or more bad rows than data.max_bad_rows.
    """
    rows = raw_rows(find_source(source), source.max_row_bytes)
    head, shape = _detect(rows, source)
    bad = _BadRows(source, counts)
    convert = Converter(shape, source.columns, Turns(source.drop_media, counts), unanswered)
    for row in chain(head, rows):
        bad.num_rows += 1
        counts["rows"] += 1
        example = _converted(row, convert)
        if isinstance(example, BadRow):
            bad.add(example)
        else:
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


def _detect(rows: Iterator[RawRow | BadRow], source: SourceConfig) -> tuple[list[RawRow | BadRow], Shape]:
    """The rows it took, and the shape that they have in common."""
    head: list[RawRow | BadRow] = []
    found: dict[Shape, str] = {}
    num_good = 0
    for row in rows:
        head.append(row)
        if source.shape is not None:
            return head, source.shape
        if isinstance(row, RawRow):
            try:
                shape = detect_shape(row.value, source.columns)
            except RowError as error:
                raise EyasError(f"{row.where}: {error}") from None
            if shape is not None:
                found.setdefault(shape, row.where)
                num_good += 1
        # A file that begins with bad rows is read on, so far as they may be bad, and then some.
        if num_good == ROWS_TO_DETECT or len(head) == 8 * ROWS_TO_DETECT:
            break
    if len(found) > 1:
        found.pop(Shape.prompts, None)  # rows of another shape that lack their answer
    if len(found) > 1:
        places = ", ".join(f"{shape.name} ({where})" for shape, where in found.items())
        raise EyasError(
            f"data.path={source.path}: rows of several shapes: {places}; set data.shape, or sort them into files"
        )
    if not head:
        raise EyasError(f"data.path={source.path}: not a single row; expected conversations")
    shape = next(iter(found), Shape.messages)  # of no shape at all: each row is then refused by name
    if found:
        print(f"data     {source.path}  shape {shape.name}, by its columns", flush=True)
    return head, shape


class _BadRows:
    """Counts and prints bad rows, and stops at too many."""

    def __init__(self, source: SourceConfig, counts: Counter[str]) -> None:
        self.source = source
        self.counts = counts
        """Of all sources; a limit is this one's."""
        self.found: Counter[Reason] = Counter()
        self.first: dict[Reason, BadRow] = {}
        self.num_rows = 0

    def add(self, row: BadRow) -> None:
        if self.source.max_bad_rows == 0:
            raise EyasError(f"{row.where}: {row.detail}")
        self.found[row.reason] += 1
        self.first.setdefault(row.reason, row)
        self.counts["bad_rows"] += 1
        self.counts[f"bad_rows_{row.reason.name}"] += 1
        if self.found.total() <= ROWS_PRINTED:
            print(f"bad row  {row.where}: {row.detail}", flush=True)
        self._check(max(self.num_rows, ROWS_BEFORE_A_SHARE))

    def finish(self) -> None:
        self._check(self.num_rows)

    def _check(self, num_rows: int) -> None:
        limit, num_bad = self.source.max_bad_rows, self.found.total()
        if num_bad <= (limit if limit >= 1 else limit * num_rows):
            return
        table = "; ".join(
            f"{count} {reason.value} (first {self.first[reason].where})" for reason, count in self.found.most_common()
        )
        raise EyasError(
            f"data.path={self.source.path}: {num_bad} of {self.num_rows} rows are bad, more than "
            f"data.max_bad_rows={limit:g}: {table}; mend them or raise the limit"
        )
