"""A ranked table as columns of text, for the terminal, Markdown and the page."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from eyas.compare.statistics import Interval
from eyas.compare.table import Row, Table
from eyas.progress import duration

NONE = "-"
CHANGED = "changed"
MOST_KEYS = 6
"""With more varied keys than this, most cells of their columns would repeat each other: one column says what a row has changed."""


@dataclass(frozen=True)
class Column:
    """A heading and a text for each row; `values` to sort by where the text isn't one, None at the end."""

    name: str
    cells: Sequence[str]
    values: Sequence[float | str | None]
    is_number: bool = True


def columns(table: Table) -> list[Column]:
    """Only what is known of some row."""
    rows = table.rows
    found = [
        Column("run", [row.entry.name for row in rows], [row.entry.name for row in rows], False),
        *([_changed(table)] if varies_much(table) else _varied_columns(table)),
        Column(table.measure, [f"{row.of.tau:.2f}" for row in rows], [row.of.tau for row in rows]),
    ]
    if any(row.interval for row in rows):
        found.append(_column("95 % CI", rows, lambda row: row.interval and row.interval.low, _interval))
    if len(rows) > 1:
        found.append(_column("to the best", rows, lambda row: row.behind, behind))
    found.append(_column("accepted", rows, lambda row: sum(row.of.acceptance), accepted))
    concurrencies = sorted({number for row in rows for number in row.of.speedups})
    for number in concurrencies:
        name = f"speed-up, {number} at a time" if len(concurrencies) > 1 else "speed-up"
        found.append(_column(name, rows, partial(_speedup, number), _times))
    if table.measure == "tau":
        found.append(
            _column("tau_sim", rows, lambda row: row.entry.last.get("val/tau_sim"), lambda row, it: f"{it:.2f}")
        )
    else:
        found.append(_column("step", rows, lambda row: row.entry.last.get("step"), lambda row, it: f"{it:,.0f}"))
    found += cost_columns(table) if len(rows) == 1 else [it for it in cost_columns(table) if len(set(it.cells)) > 1]
    return [column for column in found if any(cell != NONE for cell in column.cells)]


def cost_columns(table: Table) -> list[Column]:
    """What the drafts cost; left out where all cost the same, which `shared` says."""
    rows = table.rows
    return [
        _column("tokens", rows, lambda row: row.entry.cost.get("tokens"), lambda row, it: short(it)),
        _column("time", rows, lambda row: row.entry.cost.get("seconds"), lambda row, it: time(row)),
        _column("parameters", rows, lambda row: row.entry.cost.get("parameters"), lambda row, it: short(it)),
    ]


def shared(table: Table) -> str:
    """The costs that all drafts of a table share, in a sentence; empty where there are none."""
    costs = [it for it in cost_columns(table) if it.name != "time"] if len(table.rows) > 1 else []
    same = [it.cells[0] + " " + it.name for it in costs if len(set(it.cells)) == 1 and it.cells[0] != NONE]
    return f"All: {', '.join(same)}." if same else ""


def heading_of(column: Column, table: Table) -> str:
    return unambiguous(column.name, table.keys)


def unambiguous(name: str, keys: Sequence[str]) -> str:
    """A key's last part, where no other key has the same."""
    last = name.rpartition(".")[2]
    return last if sum(key.rpartition(".")[2] == last for key in keys) == 1 else name


def varies_much(table: Table) -> bool:
    """Whether one column says what a row has changed, as after `sweep.changes`."""
    return len(table.keys) > MOST_KEYS


def _varied_columns(table: Table) -> list[Column]:
    return [_varied(key, [row.varied[index] for row in table.rows]) for index, key in enumerate(table.keys)]


def _changed(table: Table) -> Column:
    """Of each row what it has otherwise than most others; what it doesn't know at all goes without saying."""
    usual = [Counter(row.varied[index] for row in table.rows).most_common(1)[0][0] for index in range(len(table.keys))]

    def said(row: Row) -> str:
        differs = zip(table.keys, row.varied, usual, strict=True)
        found = [(key, value) for key, value, most in differs if value != most and key in row.entry.config]
        named = [(unambiguous(key.removesuffix("._target_"), table.keys), value) for key, value in found]
        return ", ".join(f"{name}={'null' if value == NONE else value}" for name, value in named)

    cells = [said(row) for row in table.rows]
    return Column(CHANGED, [cell or NONE for cell in cells], cells, False)


def _column(
    name: str, rows: Sequence[Row], value: Callable[[Row], float | None], text: Callable[[Row, float], str]
) -> Column:
    values = [value(row) for row in rows]
    cells = [NONE if it is None else text(row, it) for row, it in zip(rows, values, strict=True)]
    return Column(name, cells, values)


def _varied(key: str, cells: Sequence[str]) -> Column:
    numbers = [number(cell) for cell in cells]
    is_number = all(it is not None or cell == NONE for it, cell in zip(numbers, cells, strict=True))
    return Column(key, cells, numbers if is_number else cells, is_number)


def number(text: str) -> float | None:
    """What a text says as a number; None where it says none."""
    try:
        return float(text)
    except ValueError:
        return None


def _interval(row: Row, _: float) -> str:
    return pair(row.interval) if row.interval else NONE


def behind(row: Row, _: float) -> str:
    """How far from the best, with its interval; `=` where that may be nothing."""
    if row.rank == 1:
        return "best"
    if row.behind_interval is None:
        return signed(row.behind)
    return f"{signed(row.behind)} ({pair(row.behind_interval, signed)}){' =' if row.within_noise else ''}"


def accepted(row: Row, _: float) -> str:
    return "  ".join(f"{share:.0%}" for share in row.of.acceptance)


def _speedup(number: int, row: Row) -> float | None:
    return row.of.speedups.get(number)


def _times(_: Row, speedup: float) -> str:
    return f"{speedup:.2f}x"


def time(row: Row) -> str:
    """How long training took, on how many devices."""
    devices = row.entry.cost.get("devices", 1)
    return f"{f'{devices:g} x ' if devices > 1 else ''}{duration(row.entry.cost['seconds'])}"


def pair(found: Interval, text: Callable[[float], str] = lambda value: f"{value:.2f}") -> str:
    return f"{text(found.low)} to {text(found.high)}"


def signed(value: float) -> str:
    """With a sign, of which a zero has none."""
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def short(value: float) -> str:
    """A large number in three digits: 7.45M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}"
