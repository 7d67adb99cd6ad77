"""How a conversation is answered anew, turn by turn, and which are."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.artifact import building, complete, write_file
from eyas.config import Config
from eyas.data.formats import RawRow
from eyas.data.mixture import deal
from eyas.data.prepare import prepare
from eyas.data.report import dropped
from eyas.data.responses import CONVERSATIONS_PER_SHARD, Talk, _parts, _sampled
from eyas.data.shapes import Conversation, Converter, Example, Shape
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.stages import answered_data, responses_artifact, tokens_artifact
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
    """Nor are as many of the answers set aside a second time, however many samples there are; of what is held out, the first
    answer is."""
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": it}) + "\n" for it in ("A?", "B?", "C?", "a?", "D?")))
    config = tiny(
        f"data.path={file}",
        *("data.responses=regenerate", "data.set_aside=2", "data.held_out=1"),
        *("generation.samples=2", "generation.temperature=1"),
    )
    counts: Counter[str] = Counter()
    [part] = _parts(config, counts)
    talks = _sampled(part, 0, config.generation.samples)
    assert [talk.original.messages[0]["content"] for talk in talks] == ["C?", "C?", "D?", "D?"]
    assert (counts["set_aside"], counts["like_set_aside"]) == (2, 1)

    with building(artifact := responses_artifact(config)) as partial:
        assert partial is not None
        write_file(partial / "responses-00000.jsonl", _answered(talks))
        complete(artifact, partial, dict(counts))
    prepare(config)
    tokens = Tokens(tokens_artifact(config).directory)
    assert (tokens.num_train_rows, tokens.num_rows) == (2, 3)
    assert dropped(tokens.counts) == [
        ("2 conversations", "set aside"),
        ("1 conversation", "the same opening question as one set aside"),
        ("1 conversation", "the same opening question as a held-out one"),
    ]


def test_answers_are_added_to_those_that_are_there(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """The answer that was there is held out, not a new one to the same question; a question alone is refused."""
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": it, "response": f"{it[0]}."}) + "\n" for it in ("A?", "B?", "C?")))
    data = (f"data.path={file}", "data.responses=add", "data.held_out=1")
    with pytest.raises(
        EyasError, match=r"data\.jsonl are not known to be tiny_llama's; set data\.answers_by=tiny_llama"
    ):
        tokens_artifact(tiny(*data))
    data += ("data.answers_by=tiny_llama",)
    config = tiny(*data)
    assert responses_artifact(config) != responses_artifact(tiny(f"data.path={file}", "data.responses=regenerate"))
    [part] = _parts(config, Counter())
    with building(artifact := responses_artifact(config)) as partial:
        assert partial is not None
        write_file(partial / "kept-00000.jsonl", "".join(Talk.kept(it).row() for it in part))
        write_file(partial / "responses-00000.jsonl", _answered(_sampled(part, 0, 1)))
        complete(artifact, partial, {})
    found = list(deal(answered_data(config), Counter()))
    assert [(_said(it.example), it.held_out) for it in found] == [
        ("A.", True),
        ("B.", False),
        ("C.", False),
        ("Yes.", False),
        ("Yes.", False),
    ]

    file.write_text(file.read_text() + '{"prompt": "D?"}\n')
    with pytest.raises(EyasError, match=r"data\.jsonl:4: expected an object with `prompt` and `response`"):
        list(_parts(tiny(*data), Counter()))


def test_no_two_samples_have_one_seed() -> None:
    """Whatever the shard."""
    part = [Conversation(str(number), [], False) for number in range(CONVERSATIONS_PER_SHARD)]
    numbers = [talk.number for number in (0, 1) for talk in _sampled(part, number, 3)]
    assert numbers == list(range(2 * 3 * CONVERSATIONS_PER_SHARD))


def _answered(talks: list[Talk]) -> str:
    for talk in talks:
        talk.ask()
        talk.hear({"message": {"content": "Yes."}, "finish_reason": "stop"})
    return "".join(talk.row() for talk in talks)


def _said(example: Example) -> str:
    assert isinstance(example, Conversation)
    return str(example.messages[-1]["content"])
