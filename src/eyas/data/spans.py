"""Where in a rendered conversation the verifier's own text is, told by the chat template alone.

The text of an answer begins where "rendered up to the generation prompt" ends, so what that prompt forces (a `<think>`)
is not the verifier's. It ends with the stop token, so what a template adds after it (a line break) is not either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.data.conversations import Conversation
from eyas.errors import EyasError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE = "\ue000"
"""A character of nobody's text: where it comes out, the template puts the visible answer."""
END_OF_REASONING = "</think>"
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
MARKS = re.compile(r"\{%-?\s*generation\b")

Messages = Sequence[dict[str, Any]]


class RefusedError(EyasError):
    """The chat template doesn't take this conversation; it may take others."""


@dataclass(frozen=True)
class Span:
    """What the verifier wrote of one turn, as positions in the text of the conversation rendered up to that turn."""

    turn: int
    text: str
    """From the conversation's beginning to the last character that the verifier wrote."""
    start: int
    """Where the answer begins, or where what is supervised of it does."""


class Chat:
    """One conversation and the template that renders it."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        conversation: Conversation,
        kwargs: dict[str, Any],
        stop_ids: Sequence[int],
    ) -> None:
        self.tokenizer = tokenizer
        self.messages: Messages = conversation.messages
        self.where = conversation.where
        self.cut = conversation.cut
        self.kwargs = {**kwargs, "tools": conversation.tools} if conversation.tools else kwargs
        self.stops = [str(token) for token in tokenizer.convert_ids_to_tokens(list(stop_ids)) if token is not None]

    def text(self, messages: Messages, *, prompt: bool = False) -> str:
        """The messages as the template renders them.

        Raises:
            RefusedError: the template refuses them.
        """
        try:
            rendered = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=prompt, tokenize=False, **self.kwargs
            )
        except Exception as error:  # a template is somebody's program; what it raises is anything
            raise RefusedError(
                f"{self.where}: the chat template can't render turns 1 to {len(messages)} ({error}); expected turns that "
                "it accepts: change the conversation, verifier.chat.template or verifier.chat.kwargs"
            ) from error
        return str(rendered)

    def span(self, turn: int) -> Span:
        """The verifier's text of one assistant turn.

        Raises:
            EyasError: nothing comes before it, or the answer doesn't begin as the generation prompt ends.
        """
        if turn == 0:
            raise EyasError(
                f"{self.where}: the first turn is an answer; expected a question before it: remove the turn, or add one"
            )
        before, message = self.messages[:turn], self.messages[turn]
        prompt, answered = self.text(before, prompt=True), self.text([*before, message])
        if not answered.startswith(prompt):
            raise EyasError(
                f"{self.where}: the chat template renders the answer of turn {turn + 1} differently from how its "
                f"generation prompt begins, so the verifier's tokens can't be told apart: the prompt ends in {prompt[-40:]!r}, "
                f"the answer in its place is {answered[_common(prompt, answered) :][:40]!r}; where the prompt opens the "
                "reasoning, give the answer its reasoning_content or set verifier.chat.kwargs so that it doesn't"
            )
        cut = self.cut and turn == len(self.messages) - 1
        return Span(turn, self._written(turn, prompt, answered, cut=cut), len(prompt))

    def without_reasoning(self, span: Span) -> Span:
        """The span from where a probe in place of the visible answer comes out: what the template puts before it goes too."""
        message = self.messages[span.turn]
        content = message.get("content")
        *reasoning, visible = content.rpartition(END_OF_REASONING) if isinstance(content, str) else ("", "")
        lead = visible[: len(visible) - len(visible.lstrip())] if any(reasoning) else ""
        probed = self.text([*self.messages[: span.turn], {**message, "content": "".join([*reasoning, lead, PROBE])}])
        start = min(probed.find(PROBE), _common(probed, span.text))
        if start < span.start:  # a template may leave out the content of a turn that calls tools
            start = self._after_reasoning(span)
        return Span(span.turn, span.text, start) if span.text[span.start : start].strip() else span

    def _after_reasoning(self, span: Span) -> int:
        fields = (self.messages[span.turn].get(name) for name in REASONING_FIELDS)
        reasoning = next((field.strip() for field in fields if isinstance(field, str) and field.strip()), "")
        found = span.text.find(reasoning, span.start) if reasoning else -1
        if found < 0:
            return span.start
        end = found + len(reasoning)
        closing = re.compile(rf"\s*{END_OF_REASONING}\s*").match(span.text, end)
        return closing.end() if closing else end

    def _written(self, turn: int, prompt: str, answered: str, *, cut: bool) -> str:
        """The rendering up to the verifier's stop token, or without it where the answer was cut at a length limit."""
        start, end = self._closing(turn, prompt, answered)
        if start < len(answered):
            return answered[:start] if cut else answered[:end]
        return answered if cut else answered + self._next_role(turn, answered)

    def _closing(self, turn: int, prompt: str, answered: str) -> tuple[int, int]:
        """Where the stop token is with which the template ends the turn; the text's end twice where it does not.

        It is the first one: some templates add another (an end of text) after it. But an answer may quote one, so then
        the answer without its quotations tells what the template adds.
        """
        own = answered
        if any(stop in str(self.messages[turn]) for stop in self.stops):
            own = self.text([*self.messages[:turn], _without(self.messages[turn], self.stops)])
        found = [(own.find(stop, len(prompt)), stop) for stop in self.stops]
        position, stop = min(((at, stop) for at, stop in found if at >= 0), default=(len(own), ""))
        if own is answered or not stop:
            return (position, position + len(stop)) if stop else (len(answered), len(answered))
        added = own[position:]
        start = len(answered) - len(added) if answered.endswith(added) else answered.rfind(stop)
        return start, start + len(stop)

    def _next_role(self, turn: int, answered: str) -> str:
        """The next turn's role token, where it is a stop token: what the verifier writes when no token closes a turn.

        Nothing follows the last turn of a conversation, so nothing is known of how the verifier would have ended it.
        """
        if turn + 1 == len(self.messages):
            return ""
        following = self.text([*self.messages[: turn + 1], {**self.messages[turn + 1], "content": ""}])
        # Where history is rewritten the answer is no prefix, but with its content emptied the turn's role comes last.
        start = len(answered) if following.startswith(answered) else 0
        position, role = max(((following.rfind(stop, start), stop) for stop in self.stops), default=(-1, ""))
        return role if position >= 0 else ""


def _common(a: str, b: str) -> int:
    """How many characters two texts have in common at the beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _without(value: Any, texts: Sequence[str]) -> Any:
    """The value with these texts removed from every string in it."""
    if isinstance(value, str):
        for text in texts:
            value = value.replace(text, "")
        return value
    if isinstance(value, dict):
        return {key: _without(part, texts) for key, part in value.items()}
    return [_without(part, texts) for part in value] if isinstance(value, list) else value
