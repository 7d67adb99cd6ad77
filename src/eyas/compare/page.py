"""A comparison as one HTML page that needs nothing else: tables, curves, and what differs between any two runs.

The tables are written here, so that they are there without a script; the charts are drawn by `templates/page.js` from data in
the page.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.compare.columns import NONE, columns, heading_of, shared, varies_much
from eyas.compare.entry import Entry
from eyas.compare.outputs import notes, overrides
from eyas.compare.table import Comparison, Row, Table
from eyas.compare.varied import NOISE, UNSAID, shown
from eyas.disclosure import disclosed

CURVES = ("train/loss", "val/loss", "val/tau_sim", "val/acceptance_")
POINTS = 30_000
"""Of all curves together, so that the page of many runs stays small; a curve has between FEWEST and MOST of them."""
FEWEST, MOST = 30, 300


def as_html(comparison: Comparison, file: Path) -> str:
    """The page, whose links to drafts start from `file`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # here, since only the page needs it

    environment = Environment(
        loader=PackageLoader("eyas.compare"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # as they come, and not sorted
    environment.filters["typographic"] = typographic
    entries = by_rank(comparison)
    number_of = {entry.place: number for number, entry in enumerate(entries)}
    links = {entry.place: link(entry, file) for entry in entries}
    data = {
        "runs": runs(entries),
        "tables": [chart_data(table, number_of) for table in comparison.tables],
        **configurations(entries),
    }
    return environment.get_template("page.html.j2").render(
        title=with_minus(comparison.tables[0].verdict) if comparison.tables else "Nothing has a result yet.",
        summary=summary(comparison),
        tables=[section(table, number_of, links) for table in comparison.tables],
        without_result=[
            (entry.name, overrides(entry, comparison.entries), entry.problem) for entry in comparison.without_result
        ],
        notes=notes(comparison),
        has_curves=any(run["curves"] for run in data["runs"]),
        names=[entry.name for entry in entries],
        data=data,
    )


def by_rank(comparison: Comparison) -> list[Entry]:
    """Every entry once: the best of each table, then the second of each; those without a result last.

    A run's number is its colour, of which there are few: so each table has some.
    """
    rows = [row for table in comparison.tables for row in table.rows]
    ranked = [row.entry for row in sorted(rows, key=lambda row: row.rank)]
    return list({entry.place: entry for entry in [*ranked, *comparison.entries]}.values())


def link(entry: Entry, file: Path) -> str:
    """From the page to the draft; empty where there is none."""
    if not entry.draft:
        return ""
    return Path(os.path.relpath(Path(entry.draft).resolve(), file.resolve().parent)).as_posix()


def summary(comparison: Comparison) -> str:
    """What is on the page."""
    parts = [_plural(len(comparison.entries), "run"), _plural(len(comparison.tables), "setting")]
    if comparison.without_result:
        parts.append(f"{len(comparison.without_result)} without a result")
    return ", ".join(parts)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def section(table: Table, number_of: Mapping[str, int], links: Mapping[str, str]) -> dict[str, Any]:
    """A table as the template takes it: headings, and rows of (text, value to sort by)."""
    found = columns(table)
    low, high = extent(table)
    rows = []
    for index, row in enumerate(table.rows):
        rows.append(
            {
                "rank": row.rank,
                "run": number_of[row.entry.place],
                "link": links[row.entry.place],
                "noise": row.within_noise,
                "cells": [(column.cells[index], column.values[index], column.is_number) for column in found],
                "forest": forest(row, low, high),
            }
        )
    return {
        "measure": "Measured tau" if table.measure == "tau" else "tau_sim, not measured",
        "setting": table.title,
        "verdict": with_minus(table.verdict),
        "columns": [
            (column.name, heading_of(column, table), column.is_number, column.name in table.keys) for column in found
        ],
        "forest_at": 1 + next(index for index, column in enumerate(found) if column.name == table.measure),
        "extent": (f"{low:.2f}", f"{high:.2f}"),
        "shared": shared(table),
        "rows": rows,
        "has_charts": bool(charted_keys(table)) or len(table.rows[0].of.acceptance) > 1,
    }


def extent(table: Table) -> tuple[float, float]:
    """The range of the intervals, for all rows on one scale."""
    ends = [end for row in table.rows for end in (row.interval or (row.of.tau, row.of.tau))]
    low, high = min(ends), max(ends)
    margin = (high - low) * 0.04 or 0.05
    return low - margin, high + margin


def forest(row: Row, low: float, high: float) -> dict[str, float]:
    """Where a row's value and interval are, in per cent of the scale."""
    ends = row.interval or (row.of.tau, row.of.tau)
    left, right = (100 * (end - low) / (high - low) for end in ends)
    return {"dot": 100 * (row.of.tau - low) / (high - low), "left": left, "width": right - left}


def runs(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Names and curves."""
    number = sum(len(_curve_names(entry)) for entry in entries)
    most = min(MOST, max(FEWEST, POINTS // max(number, 1)))
    return [
        {"name": entry.name, "curves": {key: thinned(_curve(entry, key), most) for key in _curve_names(entry)}}
        for entry in entries
    ]


def _curve_names(entry: Entry) -> list[str]:
    names = dict.fromkeys(key for row in entry.metrics for key in row)
    return [key for key in names if key.startswith(CURVES) and "_cond_" not in key]


def _curve(entry: Entry, key: str) -> list[tuple[float, float]]:
    return [(row["step"], float(f"{row[key]:.5g}")) for row in entry.metrics if key in row]


def thinned(points: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most so many points, evenly, the first and the last among them."""
    if len(points) <= most:
        return points
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]


def chart_data(table: Table, number_of: Mapping[str, int]) -> dict[str, Any]:
    """What the charts below a table are drawn from."""
    rows = [
        {
            "run": number_of[row.entry.place],
            "tau": row.of.tau,
            "interval": row.interval,
            "acceptance": [round(share, 4) for share in row.of.acceptance],
            "varied": list(row.varied),
        }
        for row in table.rows
    ]
    return {"measure": table.measure, "keys": list(charted_keys(table)), "rows": rows}


def charted_keys(table: Table) -> Sequence[str]:
    """What tau is drawn against; of single changes nothing: each chart would show one run beside all others."""
    return () if varies_much(table) else table.keys


def configurations(entries: Sequence[Entry]) -> dict[str, Any]:
    """What all configurations share once, and what each has of its own."""
    texts = [{key: shown(value) for key, value in disclosed(dict(entry.config)).items()} for entry in entries]
    first = texts[0] if texts else {}
    shared = {key: text for key, text in first.items() if all(other.get(key) == text for other in texts)}
    own = [{key: text for key, text in one.items() if key not in shared} for one in texts]
    noise = sorted({key for one in own for key in one if NOISE.match(key)})
    return {"shared": shared, "own": own, "noise": noise}


def typographic(text: str) -> str:
    """A true minus, and a dash where nothing is known."""
    return "\N{EN DASH}" if text in (NONE, UNSAID) else with_minus(text)


def with_minus(text: str) -> str:
    """A minus before a number, where no name has it."""
    return re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", text)
