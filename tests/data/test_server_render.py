"""The server's rendering, by ids alone, gives the masks written by hand; the server here is the tokenizer itself."""

from typing import Any

import pytest

from data.families import FAMILIES, Family, talk, tokenizer_of
from data.families.cases import CONVERSATIONS, EXPECTED
from data.test_render import row
from eyas.data.conversations import Conversation
from eyas.data.render import render
from eyas.data.server_render import RenderIds, render_by_ids
from eyas.data.spans import RefusedError


def renders_as(family: Family, kwargs: dict[str, Any]) -> RenderIds:
    """The ids that a server with this family's tokenizer reads."""

    def render_ids(conversation: Conversation, num_messages: int, prompt: bool) -> list[int]:
        tokenizer, messages = tokenizer_of(family), conversation.messages[:num_messages]
        if conversation.tools:
            kwargs["tools"] = conversation.tools
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False, **kwargs)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return render_ids


@pytest.mark.parametrize(
    ("name", "conversation", "kwargs", "expected"), EXPECTED, ids=[f"{case[0]}-{case[1]}" for case in EXPECTED]
)
def test_masks_are_those_written_by_hand(
    name: str, conversation: str, kwargs: dict[str, Any], expected: list[str]
) -> None:
    family = FAMILIES[name]
    found = render_by_ids(renders_as(family, kwargs), talk(CONVERSATIONS[conversation]), family.stop_ids)
    assert found == [row(family, one) for one in expected]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", ["chatml", "glm", "qwen3"])
def test_options_are_as_with_a_template(name: str, cut: bool) -> None:
    family, conversation = FAMILIES[name], talk(CONVERSATIONS["multi"], cut=cut)
    found = render_by_ids(renders_as(family, {}), conversation, family.stop_ids, last_turn_only=True)
    expected = render(tokenizer_of(family), conversation, {}, family.stop_ids, last_turn_only=True)
    assert found == expected


def test_an_answer_that_does_not_continue_its_prompt_is_refused() -> None:
    family = FAMILIES["minimax"]
    with pytest.raises(RefusedError, match="renders the answer of turn 2 differently"):
        render_by_ids(renders_as(family, {}), talk(CONVERSATIONS["single"]), family.stop_ids)
