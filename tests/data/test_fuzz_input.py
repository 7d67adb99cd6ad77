"""Hundreds of malformed inputs: each is a counted, located row error or one clear line; never a traceback, never a lost row."""

import gzip
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyas.data.conversations import read_conversations
from eyas.data.shapes import Shape
from eyas.errors import EyasError
from reading import data_config

NUM_CASES = 480
SECONDS = 2.0
"""For any one case (all are small but the 50 MB line, which has a test of its own)."""

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
GOOD: dict[Shape, dict[str, Any]] = {
    Shape.messages: {"messages": [USER, ANSWER]},
    Shape.sharegpt: {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
    Shape.alpaca: {"instruction": "Hi", "input": "", "output": "Yo"},
    Shape.prompt_response: {"prompt": "Hi", "response": "Yo"},
    Shape.prompts: {"turns": ["Hi", "And?"]},
    Shape.text: {"text": "Hi"},
    Shape.tokens: {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
}
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1e300,
    2**64,
    10**50,
    "",
    " ",
    "\x00",
    "\ud800",
    "\u2028",
    "x" * 5000,
    [],
    {},
    [None],
    [[]],
]
ODD += [
    {"type": "image"},
    [{"type": "text"}],
    [{"type": "text", "text": None}],
    [{"type": 1}],
    {"role": None},
    [[[[]]]],
]
ROLES = [
    "user",
    "assistant",
    "system",
    "tool",
    "gpt",
    "",
    "USER",
    "narrator",
    "assistant\n",
    None,
    1,
    [],
    "\ud800",
    "\x07",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, it in inside for place in places(it, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = changed(value[path[0]], path[1:], new)
    return copied


def wrong_type(rng: random.Random, good: Any) -> bytes:
    return json.dumps(changed(good, rng.choice(places(good)), rng.choice(ODD))).encode()


def nested_null(rng: random.Random, good: Any) -> bytes:
    for _ in range(rng.randint(1, 3)):
        good = changed(good, rng.choice(places(good)[1:] or [()]), None) if isinstance(good, dict) else good
    return json.dumps(good).encode()


def missing_key(rng: random.Random, good: Any) -> bytes:
    key = rng.choice(list(good))
    return json.dumps({name: it for name, it in good.items() if name != key}).encode()


def odd_roles(rng: random.Random, good: Any) -> bytes:
    turns = [{"role": rng.choice(ROLES), "content": rng.choice(["x", "", None])} for _ in range(rng.randint(0, 7))]
    return json.dumps({"messages": turns}).encode()


def odd_tools(rng: random.Random, good: Any) -> bytes:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    calls = changed([call], rng.choice(places([call])), rng.choice(ODD))
    return json.dumps({"messages": [USER, {**ANSWER, "tool_calls": calls}], "tools": rng.choice(ODD)}).encode()


def bad_utf8(rng: random.Random, good: Any) -> bytes:
    row = bytearray(json.dumps(good).encode())
    row.insert(rng.randrange(len(row)), rng.choice([0xFF, 0xC0, 0x80, 0xED, 0xF8]))
    return bytes(row)


def flipped_bytes(rng: random.Random, good: Any) -> bytes:
    row = bytearray(json.dumps(good).encode())
    for _ in range(rng.randint(1, 4)):
        row[rng.randrange(len(row))] = rng.choice([b for b in range(256) if b != 10])
    return bytes(row)


def cut_row(rng: random.Random, good: Any) -> bytes:
    row = json.dumps(good).encode()
    return row[: rng.randint(1, len(row) - 1)]


def control_characters(rng: random.Random, good: Any) -> bytes:
    row = json.dumps(good)
    place = rng.randrange(len(row))
    return (row[:place] + rng.choice("\x00\x01\x08\x0b\x1b\x7f\x85\u2028\ufeff") + row[place:]).encode()


def duplicate_keys(rng: random.Random, good: Any) -> bytes:
    key = rng.choice(list(good))
    return (json.dumps(good)[:-1] + f", {json.dumps(key)}: {json.dumps(rng.choice(ODD))}}}").encode()


def huge_numbers(rng: random.Random, good: Any) -> bytes:
    number = rng.choice(["9" * 5000, "1e999", "-1e999", "NaN", "-Infinity", "0x10", "1" * 400, "01", "-0"])
    return json.dumps(changed(good, rng.choice(places(good)), "@")).replace('"@"', number).encode()


def deep(rng: random.Random, good: Any) -> bytes:
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    depth = rng.choice([70, 400, 900, 2000, 100_000])
    nested = opening * depth + "1" + closing * rng.choice([depth, 0])
    key = rng.choice([*good, "tools", "extra"])
    return (json.dumps({**good, key: "@"})).replace('"@"', nested).encode()


def long_row(rng: random.Random, good: Any) -> bytes:
    return json.dumps({**good, "extra": "x" * rng.randint(200_000, 400_000)}).encode()


def no_object(rng: random.Random, good: Any) -> bytes:
    return rng.choice(
        [b"[]", b"{}", b"null", b"1", b'"x"', b"x", b"{}{}", b"},{", b"\xfe\xff\x00{", b"\x1f\x8b", b"'a'", b"{,}"]
    )


ROW_CLASSES: list[Callable[[random.Random, Any], bytes]] = [
    *(wrong_type, nested_null, missing_key, odd_roles, odd_tools, bad_utf8, flipped_bytes, cut_row),
    *(control_characters, duplicate_keys, huge_numbers, deep, long_row, no_object),
]


def outcome(path: Path, *, unanswered: bool = False, **changes: Any) -> tuple[str, Counter[str], int]:
    """(the refusal, the counts, how many rows came out), in time."""
    counts: Counter[str] = Counter()
    began, refusal, num_out = time.process_time(), "", 0
    try:
        for example in read_conversations(data_config(path, **changes), counts, unanswered=unanswered):
            num_out += 1
            assert example.where
    except EyasError as error:
        refusal = str(error)
        assert refusal
        assert len(refusal.splitlines()) == 1
        assert len(refusal) < 1500
    assert time.process_time() - began < SECONDS
    return refusal, counts, num_out


@pytest.mark.parametrize("make", ROW_CLASSES, ids=lambda make: make.__name__)
def test_malformed_rows(make: Callable[[random.Random, Any], bytes], tmp_path: Path) -> None:
    rng = random.Random(make.__name__)
    for case in range(NUM_CASES // len(ROW_CLASSES)):
        shape = Shape.messages if make in (odd_roles, odd_tools) else rng.choice(list(Shape))
        good = json.dumps(GOOD[shape]).encode()
        row = make(rng, GOOD[shape])
        as_array = case % 3 == 2
        file = tmp_path / f"{case}.json{'' if as_array else 'l'}"
        file.write_bytes(b"[" + b",".join([good, row, good]) + b"]" if as_array else b"\n".join([good, row, good]))
        options = {"shape": shape, "deduplicate": False, "max_row_bytes": 150_000, "drop_media": case % 2 == 0}
        options["unanswered"] = shape is Shape.prompts
        refusal, counts, num_out = outcome(file, max_bad_rows=1, **options)
        if as_array and refusal:  # it may have broken the array
            assert "it is cut short, damaged" in refusal or "2 of" in refusal, (row, refusal)
            continue
        assert refusal == "", row
        # A row that broke an array in two is two rows.
        assert counts["rows"] == num_out + counts["bad_rows"] == 3 or as_array, (row, counts)
        assert sum(counts[key] for key in counts if key.startswith("bad_rows_")) == counts["bad_rows"]
        strict, _, _ = outcome(file, max_bad_rows=0, **options)
        if counts["bad_rows"]:
            assert f"{file} row 2: " in strict if as_array else f"{file}:2: " in strict, strict
        else:
            assert strict == "", row
        outcome(file, max_bad_rows=1, **{**options, "shape": None})  # detection has its own ways to fail


def archive(content: bytes) -> bytes:
    return gzip.compress(content)


LINES = b"\n".join(json.dumps({"text": f"row {number}"}).encode() for number in range(2000))
FILES = [
    pytest.param("empty.jsonl", b"", "the file is empty", id="empty"),
    pytest.param("blank.jsonl", b"\n \n\t\n", "not a single row", id="blank"),
    pytest.param("empty.json", b"[]", "not a single row", id="empty-array"),
    pytest.param("empty.jsonl.gz", archive(b""), "not a single row", id="empty-archive"),
    pytest.param("head.csv", b"text\n", "not a single row", id="only-a-head"),
    pytest.param("cut.jsonl.gz", archive(LINES)[:-100], "cut short, damaged", id="cut-archive"),
    pytest.param("tail.jsonl.gz", archive(LINES) + b"junk", "cut short, damaged", id="junk-after-archive"),
    pytest.param(
        "flip.jsonl.gz", archive(LINES)[:500] + b"\x00\x01" + archive(LINES)[502:], "cut short, damaged", id="flipped"
    ),
    pytest.param("plain.jsonl.gz", LINES, "cut short, damaged", id="no-archive"),
    pytest.param("plain.jsonl.xz", LINES, "cut short, damaged", id="no-xz"),
    pytest.param("plain.jsonl.bz2", LINES, "cut short, damaged", id="no-bz2"),
    pytest.param("plain.jsonl.zst", LINES, "cut short, damaged", id="no-zst"),
    pytest.param("plain.parquet", LINES, "cut short, damaged", id="no-parquet"),
    pytest.param("archive.jsonl", archive(LINES), r"archive\.jsonl:1: not valid UTF-8", id="archive-without-suffix"),
    pytest.param("wide.jsonl", LINES.decode().encode("utf-16"), r"wide\.jsonl:1: not valid UTF-8", id="utf-16"),
    pytest.param("open.json", b'[{"text": "x"}', "the array is not closed", id="open-array"),
    pytest.param("open.csv", b'text\n"x\ny\n', r"open\.csv:2: not valid CSV", id="open-quote"),
    pytest.param("twice.csv", b"text,text\nx,y\n", "expected the columns' names, each once", id="column-twice"),
    pytest.param("notes.txt", LINES, "unknown kind of file", id="unknown-kind"),
    pytest.param("bare", LINES, "unknown kind of file", id="no-suffix"),
]


@pytest.mark.parametrize(("name", "content", "message"), FILES)
def test_malformed_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    refusal, counts, num_out = outcome(tmp_path / name)
    assert re.search(message, refusal)
    assert name in refusal
    assert counts["rows"] - num_out in (0, 1)  # the bad row is the last


def test_a_50_mb_line_is_a_bad_row_and_is_not_held(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    good = json.dumps(GOOD[Shape.messages]).encode() + b"\n"
    file.write_bytes(good + b'{"text": "' + b"x" * 50_000_000 + b'"}\n' + good)
    refusal, counts, num_out = outcome(file, max_bad_rows=1)
    assert (refusal, counts["rows"], counts["bad_rows_too_long"], num_out) == ("", 3, 1, 2)


def test_there_are_at_least_300_cases() -> None:
    assert NUM_CASES // len(ROW_CLASSES) * len(ROW_CLASSES) + len(FILES) >= 300
