"""A conversation -> `input_ids` and `loss_mask`, through the server that will serve the verifier.

For verifiers whose conversations are rendered by the server's own code and not by a chat template (`verifier.chat.renderer:
server`). Masks are made as in `eyas.data.render`, of token ids: what the answer adds to the ids of the generation prompt
is what the verifier wrote, up to its first stop token and with it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import httpx

from eyas.data.conversations import Conversation
from eyas.data.render import Row
from eyas.data.spans import RefusedError
from eyas.errors import EyasError
from eyas.serving.endpoint import failure, headers, said
from eyas.serving.server import Server

RenderIds = Callable[[Conversation, int, bool], list[int]]
"""(conversation, number of its first messages, with the generation prompt) -> token ids."""

RENDER_SECONDS = 60.0


class ServerRenderer:
    """Asks a server for the ids that it would read; every process has a connection of its own."""

    def __init__(self, server: Server, kwargs: dict[str, Any]) -> None:
        self.endpoints, self.model, self.kwargs = server.endpoints, server.model, kwargs

    def __call__(self, conversation: Conversation, num_messages: int, prompt: bool) -> list[int]:
        """The token ids of the first messages.

        Raises:
            RefusedError: the server does not take this conversation.
            EyasError: it does not answer.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": conversation.messages[:num_messages],
            "add_generation_prompt": prompt,
        }
        if conversation.tools:
            body["tools"] = conversation.tools
        if self.kwargs:
            body["chat_template_kwargs"] = self.kwargs
        process = os.getpid()
        url = f"{self.endpoints[process % len(self.endpoints)]}/v1/chat/completions/render"
        try:
            response = _client(process).post(url, json=body)
        except httpx.TransportError as error:
            raise EyasError(f"{url} does not answer ({failure(error)}); the same command carries on") from None
        if response.is_success:
            ids: list[int] = response.json()["token_ids"]
            return ids
        message = f"HTTP {response.status_code}: {said(response)}"
        if response.status_code == 404:
            raise EyasError(f"{url}: {message}; this server can't render: a newer vLLM can, or chat.renderer=tokenizer")
        raise RefusedError(f"{conversation.where}: the server can't render turns 1 to {num_messages} ({message})")


@lru_cache(maxsize=1)
def _client(process: int) -> httpx.Client:
    """Not shared with a parent process: two would read each other's answers."""
    return httpx.Client(headers=headers(), timeout=RENDER_SECONDS, trust_env=False)


def render_by_ids(
    render_ids: RenderIds, conversation: Conversation, stop_ids: Sequence[int], *, last_turn_only: bool = False
) -> list[Row]:
    """Rows of one conversation: one where its rendering is prefix-stable, else one per assistant turn.

    Raises:
        RefusedError: the server doesn't take the conversation, or renders an answer differently from its own prompt.
    """
    turns = [turn for turn, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    rows = [_row(render_ids, conversation, turn, stop_ids) for turn in (turns[-1:] if last_turn_only else turns)]
    whole = rows[-1].input_ids
    if any(whole[: len(row.input_ids)] != row.input_ids for row in rows):
        return rows
    mask = [False] * len(whole)
    for row in rows:
        mask[: len(row.loss_mask)] = [a or b for a, b in zip(mask, row.loss_mask, strict=False)]
    return [Row(whole, mask)]


def _row(render_ids: RenderIds, conversation: Conversation, turn: int, stop_ids: Sequence[int]) -> Row:
    """One turn and what came before it; only the turn is supervised."""
    prompt, answered = render_ids(conversation, turn, True), render_ids(conversation, turn + 1, False)
    start, is_last = len(prompt), turn + 1 == len(conversation.messages)
    if answered[:start] != prompt:
        raise RefusedError(
            f"{conversation.where}: the server renders the answer of turn {turn + 1} differently from how its generation "
            "prompt begins, so the verifier's tokens can't be told apart; give the answer its reasoning_content, or set "
            "verifier.chat.kwargs so that the prompt doesn't open the reasoning"
        )
    stop = next((i for i in range(start, len(answered)) if answered[i] in stop_ids), None)
    if stop is not None:
        ids = answered[: stop if conversation.cut and is_last else stop + 1]
    elif is_last:
        ids = answered
    else:
        ids = answered + _next_role(render_ids, conversation, turn, answered, stop_ids)
    return Row(ids, [False] * start + [True] * (len(ids) - start))


def _next_role(
    render_ids: RenderIds, conversation: Conversation, turn: int, answered: list[int], stop_ids: Sequence[int]
) -> list[int]:
    """The next turn's role token, where it is a stop token: what the verifier writes when no token closes a turn."""
    following = {**conversation.messages[turn + 1], "content": ""}
    emptied = replace(conversation, messages=[*conversation.messages[: turn + 1], following])
    ids = render_ids(emptied, turn + 2, False)
    # Where history is rewritten the answer is no prefix, but with its content emptied the turn's role comes last.
    first = len(answered) if ids[: len(answered)] == answered else 0
    return next(([token] for token in reversed(ids[first:]) if token in stop_ids), [])
