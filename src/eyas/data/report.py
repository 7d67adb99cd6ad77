"""What will be trained, for people to look at before they train: in the terminal here, as a page in `report_html`."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eyas.data.formats import Reason

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

EXAMPLES = "examples.json"
REPORT = "report.html"
"""Both stand beside the tokens."""
WIDEST = 120
TERMINAL_CHARACTERS = 800
"""Of a conversation's unsupervised text that the terminal shows."""
ANSWER_WEIGHT = 2
"""Answers may be so many times longer before they are shortened too."""
CHARACTERS_PER_SPAN = 100
SET_APART = re.compile(r"(<[|\uff5c][^\s<>]+[|\uff5c]>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>|\n{4,})")
"""What looks like a special token, and floods of empty lines."""
INVISIBLE_BUT_HARMLESS = "\n\t\u200c\u200d\u3000"
"""Line break, tab, the joiners of Persian and of emoji, the Chinese space."""
STYLES = {"supervised": "green", "text": "", "special": "bold", "mark": "magenta", "omitted": "dim italic"}


@dataclass(frozen=True)
class Example:
    """One row as it will be trained."""

    where: str
    num_tokens: int
    num_supervised: int
    held_out: bool
    spans: list[tuple[str, bool]]
    """Pieces of the text in order; True: supervised, so the verifier wrote it and the draft learns it."""


@dataclass(frozen=True)
class Piece:
    """Characters to show in one way; `mark`: they stand for what can't be seen, `omitted`: for what is left out."""

    text: str
    kind: Literal["text", "special", "mark", "omitted"] = "text"


def read_examples(directory: Path) -> list[Example]:
    """The examples of a tokens artifact."""
    return [Example(**values) for values in json.loads((directory / EXAMPLES).read_text())]


def title(example: Example, number: int, total: int) -> tuple[str, str]:
    """Which row, and how much of it is supervised."""
    share = percent(example.num_supervised, example.num_tokens)
    about = f"{plural(example.num_tokens, 'token')}, {example.num_supervised:,} supervised ({share})"
    return f"{number}/{total}  {escaped(example.where)}", about + (", held out" if example.held_out else "")


def origin(counts: Mapping[str, Any]) -> str:
    """What was read."""
    return f"{plural(counts.get('rows', 0), 'row')} read, {plural(counts.get('conversations', 0), 'conversation')}"


def split_rows(counts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """(split, rows, tokens, supervised tokens, their share)."""
    rows: list[tuple[str, ...]] = []
    for name, key in (("training", "train"), ("held out", "held_out")):
        num_rows, tokens, supervised = (counts.get(f"{key}_{it}", 0) for it in ("rows", "tokens", "supervised_tokens"))
        rows.append((name, f"{num_rows:,}", f"{tokens:,}", f"{supervised:,}", percent(supervised, tokens)))
    return rows


def dropped(counts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(how many, why) of everything that was read and is not trained."""
    reasons = {key: number for key, number in counts.items() if key.startswith("bad_rows_")}
    words = {f"bad_rows_{reason.name}": reason.value for reason in Reason}
    found = [(number, "row", words.get(key, escaped(key))) for key, number in sorted(reasons.items())]
    found += [
        (counts.get("bad_rows", 0) - sum(reasons.values()), "row", "unusable for another reason"),
        (counts.get("set_aside", 0), "conversation", "set aside"),
        (counts.get("like_set_aside", 0), "conversation", "the same opening question as one set aside"),
        (counts.get("duplicate_rows", 0), "row", "exact duplicate"),
        (counts.get("not_sampled", 0), "conversation", "outside the sample of their source"),
        (counts.get("unsupervised_rows", 0), "row", "nothing supervised"),
        (counts.get("like_held_out", 0), "conversation", "the same opening question as a held-out one"),
        (counts.get("held_out_beyond_cap", 0), "conversation", "held out beyond the number that is kept"),
    ]
    return [(plural(number, what), why) for number, what, why in found if number > 0]


def changed(counts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(how many, how) of everything that is trained, but not as it was read."""
    limit = f"{counts['max_length']:,} tokens" if "max_length" in counts else "data.max_length"
    in_answers = counts.get("cut_answers", 0)
    found = [
        ("cut_rows", "row", f"cut at {limit}" + (f", {in_answers:,} of them inside an answer" if in_answers else "")),
        ("leading_answers_dropped", "leading answer", "left out: no question before it"),
        ("media_parts_dropped", "media part", "left out: image, audio or video"),
        ("row_per_turn_conversations", "conversation", "one row per answer: the chat template rewrites history"),
    ]
    return [(plural(counts[key], what), how) for key, what, how in found if counts.get(key, 0) > 0]


def length_bins(counts: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(longest, number of training rows) of each bin; a bin begins after the one before it."""
    lengths = counts.get("lengths") or {"upto": [], "rows": []}
    return list(zip(lengths["upto"], lengths["rows"], strict=True))


def coverage_curve(counts: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(draft vocabulary size, share of the supervised tokens that are in it)."""
    return sorted((int(size), float(share)) for size, share in (counts.get("coverage") or {}).items())


def percent(part: float, whole: float) -> str:
    """A share; 100% and 0% are only said where they are exact."""
    if not whole:
        return "-"
    nearly = f"{part / whole:.1%}"
    return {"100.0%": "100%" if part == whole else ">99.9%", "0.0%": "<0.1%" if part else "0%"}.get(nearly, nearly)


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def pieces(spans: Sequence[tuple[str, bool]], budget: int) -> Iterator[tuple[bool, list[Piece]]]:
    """(supervised, pieces) of each span, its borders always there: long text lacks its middle, long conversations theirs.

    `budget` is how many characters of unsupervised text remain.
    """
    spans = [span for span in spans if span[0]]
    most = max(budget // CHARACTERS_PER_SPAN, 2)
    first, last = (most // 2, len(spans) - most // 2) if len(spans) > most else (len(spans), len(spans))
    if last < len(spans):  # no question without its answer, no answer without its question
        first, last = first - (not spans[first - 1][1]), last + spans[last][1]
    left_out, shown = spans[first:last], spans[:first] + spans[last:]
    room = {
        supervised: _room([len(text) for text, it in shown if it is supervised], budget * weight)
        for supervised, weight in ((False, 1), (True, ANSWER_WEIGHT))
    }
    for index, (text, supervised) in enumerate(shown):
        if left_out and index == first:
            characters = plural(sum(len(text) for text, _ in left_out), "character")
            yield False, [Piece(f"\n⋯ {plural(len(left_out), 'more part')}, {characters} ⋯\n", "omitted")]
        yield supervised, list(_shortened(text, room[supervised]))


def escaped(text: str) -> str:
    """The text with everything that can't be seen, or that moves what can, as its escape sequence."""
    return "".join(c if _visible(c) else c.encode("unicode_escape").decode() for c in text)


def _visible(character: str) -> bool:
    return character.isprintable() or character in INVISIBLE_BUT_HARMLESS


def _room(lengths: Iterable[int], budget: int) -> int:
    """How long the longest may be so that all fit the budget; what short ones don't use goes to the long ones."""
    ordered = sorted(lengths)
    for rank, length in enumerate(ordered):
        share = budget // (len(ordered) - rank)
        if length > share:
            return share
        budget -= length
    return ordered[-1] if ordered else 0


def _shortened(text: str, room: int) -> Iterator[Piece]:
    """The text, its whitespace at the borders marked, the middle left out where it is longer than the room."""
    head, tail = (text, "") if len(text) <= room else (text[: room // 2], text[len(text) - room // 2 :])
    opening = head[: len(head) - len(head.lstrip(" \t\n"))]
    end = (tail or head[len(opening) :]).rstrip(" \t\n")
    closing = (tail or head[len(opening) :])[len(end) :]
    yield from _marked(opening)
    if tail:
        yield from _pieces(head[len(opening) :])
        yield Piece(f" ⋯ {plural(len(text) - len(head) - len(tail), 'character')} ⋯ ", "omitted")
    yield from _pieces(end)
    yield from _marked(closing)


def _marked(whitespace: str) -> Iterator[Piece]:
    """Spaces, tabs and line breaks to be seen; one break after many, so that a flood of them takes one line."""
    if whitespace:
        signs = whitespace.translate({ord(" "): "·", ord("\t"): "→", ord("\n"): "↵"})
        yield Piece(re.sub("↵+", r"\g<0>\n", signs), "mark")


def _pieces(text: str) -> Iterator[Piece]:
    for seen, run in groupby(text, _visible):
        if not seen:
            yield Piece(escaped("".join(run)), "mark")
            continue
        for index, part in enumerate(SET_APART.split("".join(run))):
            if index % 2 and part.isspace():
                yield from _marked(part)
            elif part:
                yield Piece(part, "special" if index % 2 else "text")


def print_report(directory: Path, counts: Mapping[str, Any], examples: Sequence[Example]) -> None:
    """The whole report in the terminal; without colours where the output is none, supervised text in ⟦ ⟧ always."""
    from rich.console import Console  # here, since a composed configuration is printed in less time than rich takes
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    console.width = min(console.width, WIDEST)
    with console.capture() as capture:

        def section(name: str, body: "Table | Text") -> None:
            console.print()
            console.print(Text(name, style="bold"))
            console.print(Padding(body, (0, 0, 0, 2)))

        section(origin(counts), _table(split_rows(counts), "lrrrr", ("", "rows", "tokens", "supervised", "")))
        for name, losses in (("Dropped", dropped(counts)), ("Changed", changed(counts))):
            section(name, _table(losses, "rl") if losses else Text("nothing"))
        if bins := length_bins(counts):
            most = max(max(number for _, number in bins), 1)
            before = [0, *(upto for upto, _ in bins[:-1])]
            lines = [
                (f"{last + 1:,} to {upto:,}", f"{number:,}", _bar(number / most))
                for last, (upto, number) in zip(before, bins, strict=True)
            ]
            section("Training rows by length in tokens", _table(lines, "rrl"))
        if curve := coverage_curve(counts):
            lines = [(f"{size:,}", percent(share, 1), _bar(share)) for size, share in curve]
            section("Share of the supervised tokens that a draft vocabulary of this size covers", _table(lines, "rrl"))
        if examples:
            legend = Text.assemble(
                ("⟦supervised⟧", STYLES["supervised"]),
                " is what the verifier wrote and the draft learns; the rest is context. At the borders of both ",
                ("↵ · →", STYLES["mark"]),
                " are line break, space and tab.",
            )
            section("Conversations", legend)
        for number, example in enumerate(examples, 1):
            name, about = title(example, number, len(examples))
            section(name, Text.assemble((f"{about}\n", "dim"), _conversation(example), tab_size=4))
        section("As a page", Text(escaped(str(directory / REPORT))))
    report = re.sub(r" +$", "", capture.get(), flags=re.MULTILINE)
    # A terminal that lacks a character shows its escape: no stage fails because of what is said about it.
    encoding = sys.stdout.encoding or "utf-8"
    print(report.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True)


def _conversation(example: Example) -> "Text":
    from rich.text import Text

    text = Text()
    for supervised, parts in pieces(example.spans, TERMINAL_CHARACTERS):
        span = Text("⟦" if supervised else "")
        for part in parts:
            span.append(part.text, style=STYLES[part.kind])
        span.append("⟧" if supervised else "")
        if supervised:
            span.stylize_before(STYLES["supervised"])
        text.append_text(span)
    text.rstrip()
    return text


def _table(rows: Sequence[Sequence[str]], alignment: str, header: Sequence[str] = ()) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(header), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for index, align in enumerate(alignment):
        table.add_column(header[index] if header else "", justify="right" if align == "r" else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _bar(share: float, width: int = 32) -> str:
    """A bar of block characters; what is not zero can be seen."""
    eighths = max(round(share * width * 8), 1 if share else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
