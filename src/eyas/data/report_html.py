"""What will be trained, as one page: no script, nothing from elsewhere, the same bytes for the same input."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log2
from typing import Any

from eyas.data.report import (
    Example,
    Piece,
    changed,
    coverage_curve,
    dropped,
    length_bins,
    origin,
    percent,
    pieces,
    split_rows,
    title,
)

PAGE_CHARACTERS = 8000
"""Of a conversation's unsupervised text that the page shows."""
WIDTH, HEIGHT = 440, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 420, 22, 190
"""Where the axes of a chart lie."""
LABEL_WIDTH = 42

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1d2125; --quiet: #5b6570; --line: #d9dee3; --box: #f6f8f9;
  --accent: #2a6fb0; --learnt: #d3f0d8; --border: #1f8a3f; --mark: #a03a9e; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e3e6e9; --quiet: #98a3ad; --line: #353c43;
  --box: #1b1f23; --accent: #6fb0ee; --learnt: #173f25; --border: #4cc06f; --mark: #e08ade; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 3rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0; }
p { margin: 0 0 .5rem; }
.quiet, th, .omitted { color: var(--quiet); }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); column-gap: 2rem; }
table { display: block; overflow-x: auto; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { font-weight: normal; }
th, td { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
.number { text-align: right; white-space: nowrap; }
svg { display: block; width: 100%; max-width: 32rem; height: auto; font-size: 12px; fill: var(--text); }
svg .tick { fill: var(--quiet); }
svg .grid { stroke: var(--line); }
svg .axis { stroke: var(--quiet); }
svg .data { fill: var(--accent); }
svg .curve { fill: none; stroke: var(--accent); stroke-width: 2; }
pre { margin: .4rem 0 0; padding: .8rem; background: var(--box); border: 1px solid var(--line); border-radius: 4px;
  font: 13px/1.6 ui-monospace, monospace; white-space: pre-wrap; tab-size: 4; }
pre > * { unicode-bidi: isolate; }
mark { color: inherit; background: var(--learnt); border: solid var(--border); border-width: 0 2px; padding: 0 1px; }
.special { font-weight: bold; }
.mark { color: var(--mark); }
.omitted { font-style: italic; }
"""


def html(counts: Mapping[str, Any], examples: Sequence[Example]) -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">""",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>What will be trained</title>",
            f"<style>{STYLE}</style>",
            "<h1>What will be trained</h1>",
            f'<p class="quiet">{escape(origin(counts))}</p>',
            _table(split_rows(counts), ("", "rows", "tokens", "supervised", "share")),
            '<div class="columns">',
            *_section("Dropped", _table(dropped(counts)) or "<p>nothing</p>"),
            *_section("Changed", _table(changed(counts)) or "<p>nothing</p>"),
            *_section("Training rows by length", _histogram(length_bins(counts))),
            *_section("Supervised tokens covered", _curve(coverage_curve(counts))),
            "</div>",
            *_conversations(examples),
            "</html>",
            "",
        ]
    )


def _section(name: str, body: str) -> list[str]:
    return [f"<section><h2>{name}</h2>", body, "</section>"] if body else []


def _table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table whose cells are numbers wherever one has a header or stands first without one."""
    if not rows:
        return ""
    lines = ["".join(f'<th class="number">{escape(name)}</th>' for name in header)] if header else []
    for row in rows:
        kinds = (' class="number"' if bool(header) == bool(index) else "" for index in range(len(row)))
        lines.append("".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _histogram(bins: Sequence[tuple[int, int]]) -> str:
    if not bins:
        return ""
    most = max(max(number for _, number in bins), 1)
    step = (RIGHT - LEFT) / len(bins)
    marks = []
    for index, (upto, number) in enumerate(bins):
        x, height = LEFT + index * step, number / most * (BOTTOM - TOP)
        marks += [
            f'<rect class="data" x="{x + 1:.1f}" y="{BOTTOM - height:.1f}" width="{step - 2:.1f}" height="{height:.1f}"/>',
            _text(x + step / 2, BOTTOM - height - 5, _short(number)),
            _text(x + step, BOTTOM + 16, _short(upto), "tick"),
        ]
    return _chart("Histogram of row lengths", "tokens in a row, up to", marks)


def _curve(curve: Sequence[tuple[int, float]]) -> str:
    if not curve:
        return ""
    low, high = log2(max(curve[0][0], 1)), log2(max(curve[-1][0], 2))
    inset = LABEL_WIDTH / 2
    marks = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = BOTTOM - share * (BOTTOM - TOP)
        marks += [
            f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            _text(LEFT - 6, y + 4, f"{share:.0%}", "tick", "end"),
        ]
    points, labelled = [], float("inf")
    for size, share in reversed(curve):  # from the right, so that the largest has its label where they are crowded
        x = LEFT + inset + (log2(max(size, 1)) - low) / max(high - low, 1e-9) * (RIGHT - LEFT - 2 * inset)
        y = BOTTOM - share * (BOTTOM - TOP)
        points.append(f"{x:.1f},{y:.1f}")
        marks.append(f'<circle class="data" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
        if labelled - x >= LABEL_WIDTH:
            labelled = x
            marks += [_text(x, y - 7, percent(share, 1)), _text(x, BOTTOM + 16, _short(size), "tick")]
    marks.append(f'<polyline class="curve" points="{" ".join(points)}"/>')
    return _chart(
        "Share of the supervised tokens covered, by size of the draft vocabulary",
        "tokens in the draft vocabulary",
        marks,
    )


def _chart(label: str, below: str, marks: Sequence[str]) -> str:
    axis = f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>'
    name = _text((LEFT + RIGHT) / 2, HEIGHT - 12, below, "tick")
    return "\n".join(
        [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">', *marks, axis, name, "</svg>"]
    )


def _text(x: float, y: float, text: str, kind: str = "value", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(number: int) -> str:
    """A number in the width of a label."""
    if number % 1024 == 0 and number:
        return f"{number // 1024:,}k"
    return f"{number:,}" if number < 100_000 else f"{number / 1e6:.2f}M"


def _conversations(examples: Sequence[Example]) -> Iterator[str]:
    if not examples:
        return
    yield "<h2>Conversations</h2>"
    yield "<p><mark>supervised</mark> is what the verifier wrote and the draft learns; the rest is context. At the borders of"
    yield 'both <span class="mark">↵ · →</span> are line break, space and tab.</p>'
    for number, example in enumerate(examples, 1):
        name, about = title(example, number, len(examples))
        yield f'<h3>{escape(name)}</h3><p class="quiet">{escape(about)}</p>'
        spans = (_span(supervised, parts) for supervised, parts in pieces(example.spans, PAGE_CHARACTERS))
        yield f'<pre dir="ltr">\n{"".join(spans)}</pre>'  # a browser drops the first line break of a pre


def _span(supervised: bool, parts: Sequence[Piece]) -> str:
    name = "mark" if supervised else "span"
    inner = "".join(
        escape(it.text) if it.kind == "text" else f'<span class="{it.kind}">{escape(it.text)}</span>' for it in parts
    )
    return f"<{name}>{inner}</{name}>"
