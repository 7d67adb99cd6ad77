"""The shapes that people keep conversations in, and how each becomes what is rendered.

A leading assistant turn (ShareGPT cuts long talks, so many begin in the middle) is dropped and counted: nobody asked for
it, and most templates refuse it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from eyas.data.formats import RawRow, Reason, RowError, shown
from eyas.data.turns import Turns, text_of, tools_of, value_of


class Shape(Enum):
    """What a row holds."""

    messages = "messages"
    sharegpt = "sharegpt"
    alpaca = "alpaca"
    prompt_response = "prompt_response"
    prompts = "prompts"
    text = "text"
    tokens = "tokens"


@dataclass(frozen=True)
class Conversation:
    """Messages as chat templates take them."""

    where: str
    """file:line, for messages to people."""
    messages: list[dict[str, Any]]
    """role and content; where given also reasoning_content, tool_calls, tool_call_id, name."""
    cut: bool
    """The last answer stopped at a length limit: the verifier never wrote its closing token."""
    tools: list[dict[str, Any]] | None = None
    """Tool definitions for the template."""


@dataclass(frozen=True)
class PlainText:
    """Text without turns: no template, every token supervised."""

    where: str
    text: str


@dataclass(frozen=True)
class TokenRow:
    """A row that somebody has tokenised already."""

    where: str
    input_ids: list[int]
    loss_mask: list[bool]


Example = Conversation | PlainText | TokenRow

# Our fields and the columns they are read from where data.columns does not say; the first that a row has is taken.
_TALK = {"tools": ("tools",), "system": ("system", "system_prompt"), "finish": ("finish", "finish_reason")}
FIELDS: dict[Shape, dict[str, tuple[str, ...]]] = {
    Shape.messages: {"messages": ("messages",), **_TALK},
    Shape.sharegpt: {"conversations": ("conversations", "conversation"), **_TALK},
    Shape.alpaca: {"instruction": ("instruction",), "input": ("input",), "output": ("output",), **_TALK},
    Shape.prompt_response: {
        "prompt": ("prompt", "question", "query", "instruction"),
        "response": ("response", "completion", "answer"),
        **_TALK,
    },
    Shape.prompts: {"prompts": ("turns", "prompts", "prompt", "question", "query", "instruction"), **_TALK},
    Shape.text: {"text": ("text",)},
    Shape.tokens: {"input_ids": ("input_ids",), "loss_mask": ("loss_mask",)},
}
_NEEDED = {
    Shape.messages: ("messages",),
    Shape.sharegpt: ("conversations",),
    Shape.alpaca: ("instruction", "output"),
    Shape.prompt_response: ("prompt", "response"),
    Shape.prompts: ("prompts",),
    Shape.text: ("text",),
    Shape.tokens: ("input_ids",),
}

ANSWER_TO_COME = "(to be answered)"
"""Stands where the verifier will answer, in a row that asks and is not answered."""


@dataclass(frozen=True)
class Converter:
    """Rows of one shape -> what is rendered."""

    shape: Shape
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our field -> their column, where the names differ."""
    turns: Turns = field(default_factory=Turns)
    unanswered: bool = False
    """Rows may ask and not be answered: `ANSWER_TO_COME` stands for each answer."""

    def __call__(self, row: RawRow) -> Example:
        """Convert a row.

        Raises:
            RowError: it does not hold what its shape says.
        """
        values = _fields(row.value, self.shape, self.columns)
        if self.shape is Shape.text:
            text = text_of(values["text"], "text")
            if not text.strip():
                raise RowError(Reason.columns, "`text` is blank; remove the row")
            return PlainText(row.where, text)
        if self.shape is Shape.tokens:
            return _token_row(row.where, values)
        self.turns.refuse_media(row.value)
        messages = self._turns(values)
        if text_of(values.get("system", ""), "system").strip():
            messages = _with_system(values["system"], messages)
        cut = values.get("finish") == "length"
        return Conversation(row.where, self._opened_by_user(messages), cut, tools_of(values.get("tools")))

    def _turns(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        if self.shape in (Shape.messages, Shape.sharegpt):
            return self.turns.messages(values[_NEEDED[self.shape][0]])
        if self.shape is Shape.prompts:
            return self._asked(values["prompts"])
        if self.shape is Shape.alpaca:
            question, extra = text_of(values["instruction"], "instruction"), values.get("input")
            if extra is not None and text_of(extra, "input").strip():
                question += "\n\n" + extra
            return [
                {"role": "user", "content": question},
                {"role": "assistant", "content": text_of(values["output"], "output")},
            ]
        messages: list[dict[str, Any]] = []
        for name, role in (("prompt", "user"), ("response", "assistant")):
            part = values[name]
            messages += (
                self.turns.messages(part)
                if isinstance(part, list)
                else [{"role": role, "content": text_of(part, name)}]
            )
        return messages

    def _asked(self, prompts: Any) -> list[dict[str, Any]]:
        """A question, several in turn (as MT-Bench has them), or the messages up to one."""
        if isinstance(prompts, list) and prompts and not isinstance(prompts[0], str):
            return self.turns.messages(prompts)
        several = prompts if isinstance(prompts, list) else [prompts]
        return [{"role": "user", "content": text_of(it, "prompts")} for it in several]

    def _opened_by_user(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
        asked = next((i for i in range(first, len(messages)) if messages[i]["role"] != "assistant"), len(messages))
        kept = messages[:first] + messages[asked:]
        if all(message["role"] != "assistant" for message in kept):
            if not self.unanswered or asked == len(messages):
                raise RowError(
                    Reason.no_answer,
                    "no assistant turn after a user's, so nothing to learn from; remove the row, add the verifier's answer, or "
                    "let it answer: data.responses=regenerate",
                )
            kept = _to_be_answered(kept)
        self.turns.counts["leading_answers_dropped"] += asked - first
        return kept


def _with_system(text: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    if messages[0]["content"] != text:
        raise RowError(Reason.turns, "the system prompt in its column differs from the one in the turns; keep one")
    return messages


def _to_be_answered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With an answer to come after each question."""
    answer = {"role": "assistant", "content": ANSWER_TO_COME}
    return [it for message in messages for it in ((message, answer) if message["role"] == "user" else (message,))]


def detect_shape(value: Any, columns: Mapping[str, str] | None = None) -> Shape | None:
    """The shape that a row's keys say; None where they say nothing.

    Raises:
        RowError: they say several.
    """
    if not isinstance(value, dict):
        return None
    found = [
        shape
        for shape, needed in _NEEDED.items()
        if all(_column(value, shape, name, columns or {}) is not None for name in needed)
    ]
    if found[:2] == [Shape.messages, Shape.sharegpt]:
        talks = [value[_column(value, shape, _NEEDED[shape][0], columns or {})] for shape in found[:2]]
        if talks[0] == talks[1]:
            del found[1]
    if len(found) > 1 and Shape.prompts in found:  # a question, beside what says more
        found.remove(Shape.prompts)
    if len(found) > 1:
        raise RowError(
            Reason.columns,
            f"the columns {shown(list(value))} fit several shapes: {', '.join(shape.name for shape in found)}; "
            f"set data.shape to one of them",
        )
    return found[0] if found else None


def _column(row: Mapping[str, Any], shape: Shape, name: str, columns: Mapping[str, str]) -> Any:
    """The row's column for one of our fields, or None; a null counts as absent (Parquet has every column in every row)."""
    names = (columns[name],) if name in columns else FIELDS[shape][name]
    return next((it for it in names if row.get(it) is not None), None)


def _fields(row: Any, shape: Shape, columns: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise RowError(Reason.columns, f"expected an object with {_wanted(shape, columns)}, found {shown(row)}")
    values = {name: row[column] for name in FIELDS[shape] if (column := _column(row, shape, name, columns)) is not None}
    if any(name not in values for name in _NEEDED[shape]):
        raise RowError(
            Reason.columns, f"expected an object with {_wanted(shape, columns)}, found the keys {shown(list(row))}"
        )
    return values


def _wanted(shape: Shape, columns: Mapping[str, str]) -> str:
    return " and ".join(f"`{columns.get(name, FIELDS[shape][name][0])}`" for name in _NEEDED[shape])


def _token_row(where: str, values: dict[str, Any]) -> TokenRow:
    ids, mask = value_of(values["input_ids"]), value_of(values.get("loss_mask"))
    if not isinstance(ids, list) or not ids or not all(type(it) is int and 0 <= it < 2**31 for it in ids):
        raise RowError(Reason.tokens, f"expected `input_ids` as a list of token ids, found {shown(ids)}")
    if (
        not isinstance(mask, list)
        or len(mask) != len(ids)
        or not all(type(it) in (int, bool) and it in (0, 1) for it in mask)
    ):
        raise RowError(
            Reason.tokens, f"expected `loss_mask` as {len(ids)} zeros and ones, one for each id, found {shown(mask)}"
        )
    return TokenRow(where, ids, [bool(it) for it in mask])
