"""Reading conversations: bad rows, doubles, detection, and what determines the result."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eyas.data.conversations import Example, read_conversations, reading_identity
from eyas.data.shapes import Conversation, Shape
from eyas.errors import EyasError
from reading import data_config as config

GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}'


def read(tmp_path: Path, *lines: str, **changes: Any) -> tuple[list[Example], Counter[str]]:
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(lines))
    counts: Counter[str] = Counter()
    return list(read_conversations(config(file, **changes), counts)), counts


def test_both_names_of_the_turns(tmp_path: Path) -> None:
    [first], _ = read(tmp_path, GOOD)
    [_, second], counts = read(
        tmp_path,
        *[GOOD.replace("messages", "conversations").replace("]}", end) for end in ("]}", '], "finish": "length"}')],
    )
    assert isinstance(first, Conversation)
    assert isinstance(second, Conversation)
    assert first.messages == second.messages
    assert (first.cut, second.cut) == (False, True)
    assert second.where.endswith("data.jsonl:2")
    assert counts["rows"] == 2


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    rows, counts = read(tmp_path, GOOD, "", " ", GOOD)
    assert [row.where.rsplit(":", 1)[1] for row in rows] == ["1", "4"]
    assert counts["rows"] == 2


BAD = [
    pytest.param('{"messages": [', "not valid JSON", id="broken"),
    pytest.param('["messages"]', "expected an object with `messages`", id="list"),
    pytest.param('{"words": "x"}', "expected an object with `messages`", id="other-keys"),
    pytest.param('{"messages": []}', "expected a list of turns", id="empty"),
    pytest.param('{"messages": [{"role": "user", "content": "Hi"}]}', "no assistant turn", id="no-assistant"),
    pytest.param(
        '{"messages": [{"role": "assistant", "content": null}]}', "expected each turn with", id="null-content"
    ),
    pytest.param('{"messages": [{"role": "narrator", "content": "x"}]}', "unknown role 'narrator'", id="role"),
    pytest.param('{"messages": ["x"]}', "expected each turn as", id="no-turn"),
    pytest.param('{"messages": [], "messages": []}', "stands twice in one object", id="duplicate-key"),
    pytest.param('{"messages": NaN}', "NaN is no JSON value", id="nan"),
    pytest.param("[" * 5000, "nested too deeply", id="deep"),
    pytest.param('{"messages": ' + "9" * 5000 + "}", "not valid JSON", id="huge-number"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_problems_name_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(EyasError, match=message) as error:
        read(tmp_path, GOOD, line)
    assert "data.jsonl:2: " in str(error.value)


def test_bad_utf8(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(b'{"messages": [{"role": "assistant", "content": "\xff\xfe"}]}')
    with pytest.raises(EyasError, match=r"data\.jsonl:1: not valid UTF-8"):
        list(read_conversations(config(file), Counter()))


def test_bad_rows_are_counted_located_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, counts = read(tmp_path, GOOD, "{", GOOD, '{"messages": 1}', max_bad_rows=2)
    assert (len(rows), counts["rows"], counts["bad_rows"]) == (2, 4, 2)
    assert (counts["bad_rows_json"], counts["bad_rows_turns"]) == (1, 1)
    printed = capsys.readouterr().out
    assert "data.jsonl  shape messages, by its columns\n" in printed
    assert "data.jsonl:2: not valid JSON" in printed
    assert "data.jsonl:4: expected a list of turns" in printed


@pytest.mark.parametrize(("limit", "stops"), [(1, True), (2, False), (0.4, True), (0.5, False)])
def test_too_many_bad_rows_stop_with_their_reasons(tmp_path: Path, limit: float, stops: bool) -> None:
    lines = [GOOD, "{", GOOD, '{"messages": 1}']
    if not stops:
        assert read(tmp_path, *lines, max_bad_rows=limit)[1]["bad_rows"] == 2
        return
    with pytest.raises(
        EyasError, match=rf"2 of 4 rows are bad, more than data\.max_bad_rows={limit}: 1 not valid JSON"
    ) as it:
        read(tmp_path, *lines, max_bad_rows=limit)
    assert "data.jsonl:4" in str(it.value)


def test_rows_of_two_shapes_are_refused_naming_both(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"messages \(.*data\.jsonl:1\), text \(.*data\.jsonl:2\); set data\.shape"):
        read(tmp_path, GOOD, '{"text": "x"}')
    with pytest.raises(EyasError, match=r"data\.jsonl:2: expected an object with `messages`"):
        read(tmp_path, GOOD, '{"text": "x"}', shape=Shape.messages)


def test_a_row_of_two_shapes_is_refused(tmp_path: Path) -> None:
    row = json.dumps({**json.loads(GOOD), "text": "x"})
    with pytest.raises(
        EyasError, match=r"data\.jsonl:1: the columns .* several shapes: messages, text; set data\.shape"
    ):
        read(tmp_path, row)
    [example], _ = read(tmp_path, row, shape=Shape.messages)
    assert isinstance(example, Conversation)


def test_a_long_row_is_bad_and_the_next_one_good(tmp_path: Path) -> None:
    rows, counts = read(tmp_path, GOOD, GOOD.replace("Hi", "x" * 500), GOOD, max_row_bytes=200, max_bad_rows=1)
    assert (len(rows), counts["bad_rows_too_long"]) == (2, 1)


def test_identity_is_of_content_and_of_how_it_is_read(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(GOOD)
    plain = reading_identity(config(tmp_path / "a.jsonl"))
    assert plain == reading_identity(config(tmp_path / "b.jsonl", max_bad_rows=3, held_out=5))
    for changes in ({"shape": Shape.messages}, {"drop_media": True}, {"max_row_bytes": 99}):
        assert plain != reading_identity(config(tmp_path / "a.jsonl", **changes))
    both = reading_identity(config(tmp_path))
    (tmp_path / "b.jsonl").rename(tmp_path / "c.jsonl")
    assert both != reading_identity(config(tmp_path))


def test_fields_that_no_shape_has_are_refused() -> None:
    with pytest.raises(EyasError, match=r"data\.columns\.promt: there is no such field; expected "):
        config("x", columns={"promt": "question"})
    with pytest.raises(EyasError, match=r"data\.columns\.prompt: there is no such field in shape text"):
        config("x", columns={"prompt": "question"}, shape=Shape.text)
    with pytest.raises(EyasError, match=r"data\.max_bad_rows=-1"):
        config("x", max_bad_rows=-1)
