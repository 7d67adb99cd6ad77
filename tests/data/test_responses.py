"""How a conversation is answered anew, turn by turn, and which are."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from eyas.artifact import building, complete, write_file
from eyas.config import Config
from eyas.data.formats import RawRow
from eyas.data.prepare import prepare
from eyas.data.report import dropped
from eyas.data.responses import Talk, _parts
from eyas.data.shapes import Conversation, Converter, Shape
from eyas.data.tokens import Tokens
from eyas.stages import responses_artifact, tokens_artifact
from eyas.verifier.checkpoint import Checkpoint


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


def test_what_is_set_aside_is_not_answered(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Nor are as many of the answers set aside a second time, however many samples there are."""
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": it}) + "\n" for it in ("A?", "B?", "C?", "a?", "D?")))
    config = tiny(
        f"data.path={file}",
        *("data.responses=regenerate", "data.set_aside=2", "data.held_out=2"),
        *("generation.samples=2", "generation.temperature=1"),
    )
    counts: Counter[str] = Counter()
    [talks] = _parts(config, counts)
    assert [talk.original.messages[0]["content"] for talk in talks] == ["C?", "C?", "D?", "D?"]
    assert (counts["set_aside"], counts["like_set_aside"]) == (2, 1)

    for talk in talks:
        talk.ask()
        talk.hear({"message": {"content": "Yes."}, "finish_reason": "stop"})
    with building(artifact := responses_artifact(config)) as partial:
        assert partial is not None
        write_file(partial / "responses-00000.jsonl", "".join(talk.row() for talk in talks))
        complete(artifact, partial, dict(counts))
    prepare(config)
    tokens = Tokens(tokens_artifact(config).directory)
    assert (tokens.num_train_rows, tokens.num_rows) == (2, 4)
    assert dropped(tokens.counts) == [
        ("2 conversations", "set aside"),
        ("1 conversation", "the same opening question as one set aside"),
    ]
