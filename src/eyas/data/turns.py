"""Turns as people write them -> messages as chat templates take them.

Text parts are joined by line breaks, as vLLM joins them for templates that take strings.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.data.formats import Reason, RowError, parse_json, shown

ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "model"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),  # OpenAI's newer name; templates that know it treat both alike
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
_MEDIA: tuple[str, ...] = ("image", "images", "image_url", "input_image", "audio", "audios", "audio_url", "input_audio")
_MEDIA += ("video", "videos", "video_url")
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MAX_DEPTH = 64
"""Of tool definitions and calls, which are handed to the template as they are."""


@dataclass(frozen=True)
class Turns:
    """Converts the turns of one row after another."""

    drop_media: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def messages(self, turns: Any) -> list[dict[str, Any]]:
        turns = value_of(turns)
        if not isinstance(turns, list) or not turns:
            raise RowError(Reason.turns, f"expected a list of turns, {{role, content}} each, found {shown(turns)}")
        return [self._message(turn, number) for number, turn in enumerate(turns, start=1)]

    def _message(self, turn: Any, number: int) -> dict[str, Any]:
        name = first_of(turn, ("role", "from")) if isinstance(turn, dict) else None
        if not isinstance(name, str):
            raise RowError(
                Reason.turns,
                f"turn {number}: expected each turn as {{role, content}} (or {{from, value}}), found {shown(turn)}",
            )
        role = ROLES.get(name.strip().lower())
        if role is None:
            raise RowError(
                Reason.role, f"turn {number}: unknown role {shown(name)}; expected one of {', '.join(ROLES)}"
            )
        content, reasoning = self._content(first_of(turn, ("content", "value")), f"turn {number}")
        calls = _tool_calls(turn.get("tool_calls"), number)
        if content is None:
            if not calls:
                raise RowError(Reason.turns, f"turn {number}: expected each turn with content, text, found none")
            content = ""
        message: dict[str, Any] = {"role": role, "content": content}
        for key in _REASONING:
            if turn.get(key) not in (None, ""):
                reasoning.append(text_of(turn[key], f"turn {number}: {key}"))
        if reasoning:
            if role != "assistant" or len(set(reasoning)) > 1:
                raise RowError(Reason.turns, f"turn {number}: expected one reasoning, of the assistant; keep one")
            message["reasoning_content"] = reasoning[0]
        if calls:
            message["tool_calls"] = calls
        for key in ("tool_call_id", "name"):
            if turn.get(key) is not None:
                message[key] = text_of(turn[key], f"turn {number}: {key}")
        return message

    def _content(self, content: Any, where: str) -> tuple[str | None, list[str]]:
        """(text, reasoning) of a string or of typed parts."""
        if not isinstance(content, list):
            return (None if content is None else text_of(content, f"{where}: content")), []
        texts: list[str] = []
        thoughts: list[str] = []
        for part in content:
            given = {"type": "text", "text": part} if isinstance(part, str) else part
            kind = given.get("type", "text") if isinstance(given, dict) else None
            if kind in ("text", "input_text", "output_text"):
                texts.append(text_of(given.get("text"), f"{where}: text part"))
            elif kind in ("thinking", "reasoning"):
                thoughts.append(text_of(first_of(given, ("thinking", "reasoning", "text")), f"{where}: {kind} part"))
            elif kind in _MEDIA:
                self._drop(f"{where}: holds {kind}")
            else:
                raise RowError(Reason.turns, f"{where}: expected parts as {{type: text, text}}, found {shown(part)}")
        if not content:
            raise RowError(Reason.turns, f"{where}: expected text, found an empty list of parts")
        if not texts and not thoughts:
            raise RowError(Reason.media, f"{where}: nothing but media, so nothing is left of it; remove the row")
        return "\n".join(texts), ["\n".join(thoughts)] if thoughts else []

    def refuse_media(self, row: dict[str, Any]) -> None:
        for key in _MEDIA:
            if row.get(key):
                self._drop(f"the row has `{key}`")

    def _drop(self, what: str) -> None:
        if not self.drop_media:
            raise RowError(Reason.media, f"{what}; drafts learn from text: remove the row or set data.drop_media=true")
        self.counts["media_parts_dropped"] += 1


def text_of(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RowError(Reason.turns, f"{where}: expected text, found {shown(value)}")
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        raise RowError(Reason.utf8, f"{where}: half of a surrogate pair, which is no character; remove it") from None
    return value


def first_of(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def value_of(value: Any) -> Any:
    """CSV, and some Parquet, hold lists and objects as JSON text."""
    return parse_json(value) if isinstance(value, str) else value


def tools_of(value: Any) -> list[dict[str, Any]] | None:
    if value in (None, "", []):
        return None
    tools = value_of(value)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools) or not _shallow(tools):
        raise RowError(Reason.tools, f"expected `tools` as a list of definitions, found {shown(value)}")
    return tools or None


def _tool_calls(value: Any, number: int) -> list[dict[str, Any]]:
    """Calls with their arguments as objects, as templates and vLLM take them (OpenAI has them as JSON text)."""
    calls = value_of(value) if value else []
    if not isinstance(calls, list) or not _shallow(calls):
        raise RowError(Reason.tools, f"turn {number}: expected tool_calls as a list, found {shown(value)}")
    return [_tool_call(call, number) for call in calls]


def _tool_call(call: Any, number: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(
            Reason.tools,
            f"turn {number}: expected a tool call as {{function: {{name, arguments}}}}, found {shown(call)}",
        )
    arguments = value_of(function.get("arguments") or {})
    if not isinstance(arguments, dict):
        raise RowError(Reason.tools, f"turn {number}: expected a tool call's arguments as an object")
    made = {"type": "function", "function": {"name": text_of(function["name"], "name"), "arguments": arguments}}
    return made if call.get("id") is None else {"id": str(call["id"]), **made}


def _shallow(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether templates can walk it, which recurse, and encode it."""
    if isinstance(value, dict):
        return depth > 0 and all(_shallow(it, depth - 1) for pair in value.items() for it in pair)
    if isinstance(value, list):
        return depth > 0 and all(_shallow(it, depth - 1) for it in value)
    return not isinstance(value, str) or bool(text_of(value, "tools") or True)
