"""A comparison in the terminal, and as CSV, Markdown and JSON."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eyas.compare.columns import Column, columns, heading_of, shared
from eyas.compare.entry import Entry
from eyas.compare.table import Comparison, Row, Table
from eyas.compare.varied import shown, varied_keys

NOTE = "A trailing = says that the difference to the best is within noise. CI: over prompts, paired where two drafts are compared."
EXPENDABLE = ("parameters", "tau_sim", "speed-up", "step", "tokens", "time", "accepted")
"""What a narrow terminal goes without, first to last; the files have it."""

ESTIMATED = "tau_sim is teacher-forced on held-out text and flatters: never compare it with a measured tau."


def heading(table: Table) -> str:
    """What the table ranks, and the setting that it holds for."""
    return f"{'measured tau' if table.measure == 'tau' else 'tau_sim (not measured)'}: {table.title}"


def print_comparison(comparison: Comparison) -> None:
    """Tables and verdicts in the terminal; a table that is wider than it is goes below itself."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    for table in comparison.tables:
        console.print(heading(table), style="bold", markup=False, highlight=False)
        rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        rich.add_column("#", justify="right")
        found, left_out = fitting(columns(table), console.width, table.keys, table.measure)
        for column in found:
            rich.add_column(heading_of(column, table), justify="right" if column.is_number else "left", overflow="fold")
        for index, row in enumerate(table.rows):
            cells = [column.cells[index] for column in found]
            rich.add_row(f"{row.rank}", *map(_plain, cells), style="bold" if row.rank == 1 else None)
        console.print(rich)
        if said := shared(table):
            console.print(said, style="dim", markup=False, highlight=False)
        if left_out:
            console.print(f"(not in {console.width} columns: {', '.join(left_out)})", style="dim", highlight=False)
        console.print(
            table.verdict, style="green" if " beats " in table.verdict else None, markup=False, highlight=False
        )
        console.print()
    for note in notes(comparison):
        console.print(note, style="dim", markup=False, highlight=False)
    if comparison.without_result:
        console.print("\nWithout a result:", style="bold")
        for entry in comparison.without_result:
            said = overrides(entry, comparison.entries)
            console.print(
                f"  {entry.name}{f'  ({said})' if said else ''}: {entry.problem}", markup=False, highlight=False
            )


def fitting(found: Sequence[Column], width: int, keys: Sequence[str], measure: str) -> tuple[list[Column], list[str]]:
    """The columns that fit beside each other, and the names of those that can be missed and don't."""
    kept, left_out = list(found), []
    for name in [*(it for it in EXPENDABLE if it != measure), *reversed(keys)]:
        if sum(max(map(len, [it.name.rpartition(".")[2], *it.cells])) + 3 for it in kept) + 4 <= width:
            break
        left_out += [it.name for it in kept if it.name.startswith(name)]
        kept = [it for it in kept if not it.name.startswith(name)]
    return kept, left_out


def _plain(cell: str) -> str:
    return cell.replace("[", r"\[")


def notes(comparison: Comparison) -> list[str]:
    """What the tables that are there need to be read rightly."""
    several = any(len(table.rows) > 1 and table.measure == "tau" for table in comparison.tables)
    estimated = any(table.measure == "tau_sim" for table in comparison.tables)
    return [*([NOTE] if several else []), *([ESTIMATED] if estimated else [])]


def overrides(entry: Entry, entries: Sequence[Entry]) -> str:
    """What tells an entry without a result from the others."""
    beside = [other for other in entries if other.config and Path(other.place).parent == Path(entry.place).parent]
    keys = [key for key in varied_keys(beside) if key in entry.config]
    return ", ".join(f"{key}={shown(entry.config[key])}" for key in keys)


def as_markdown(comparison: Comparison) -> str:
    """Every table with its verdict, for an issue or a page."""
    parts = []
    for table in comparison.tables:
        found = columns(table)
        lines = [["#", *(column.name for column in found)]]
        lines.append(["--:", *("--:" if column.is_number else "--" for column in found)])
        lines += [[f"{row.rank}", *(column.cells[index] for column in found)] for index, row in enumerate(table.rows)]
        text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        below = "".join(f"\n\n{said}" for said in (shared(table), table.verdict) if said)
        parts.append(f"**{heading(table)}**\n\n{text}{below}")
    parts += notes(comparison)
    if comparison.without_result:
        failed = "\n".join(f"- {entry.name}: {entry.problem}" for entry in comparison.without_result)
        parts.append(f"Without a result:\n\n{failed}")
    return "\n\n".join(parts) + "\n"


def as_csv(comparison: Comparison) -> str:
    """A line for each draft in each setting, and for each job without a result; numbers in full."""
    lines = [_flat(table, row) for table in comparison.tables for row in table.rows]
    keys = varied_keys(comparison.entries)
    for entry in comparison.without_result:
        said = {f"config:{key}": entry.config[key] for key in keys if entry.config.get(key) is not None}
        lines.append({"run": entry.name, "problem": entry.problem, "place": entry.place, **said})
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(table: Table, row: Row) -> dict[str, Any]:
    low_high = dict(zip(("low", "high"), row.interval, strict=True)) if row.interval else {}
    behind = dict(zip(("behind_low", "behind_high"), row.behind_interval, strict=True)) if row.behind_interval else {}
    return {
        "setting": heading(table),
        "rank": row.rank,
        "run": row.entry.name,
        table.measure: row.of.tau,
        **low_high,
        "behind": row.behind,
        **behind,
        **{f"accepted_{position}": share for position, share in enumerate(row.of.acceptance, 1)},
        **{f"speedup_{number}": speedup for number, speedup in row.of.speedups.items()},
        **row.entry.cost,
        **{f"config:{key}": row.entry.config.get(key) for key in table.keys},
        "problem": "",
        "place": row.entry.place,
    }


def as_json(comparison: Comparison) -> str:
    """The tables with all that they hold, for programs."""
    tables = [
        {
            "measure": table.measure,
            "title": table.title,
            "setting": dict(table.rows[0].of.setting),
            "verdict": table.verdict,
            "rows": [
                {
                    "rank": row.rank,
                    "run": row.entry.name,
                    "place": row.entry.place,
                    "draft": row.entry.draft,
                    "varied": {key: row.entry.config.get(key) for key in table.keys},
                    table.measure: row.of.tau,
                    "interval": row.interval,
                    "behind": row.behind,
                    "behind_interval": row.behind_interval,
                    "within_noise": row.within_noise,
                    "acceptance": row.of.acceptance,
                    "speedups": row.of.speedups,
                    "cost": row.entry.cost,
                }
                for row in table.rows
            ],
        }
        for table in comparison.tables
    ]
    failed = [
        {"run": entry.name, "place": entry.place, "problem": entry.problem} for entry in comparison.without_result
    ]
    return json.dumps({"tables": tables, "without_result": failed}, indent=2) + "\n"
