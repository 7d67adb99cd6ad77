"""The report shows hostile text as what it is, and where supervised text begins and ends however long it is."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from eyas.data.report import Example, dropped, percent, pieces, print_report
from eyas.data.report_html import html

COUNTS: dict[str, Any] = {
    "rows": 300,
    "bad_rows": 3,
    "bad_rows_json": 1,
    "bad_rows_role": 1,
    "set_aside": 54,
    "like_set_aside": 1,
    "duplicate_rows": 2,
    "leading_answers_dropped": 3,
    "conversations": 298,
    "like_held_out": 4,
    "row_per_turn_conversations": 10,
    "cut_rows": 37,
    "cut_answers": 12,
    "unsupervised_rows": 1,
    "train_rows": 280,
    "train_tokens": 31000,
    "train_supervised_tokens": 20000,
    "held_out_rows": 20,
    "held_out_tokens": 2000,
    "held_out_supervised_tokens": 1200,
    "max_length": 4096,
    "lengths": {"upto": [64, 128, 256], "rows": [3, 0, 277]},
    "coverage": {"256": 0.61, "1024": 0.83, "32768": 0.9999},
}


def example(question: str, answer: str) -> Example:
    asked = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return Example("chats.jsonl:7", 40, 30, False, [(asked, False), (f"{answer}<|im_end|>", True), ("\n", False)])


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")


def printed(
    capsys: pytest.CaptureFixture[str], *examples: Example, counts: dict[str, Any] = COUNTS, directory: str = "d"
) -> str:
    print_report(Path(directory), counts, list(examples))
    return capsys.readouterr().out


class Page(HTMLParser):
    """A page's elements, and its text and that of its marks as a browser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text, self.marked = "", ""
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "rect", "line", "circle", "polyline"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.marked += data if "mark" in self.inside and "pre" in self.inside else ""


def test_the_terminal_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, example("Why?", "So."), directory="outputs/tokens/1")
    for line in (
        r"outputs/tokens/1/report\.html",
        "300 rows read, 298 conversations",
        "training +280 +31,000 +20,000 +64.5%",
        "held out +20 +2,000 +1,200 +60.0%",
        "1 row +not valid JSON",
        "1 row +unusable for another reason",
        "54 conversations +set aside",
        "1 conversation +the same opening question as one set aside",
        "2 rows +exact duplicate",
        "4 conversations +the same opening question as a held-out one",
        "37 rows +cut at 4,096 tokens, 12 of them inside an answer",
        "1 to 64 +3  ▍",
        "65 to 128 +0",
        "129 to 256 +277  █{32}",
        "1,024 +83.0%  █{26}▌",
        "32,768 +>99.9%  █{32}",
        r"1/1  chats\.jsonl:7",
        r"40 tokens, 30 supervised \(75.0%\)",
    ):
        assert re.search(f"^ *{line}$", text, re.MULTILINE), line


def test_the_page_has_every_figure() -> None:
    page = Page(html(COUNTS, [example("Why?", "So.")]))
    for word in ("300 rows read", "31,000", "64.5%", "unknown role", "37 rows", "277", "83.0%", ">99.9%", "75.0%"):
        assert word in page.text
    assert page.marked == "So.<|im_end|>"
    assert not page.inside


@pytest.mark.parametrize("counts", [{}, {"rows": 0, "lengths": {"upto": [], "rows": []}, "coverage": {}}])
def test_nothing_at_all(capsys: pytest.CaptureFixture[str], counts: dict[str, Any]) -> None:
    for text in (printed(capsys, counts=counts), Page(html(counts, [])).text):
        assert "0 rows read, 0 conversations" in text
        assert text.count("nothing") == 2
        assert "supervised is what" not in text


def test_zeros_and_one_size(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"lengths": {"upto": [64], "rows": [0]}, "coverage": {"1": 0.0}}
    empty = Example("x:1", 0, 0, True, [("", False)])
    assert "0 tokens, 0 supervised (-), held out" in printed(capsys, empty, counts=counts)
    assert "nan" not in html(counts, [empty])


def test_the_same_input_is_the_same_page() -> None:
    shuffled = dict(reversed(COUNTS.items())) | {"coverage": dict(reversed(COUNTS["coverage"].items()))}
    chat = example("Why?", "So.")
    assert html(COUNTS, [chat, chat]) == html(shuffled, [chat, chat])


INJECTION = """</mark></pre><script>alert(1)</script><img src=x onerror="alert(2)">&lt;b&gt;'"</style><!-- """


def test_a_page_cannot_be_injected_into() -> None:
    clean = Page(html(COUNTS, [example("", "")]))
    hostile = example(INJECTION, INJECTION)
    page = Page(html(COUNTS | {f"bad_rows_{INJECTION}": 1}, [Example(INJECTION, 1, 1, True, hostile.spans)]))
    assert page.tags == clean.tags
    assert page.text.count(INJECTION.strip()) == 4
    assert {name for name, _ in page.attributes} == {name for name, _ in clean.attributes}


def test_a_page_needs_nothing_from_elsewhere() -> None:
    page = Page(html(COUNTS, [example("Why?", "So.")]))
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert not {name for name, _ in page.attributes} & {"src", "href", "onload"}


def test_markup_of_rich_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]x[/bold] [/] :smile: [link=a.b]y"
    chat = example(text, text)
    out = printed(capsys, Example(text, 1, 1, False, chat.spans), directory=text)
    assert out.count(text) == 4


def test_plain_when_piped_with_supervised_text_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, example("Why?", "So."))
    assert "\x1b" not in text
    assert not re.search(r" $", text, re.MULTILINE)
    assert "  <|im_start|>user\n  Why?<|im_end|>\n  <|im_start|>assistant↵\n  ⟦So.<|im_end|>⟧↵\n" in text


def test_colours_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = printed(capsys, example("Why?", "So."))
    assert "\x1b[32m⟦So." in text
    assert "\x1b[35m↵" in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "⟦So." in re.sub("\x1b\\[[0-9;]*m", "", printed(capsys, example("Why?", "So.")))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x07\x9b", r"a\x1b[31mb\x07\x9b"),
        ("a\u202eb\u2066c\u200f", r"a\u202eb\u2066c\u200f"),
        ("a\rb\x00\ufeffc\u200bd", r"a\rb\x00\ufeffc\u200bd"),
        ("a\u2028b\ud800c\U000e0041", r"a\u2028b\ud800c\U000e0041"),
        ("\u0645\u06cc\u200c\u062e 👩\u200d💻", "\u0645\u06cc\u200c\u062e 👩\u200d💻"),
    ],
)
def test_what_cannot_be_seen_is_escaped(capsys: pytest.CaptureFixture[str], text: str, shown: str) -> None:
    chat = example("", text)
    chat = Example(text, 1, 1, False, chat.spans)
    assert printed(capsys, chat).count(shown) == 2
    page = html({}, [chat])
    page.encode()
    assert Page(page).marked == f"{shown}<|im_end|>"
    assert Page(page).text.count(shown) == 2


def test_whitespace_at_the_borders_can_be_seen() -> None:
    spans = [(" \n\n a b \t", False), ("\n x\ny \n", True)]
    shown = ["".join(piece.text for piece in parts) for _, parts in pieces(spans, 1000)]
    assert shown == ["·↵↵\n·a b·→", "↵\n·x\ny·↵\n"]


def test_special_tokens_are_set_apart() -> None:
    (_, parts), *_ = pieces([("<|im_start|>a < b |> c <\uff5cUser\uff5c><html>", False)], 1000)
    assert [piece.text for piece in parts if piece.kind == "special"] == ["<|im_start|>", "<\uff5cUser\uff5c>"]


def test_wide_characters_and_tabs_fit_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, example("中文" * 100, "代码😀" * 100))
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "\n      x\n" in printed(capsys, example("y\n\tx\n", ""))
    assert text.count("中") == text.count("代") == 100


def test_long_text_loses_its_middle_and_keeps_its_borders() -> None:
    question, answer = "q" * 5000, "a" * 900
    shown = list(pieces(example(f"Begin {question} end.", f"First {answer} last.").spans, 1000))
    texts = ["".join(piece.text for piece in parts) for _, parts in shown]
    assert texts[0].startswith("<|im_start|>user\nBegin qqq")
    assert texts[0].endswith("qqq end.<|im_end|>\n<|im_start|>assistant↵\n")
    assert re.search("q ⋯ [0-9,]+ characters ⋯ q", texts[0])
    assert texts[1] == f"First {answer} last.<|im_end|>"
    assert len(texts[0]) < 1100


def test_long_answers_are_shortened_too() -> None:
    _, (supervised, parts), _ = pieces(example("Why?", "Because " + "a" * 50_000 + " so.").spans, 1000)
    assert supervised
    assert parts[0].text.startswith("Because a")
    assert [piece.text for piece in parts][-2:] == ["a" * (1000 - len(" so.<|im_end|>")) + " so.", "<|im_end|>"]


def test_long_conversations_lose_their_middle_turns() -> None:
    spans = [it for n in range(100) for it in ((f"\nquestion {n}\n", False), (f"answer {n}", True))]
    shown = list(pieces(spans, 1000))
    texts = ["".join(piece.text for piece in parts) for _, parts in shown]
    assert len(texts) == 9
    assert texts[3] == "answer 1"
    assert re.fullmatch("\n⋯ 192 more parts, [0-9,]+ characters ⋯\n", texts[4])
    assert texts[0] == "↵\nquestion 0↵\n"
    assert texts[-2:] == ["↵\nquestion 99↵\n", "answer 99"]


def test_a_flood_of_empty_lines_takes_few(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, example("Why?" + "\n" * 300 + "?", "\n" * 500)).count("\n") < 80


def test_percentages_are_exact_at_their_ends() -> None:
    assert [percent(part, 10_000) for part in (0, 1, 5000, 9999, 10_000)] == ["0%", "<0.1%", "50.0%", ">99.9%", "100%"]


def test_reasons_of_another_version_are_shown_by_name() -> None:
    assert dropped({"bad_rows": 2, "bad_rows_strange": 2}) == [("2 rows", "bad_rows_strange")]


def test_a_terminal_without_unicode_gets_escapes() -> None:
    code = (
        "from pathlib import Path; from eyas.data.report import Example, print_report;"
        "print_report(Path('d'), {'coverage': {'1': 1}}, [Example('x', 1, 1, False, [('中', True)])])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONIOENCODING": "latin-1"}, capture_output=True, check=True
    )
    assert b"\\u27e6\\u4e2d\\u27e7" in ran.stdout


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, eyas.data.report_html; assert not {'torch', 'transformers', 'rich', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
