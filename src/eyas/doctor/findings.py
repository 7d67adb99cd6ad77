"""What the doctor says: one finding a check, as a table for people and as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Verdict(Enum):
    """A check's answer; `na`: this verifier has nothing for it to look at, or it can't be looked at here."""

    ok = "pass"
    warn = "warn"
    fail = "fail"
    na = "not applicable"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row."""

    name: str
    verdict: Verdict
    found: str
    expected: str = ""
    fix: str = ""


COLOURS = {Verdict.ok: "green", Verdict.warn: "yellow", Verdict.fail: "bold red", Verdict.na: "bright_black"}


def print_table(findings: Sequence[Finding]) -> None:
    """Every check in a row; what is wrong says below it what was expected and how to mend it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("found", overflow="fold")
    for it in findings:
        table.add_row(it.name, Text(it.verdict.value, style=COLOURS[it.verdict]), Text(it.found))
        if it.verdict in (Verdict.warn, Verdict.fail):
            for what, text in (("expected", it.expected), ("fix", it.fix)):
                if text:
                    table.add_row("", Text(what, style="bright_black"), Text(text))
    console().print(table)


def console() -> Console:
    """As wide as the terminal; wide enough for any table where the output goes to a file."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=160)


def to_json(findings: Sequence[Finding]) -> str:
    """A list of {name, verdict, found, expected, fix}."""
    return json.dumps([asdict(it) | {"verdict": it.verdict.value} for it in findings], indent=2) + "\n"
