"""A conversation -> `input_ids` and `loss_mask`, through the tokenizer's own chat template.

loss_mask is 1 where the verifier wrote the token. It comes from rendering each assistant turn with and without the
answer, never from a pattern: what the answer adds to "rendered up to the generation prompt" is what the verifier wrote,
up to its stop token. Where a template rewrites history (so that an earlier turn no longer looks as it did when it was
written), each turn becomes a row of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from eyas.data.conversations import Conversation
from eyas.errors import EyasError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Row:
    """One training document."""

    input_ids: list[int]
    loss_mask: list[bool]


def render(
    tokenizer: "PreTrainedTokenizerBase", conversation: Conversation, kwargs: dict[str, Any], stop_ids: Sequence[int]
) -> list[Row]:
    """Rows of one conversation: one where its rendering is prefix-stable, else one per assistant turn.

    Raises:
        EyasError: the generation prompt is not how the answer begins, so no span can be told.
    """

    def ids(messages: list[dict[str, str]], *, prompt: bool) -> list[int]:
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False, **kwargs)
        return cast(list[int], rendered)

    messages = conversation.messages
    whole = ids(messages, prompt=False)
    rows: list[Row] = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, answered = ids(messages[:turn], prompt=True), ids(messages[: turn + 1], prompt=False)
        if answered[: len(prompt)] != prompt:
            raise EyasError(
                f"{conversation.where}: the chat template renders the answer of turn {turn + 1} differently from how its "
                "generation prompt begins, so the verifier's tokens can't be told apart"
            )
        end = len(prompt) + _written(
            answered[len(prompt) :], stop_ids, cut=conversation.cut and turn == len(messages) - 1
        )
        rows.append(Row(answered[:end], [False] * len(prompt) + [True] * (end - len(prompt))))
    if all(whole[: len(row.input_ids)] == row.input_ids for row in rows):
        mask = [False] * len(rows[-1].input_ids)
        for row in rows:
            mask = [
                a or b for a, b in zip(mask, row.loss_mask + [False] * (len(mask) - len(row.loss_mask)), strict=True)
            ]
        return [Row(rows[-1].input_ids, mask)]
    return rows


def _written(answer: list[int], stop_ids: Sequence[int], *, cut: bool) -> int:
    """How many of the answer's rendered tokens the verifier wrote: up to its stop token, or without it where it was cut."""
    last_stop = next((i for i in reversed(range(len(answer))) if answer[i] in stop_ids), None)
    if last_stop is None:
        return len(answer)
    return last_stop if cut else last_stop + 1
