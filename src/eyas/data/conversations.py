"""Reading conversations: one JSON object a line; every problem is reported with its file and line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from eyas.errors import EyasError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Conversation:
    """Messages as chat templates take them."""

    where: str
    """file:line, for messages to people."""
    messages: list[dict[str, str]]
    cut: bool
    """The last answer stopped at a length limit: the verifier never wrote its closing token."""


def conversations_file(path: str) -> Path:
    """`data.path` as a file; `conf:` in front means beside the project's YAML files.

    Raises:
        EyasError: no such file, or an empty one.
    """
    file = (
        Path(str(files("eyas.conf") / path.removeprefix("conf:")))
        if path.startswith("conf:")
        else Path(path).expanduser()
    )
    if not file.is_file():
        raise EyasError(
            f"data.path={path}: {'is no file' if file.exists() else 'there is no such file'}; expected a JSONL of conversations"
        )
    if file.stat().st_size == 0:
        raise EyasError(f"data.path={path}: the file is empty; expected a conversation on each line")
    return file


def read_conversations(file: Path) -> Iterator[Conversation]:
    """Yield the file's conversations in order; blank lines are skipped.

    Raises:
        EyasError: a line that is no conversation with an assistant turn.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _conversation(line, f"{file}:{number}")


def _conversation(line: bytes, where: str) -> Conversation:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise EyasError(f"{where}: not valid JSON ({error}); mend or remove the line") from None
    turns = next((row[key] for key in ("messages", "conversations") if isinstance(row, dict) and key in row), None)
    if not isinstance(turns, list) or not turns:
        raise EyasError(
            f"{where}: expected an object with `messages` (or `conversations`): a list of {{role, content}}"
        )
    messages = [_message(turn, where) for turn in turns]
    if all(message["role"] != "assistant" for message in messages):
        raise EyasError(
            f"{where}: no assistant turn, so nothing to learn from; remove the line or add the verifier's answer"
        )
    return Conversation(where, messages, cut=row.get("finish") == "length")


def _message(turn: Any, where: str) -> dict[str, str]:
    if not isinstance(turn, dict) or not isinstance(turn.get("content"), str) or turn.get("role") not in ROLES:
        raise EyasError(
            f"{where}: expected each turn as {{role: {'|'.join(ROLES)}, content: text}}, found {str(turn)[:80]}"
        )
    return {"role": turn["role"], "content": turn["content"]}
