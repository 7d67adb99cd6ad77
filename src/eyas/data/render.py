"""A conversation -> `input_ids` and `loss_mask`, through the tokenizer's own chat template.

loss_mask is 1 where the verifier wrote the token. It comes from rendering each assistant turn with and without the
answer, never from a pattern: what the answer adds to "rendered up to the generation prompt" is what the verifier wrote,
up to its stop token and with it. Where the next turn's role token is what stops the verifier (GLM), that token is
supervised; an answer that ends the conversation has none there. Where a template rewrites history (so that an earlier
turn no longer looks as it did when it was written), each turn becomes a row of its own that supervises only that turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from eyas.data.boundaries import tokenize
from eyas.data.conversations import Conversation
from eyas.data.spans import MARKS, Chat, Span
from eyas.errors import EyasError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Row:
    """One training document."""

    input_ids: list[int]
    loss_mask: list[bool]


def render(
    tokenizer: "PreTrainedTokenizerBase",
    conversation: Conversation,
    kwargs: dict[str, Any],
    stop_ids: Sequence[int],
    *,
    last_turn_only: bool = False,
    reasoning: bool = True,
    row_per_turn: bool = False,
) -> list[Row]:
    """Rows of one conversation: one where its rendering is prefix-stable, else (or as told) one per assistant turn.

    Args:
        tokenizer: With its chat template.
        conversation: At least one assistant turn, and none before the first question.
        kwargs: Passed to the template, as when serving.
        stop_ids: What ends an answer.
        last_turn_only: Supervise the last assistant turn only.
        reasoning: Supervise what the answer's rendering puts before its visible text, too.
        row_per_turn: A row for each turn even where one row would do.

    Raises:
        EyasError: the template refuses the turns, or the spans can't be told (each with file and line).
    """
    chat = Chat(tokenizer, conversation, kwargs, stop_ids)
    turns = [turn for turn, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if not turns:
        raise EyasError(f"{chat.where}: no assistant turn; expected one: remove the conversation")
    spans = [chat.span(turn) for turn in (turns[-1:] if last_turn_only else turns)]
    _check_tokenizer(chat)
    if MARKS.search(str(tokenizer.chat_template)) and tokenizer.is_fast:  # only these tell where a mark's tokens are
        for span in spans:
            _check_marks(chat, span)
    if not reasoning:
        spans = [chat.without_reasoning(span) for span in spans]
    whole = spans[-1].text
    if not row_per_turn and all(whole.startswith(span.text) for span in spans):
        return [_row(chat, whole, spans)]
    return [_row(chat, span.text, [span]) for span in spans]


def truncate(row: Row, max_length: int) -> tuple[Row, bool]:
    """The row up to the last supervised turn that fits, and whether an answer was cut in its middle.

    Only where not even the first one fits is it cut in the middle; where it begins later than max_length, the row
    has nothing supervised left.
    """
    if len(row.input_ids) <= max_length:
        return row, False
    mask = row.loss_mask[: max_length + 1]
    end = next((i + 1 for i in reversed(range(max_length)) if mask[i] and not mask[i + 1]), None)
    kept = max_length if end is None else end
    return Row(row.input_ids[:kept], row.loss_mask[:kept]), end is None


def _row(chat: Chat, text: str, spans: Sequence[Span]) -> Row:
    bounds = [position for span in spans for position in (span.start, len(span.text))]
    ids, cuts = tokenize(chat.tokenizer, text, bounds, chat.where)
    mask: list[bool] = []
    for number, (start, end) in enumerate(pairwise([0, *cuts])):
        mask += [number % 2 == 1] * (end - start)
    return Row(ids, mask)


def _check_tokenizer(chat: Chat) -> None:
    """Refuse a tokenizer with a renderer of its own whose ids aren't those of the text that it renders."""
    from transformers import PreTrainedTokenizerBase

    if type(chat.tokenizer).apply_chat_template is PreTrainedTokenizerBase.apply_chat_template:
        return
    ids = chat.tokenizer.apply_chat_template(list(chat.messages), return_dict=False, **chat.kwargs)
    if ids != tokenize(chat.tokenizer, chat.text(chat.messages), [], chat.where)[0]:
        raise EyasError(
            f"{chat.where}: {type(chat.tokenizer).__name__} makes ids of a conversation that differ from those of the text "
            "it renders; expected the same: use the model's tokenizer.json with a chat template (verifier.tokenizer.path)"
        )


def _check_marks(chat: Chat, span: Span) -> None:
    """Compare with the template's own `{% generation %}` marks: the answer's tokens are marked, those of a question not.

    Tolerated: a closing token that isn't marked, marks on what the generation prompt forces, and marks on what the
    template adds after the stop token.
    """
    messages = list(chat.messages[: span.turn + 1])
    marked: Any = chat.tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True, **chat.kwargs
    )
    marks: list[int] = marked["assistant_masks"]
    question, header = _question(chat, span)
    ids, (first, last, start) = tokenize(chat.tokenizer, span.text, [question, header, span.start], chat.where)
    content = len(ids) - (chat.tokenizer.convert_ids_to_tokens(ids[-1]) in chat.stops)
    if all(marks[start:content]) and not any(marks[first:last]):
        return
    raise EyasError(
        f"{chat.where}: the template's {{% generation %}} marks disagree with its generation prompt on turn {span.turn + 1}: "
        f"of the answer's {content - start} tokens {sum(marks[start:content])} are marked, of those since the answer before "
        f"{sum(marks[first:last])}; expected all and none: mend the template (verifier.chat.template) or remove its marks"
    )


def _question(chat: Chat, span: Span) -> tuple[int, int]:
    """Where what was asked since the answer before begins and ends, in the span's text; empty where that isn't known."""
    earlier = [turn + 1 for turn, message in enumerate(chat.messages[: span.turn]) if message["role"] == "assistant"]
    before = chat.text(chat.messages[: earlier[-1]]) if earlier else ""
    asked = chat.text(chat.messages[: span.turn])
    if not (span.text.startswith(before) and span.text.startswith(asked)):
        return span.start, span.start
    return min(len(before), span.start), min(len(asked), span.start)
