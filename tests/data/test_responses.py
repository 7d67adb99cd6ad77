"""How a conversation is answered anew, turn by turn."""

import json

from eyas.data.formats import RawRow
from eyas.data.responses import Talk
from eyas.data.shapes import Conversation, Converter, Shape


def test_each_question_is_asked_after_the_answers_before_it() -> None:
    example = Converter(Shape.prompts, unanswered=True)(RawRow("here", {"turns": ["One?", "Two?"]}))
    assert isinstance(example, Conversation)
    talk = Talk(example, 0)
    said = []
    for answer in ("1", "2"):
        assert talk.ask()
        said += [talk.messages[-1]["content"], answer]
        talk.hear({"message": {"content": answer}, "finish_reason": "stop"})
    assert not talk.ask()
    assert said == ["One?", "1", "Two?", "2"]
    assert [it["content"] for it in json.loads(talk.row())["messages"]] == said
