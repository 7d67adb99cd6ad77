"""The plan in the terminal: tables for people, and a last line for programs."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eyas.plan.fit import Device
from eyas.progress import duration

WIDEST = 120
BAR = 24
GIGA = 10**9
TOGETHER = "together"


@dataclass(frozen=True)
class Section:
    """A table under a name: (what, how much, remark)."""

    name: str
    rows: Sequence[tuple[str, str, str]]


def gb(num_bytes: float) -> str:
    """Bytes as a person says them."""
    if num_bytes < GIGA // 10:
        return f"{num_bytes / 10**6:,.1f} MB"
    return f"{num_bytes / GIGA:,.2f} GB" if num_bytes < 100 * GIGA else f"{num_bytes / GIGA:,.0f} GB"


def memory_section(name: str, parts: Mapping[str, int], device: Device) -> Section:
    """Each part with a bar, the largest first; the bars are shares of what there is, or of what is needed."""
    total, of = sum(parts.values()), device.num_bytes
    whole = max(total, of or 0, 1)
    rows = [(part, gb(size), bar(size / whole)) for part, size in sorted(parts.items(), key=lambda it: -it[1])]
    left = [("left", gb(of - total), "")] if of is not None and of > total else []
    return Section(name, [*rows, (TOGETHER, gb(total), "" if of is None else f"of {gb(of)} ({device.source})"), *left])


def bar(share: float) -> str:
    """What isn't zero can be seen."""
    eighths = max(round(share * BAR * 8), 1 if share else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def time_row(what: str, num_tokens: int | None, tokens_per_second: float | None, source: str) -> tuple[str, str, str]:
    """How long so many tokens take."""
    if tokens_per_second is None:
        return what, "not known", source
    rate = f"{tokens_per_second:,.0f} tokens/s, {source}"
    if num_tokens is None:
        return what, f"{duration(10**6 / tokens_per_second)} per million tokens", rate
    return what, duration(num_tokens / tokens_per_second), rate


def print_plan(
    title: str, sections: Sequence[Section], problems: Sequence[str], changes: Sequence[tuple[str, str, bool]]
) -> None:
    """Args:
    problems: What doesn't fit, in a line each.
    changes: (overrides, what would be needed then, whether it fits then).
    """
    console = Console()
    console.width = min(console.width, WIDEST) if console.is_terminal else WIDEST
    with console.capture() as capture:
        _print_all(console, title, sections, problems, changes)
    text = re.sub(r" +$", "", capture.get(), flags=re.MULTILINE)
    # A terminal that lacks a character shows its escape.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True)


def _print_all(
    console: Console,
    title: str,
    sections: Sequence[Section],
    problems: Sequence[str],
    changes: Sequence[tuple[str, str, bool]],
) -> None:
    widths = [max(len(row[column]) for section in sections for row in section.rows) for column in (0, 1)]
    console.print(Text(title, style="bold"))
    for section in sections:
        table = _table()
        for name, amount, remark in section.rows:
            style = "bold" if name == TOGETHER else None
            table.add_row(name.ljust(widths[0]), amount.rjust(widths[1]), Text(remark, style="dim"), style=style)
        _print(console, section.name, table)
    if changes:
        table = _table()
        for overrides, then, fits in changes:
            judged = Text("fits" if fits else "not yet", style="green" if fits else "yellow")
            table.add_row(overrides.ljust(widths[0]), then.rjust(widths[1]), judged)
        _print(console, "With this it would need", table)
    console.print()
    for problem in problems:
        console.print(Text(f"doesn't fit: {problem}", style="red"), soft_wrap=True)


def _table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    return table


def _print(console: Console, name: str, table: Table) -> None:
    console.print()
    console.print(Text(name, style="bold"))
    console.print(Padding(table, (0, 0, 0, 2)))
