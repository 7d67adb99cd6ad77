"""Each shape, and every way of writing a turn."""

from collections import Counter
from typing import Any

import pytest

from eyas.data.formats import RawRow, Reason, RowError
from eyas.data.shapes import ANSWER_TO_COME, Conversation, Converter, Example, PlainText, Shape, TokenRow, detect_shape
from eyas.data.turns import Turns

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}


def convert(value: Any, shape: Shape, *, drop_media: bool = False, **columns: str) -> tuple[Example, Counter[str]]:
    counts: Counter[str] = Counter()
    return Converter(shape, columns, Turns(drop_media, counts))(RawRow("here", value)), counts


def messages(value: Any, shape: Shape = Shape.messages, **options: Any) -> list[dict[str, Any]]:
    example, _ = convert(value, shape, **options)
    assert isinstance(example, Conversation)
    return example.messages


def refused(value: Any, shape: Shape = Shape.messages, **options: Any) -> RowError:
    with pytest.raises(RowError) as error:
        convert(value, shape, **options)
    return error.value


SHAPES = [
    pytest.param({"messages": [USER, ANSWER], "prompt": "Hi"}, Shape.messages, id="messages"),
    pytest.param(
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
        Shape.sharegpt,
        id="sharegpt",
    ),
    pytest.param({"instruction": "Hi", "input": "", "output": "Yo"}, Shape.alpaca, id="alpaca"),
    pytest.param({"question": "Hi", "answer": "Yo"}, Shape.prompt_response, id="question"),
    pytest.param({"prompt": [USER], "completion": [ANSWER]}, Shape.prompt_response, id="lists"),
    pytest.param(
        {"messages": '[{"role": "user", "content": "Hi"}, {"role": "model", "content": "Yo"}]'},
        Shape.messages,
        id="text",
    ),
]


@pytest.mark.parametrize(("row", "shape"), SHAPES)
def test_shapes_are_detected_and_say_the_same(row: Any, shape: Shape) -> None:
    assert detect_shape(row) is shape
    assert messages(row, shape) == [USER, ANSWER]


def test_text_and_tokens() -> None:
    assert detect_shape({"text": "x"}) is Shape.text
    assert convert({"text": "x"}, Shape.text)[0] == PlainText("here", "x")
    row = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, True]}
    assert detect_shape(row) is Shape.tokens
    assert convert(row, Shape.tokens)[0] == TokenRow("here", [1, 2, 3], [False, True, True])
    for wrong in ({"loss_mask": [1]}, {"loss_mask": [0, 2, 1]}, {"loss_mask": None}, {"input_ids": [1, -2, 3]}):
        assert refused({**row, **wrong}, Shape.tokens).reason is Reason.tokens
    assert refused({**row, "input_ids": [1, 2.0, 3]}, Shape.tokens).reason is Reason.tokens
    assert refused({"text": " "}, Shape.text).reason is Reason.columns


def test_detection_refuses_what_fits_twice_unless_both_are_the_same() -> None:
    assert detect_shape({"messages": [USER, ANSWER], "conversations": [USER, ANSWER]}) is Shape.messages
    with pytest.raises(RowError, match=r"several shapes: messages, sharegpt; set data\.shape"):
        detect_shape({"messages": [USER, ANSWER], "conversations": [USER]})
    with pytest.raises(RowError, match="messages, text"):
        detect_shape({"messages": [USER, ANSWER], "text": "x"})
    assert detect_shape({"messages": [USER, ANSWER], "text": None}) is Shape.messages
    assert detect_shape({"words": "x"}) is None
    assert detect_shape(["messages"]) is None


def test_columns_by_other_names() -> None:
    columns = {"prompt": "q", "response": "a"}
    assert detect_shape({"q": "Hi", "a": "Yo"}, columns) is Shape.prompt_response
    assert messages({"q": "Hi", "a": "Yo"}, Shape.prompt_response, **columns) == [USER, ANSWER]
    assert "`q` and `a`" in refused({"prompt": "Hi", "a": "Yo"}, Shape.prompt_response, **columns).detail


def test_alpaca_input_and_system_column() -> None:
    found = messages({"instruction": "Add", "input": "1 2", "output": "3", "system": "Be brief"}, Shape.alpaca)
    assert found[:2] == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Add\n\n1 2"}]
    system = {"role": "system", "content": "Be brief"}
    assert messages({"messages": [system, USER, ANSWER], "system": "Be brief"}) == [system, USER, ANSWER]
    assert "differs" in refused({"messages": [system, USER, ANSWER], "system": "Be long"}).detail
    assert refused({"messages": [USER, ANSWER], "system": 1}).reason is Reason.turns


ROLES = {"human": "user", "Human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}
ROLES |= {"model": "assistant", "function": "tool", "observation": "tool", "system": "system", "developer": "system"}


@pytest.mark.parametrize(("name", "role"), ROLES.items())
def test_role_names(name: str, role: str) -> None:
    assert messages({"messages": [USER, {"from": name, "value": "x"}, ANSWER]})[1] == {"role": role, "content": "x"}


def test_a_leading_answer_is_dropped_and_counted() -> None:
    system = {"role": "system", "content": "s"}
    example, counts = convert({"messages": [system, ANSWER, ANSWER, USER, ANSWER]}, Shape.messages)
    assert isinstance(example, Conversation)
    assert example.messages == [system, USER, ANSWER]
    assert counts["leading_answers_dropped"] == 2
    assert refused({"messages": [ANSWER, USER]}).reason is Reason.no_answer


def test_typed_parts_and_media() -> None:
    parts = [{"type": "text", "text": "Hi", "image": None}, "there"]
    assert messages({"messages": [{"role": "user", "content": parts}, ANSWER]})[0]["content"] == "Hi\nthere"
    seen = {"messages": [{"role": "user", "content": [*parts, {"type": "image_url", "image_url": {}}]}, ANSWER]}
    assert refused(seen).reason is Reason.media
    assert "data.drop_media=true" in refused(seen).detail
    example, counts = convert(seen, Shape.messages, drop_media=True)
    assert isinstance(example, Conversation)
    assert example.messages[0]["content"] == "Hi\nthere"
    assert counts["media_parts_dropped"] == 1
    assert refused({"messages": [USER, ANSWER], "images": ["a.png"]}).reason is Reason.media
    only = {"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWER]}
    assert refused(only, drop_media=True).reason is Reason.media


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_one_name(key: str) -> None:
    wanted = {**ANSWER, "reasoning_content": "hm"}
    assert messages({"messages": [USER, {**ANSWER, key: "hm"}]})[1] == wanted
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yo"}]
    assert messages({"messages": [USER, {"role": "assistant", "content": parts}]})[1] == wanted
    assert refused({"messages": [{**USER, key: "hm"}, ANSWER]}).reason is Reason.turns


def test_tools() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [call], "name": None}]
    turns += [{"role": "tool", "content": "2", "tool_call_id": "1"}, ANSWER]
    example, _ = convert({"messages": turns, "tools": [{"type": "function"}]}, Shape.messages)
    assert isinstance(example, Conversation)
    assert example.tools == [{"type": "function"}]
    made = {**call, "function": {"name": "f", "arguments": {"x": 1}}}
    assert example.messages[1] == {"role": "assistant", "content": "", "tool_calls": [made]}
    assert example.messages[2]["tool_call_id"] == "1"
    for wrong in ("x", [1], [{"function": {}}], [{"function": {"name": "f", "arguments": "[1]"}}]):
        found = refused({"messages": [USER, {**ANSWER, "tool_calls": wrong}]})
        assert found.reason in (Reason.tools, Reason.json)
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    assert refused({"messages": [USER, ANSWER], "tools": [deep]}).reason is Reason.tools


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert refused({"messages": [USER, {**ANSWER, "content": "\ud800"}]}).reason is Reason.utf8


TO_COME = {"role": "assistant", "content": ANSWER_TO_COME}
QUESTIONS = [
    pytest.param({"prompt": "Hi"}, [USER, TO_COME], id="prompt"),
    pytest.param({"question_id": 81, "turns": ["Hi", "Hi"]}, [USER, TO_COME, USER, TO_COME], id="mt-bench"),
    pytest.param({"prompt": [USER], "reference": None}, [USER, TO_COME], id="messages-of-a-prompt"),
    pytest.param({"messages": [USER]}, [USER, TO_COME], id="messages"),
    pytest.param(
        {"instruction": "Hi", "system": "Be"}, [{"role": "system", "content": "Be"}, USER, TO_COME], id="system"
    ),
    pytest.param({"messages": [USER, ANSWER, USER]}, [USER, ANSWER, USER], id="answered-once"),
]


@pytest.mark.parametrize(("value", "expected"), QUESTIONS)
def test_questions_without_answers(value: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    """They can be asked; where the answers are to be learnt, they are refused with the way out."""
    shape = detect_shape(value)
    assert shape is not None
    example = Converter(shape, unanswered=True)(RawRow("here", value))
    assert isinstance(example, Conversation)
    assert example.messages == expected
    if TO_COME in expected:
        assert "let it answer: data.responses=regenerate" in refused(value, shape).detail


@pytest.mark.parametrize(
    "value", [{"turns": []}, {"messages": [{"role": "system", "content": "Be"}]}, {"turns": [None]}]
)
def test_nothing_to_answer(value: dict[str, Any]) -> None:
    shape = detect_shape(value)
    assert shape is not None
    with pytest.raises(RowError):
        Converter(shape, unanswered=True)(RawRow("here", value))
