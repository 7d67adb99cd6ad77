"""A running server renders conversations and answers them anew, for stages that are given nothing but its address."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.mixture import deal
from eyas.data.prepare import prepare
from eyas.data.responses import generate
from eyas.data.shapes import ANSWER_TO_COME, Conversation
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.serving.client import Request, send
from eyas.stages import answered_data, canary_file, regenerates, responses_artifact, tokens_artifact
from served import Served

MAX_TOKENS = 12
OWN = "data.answers_by=tiny_llama"


@pytest.fixture
def configured(served: Served, tmp_path: Path) -> Callable[..., Config]:
    """A configuration that uses the running server."""

    def composed(*overrides: str) -> Config:
        options = ["verifier=tiny_llama", f"verifier.path={served.checkpoint.directory}", f"outputs={tmp_path}/outputs"]
        options += ["server=endpoints", f"server.endpoints=[{served.server.endpoints[0]}]", "data.num_processes=2"]
        return compose([*options, *overrides], [])

    return composed


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def jsonl(file: Path, *conversations: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    return file


def test_the_servers_rendering_makes_the_same_tokens(configured: Callable[..., Config], tmp_path: Path) -> None:
    talks = [
        [user(f"Question {number}?"), answer("Yes."), user("And?"), answer(f"No {number}.")] for number in range(20)
    ]
    file = jsonl(tmp_path / "data.jsonl", *talks)
    by_template = configured(f"data.path={file}", "data.held_out=4")
    by_server = configured(f"data.path={file}", "data.held_out=4", "verifier.chat.renderer=server")
    rows = []
    for config in (by_template, by_server):
        prepare(config)
        tokens = Tokens(tokens_artifact(config).directory)
        rows.append([[it.tolist() for it in tokens.row(index)] for index in range(tokens.num_rows)])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 20


def test_answers_are_the_verifiers_own_turn_by_turn(
    configured: Callable[..., Config], served: Served, tmp_path: Path
) -> None:
    called = [user("Call."), answer("calling"), {"role": "tool", "content": "42"}, answer("It is 42.")]
    file = jsonl(
        tmp_path / "data.jsonl",
        [
            {"role": "system", "content": "Be brief."},
            user("One?"),
            answer("1"),
            user("Two?"),
            answer("2"),
            user("Three?"),
        ],
        called,
    )
    settings = ["generation=greedy", f"generation.max_tokens={MAX_TOKENS}", "data.responses=regenerate"]
    config = configured(f"data.path={file}", *settings)
    generate(config)
    artifact = responses_artifact(config)
    lines = (artifact.directory / "responses-00000.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [len(row["messages"]) for row in rows] == [3, 2]  # cut at 12 tokens, as a random verifier never ends
    assert all(row["finish"] == "length" for row in rows)
    for row in rows:
        *asked, answered = row["messages"]
        body = {"messages": asked, "max_tokens": MAX_TOKENS, "temperature": 0}
        [said] = send(served.server, [Request(0, "/v1/chat/completions", body)])
        assert answered["content"] == said.body["choices"][0]["message"]["content"]
    assert canary_file(config).exists()

    again = configured(f"data.path={artifact.directory}", "data.responses=auto", "experiment=none", *settings[:2])
    assert not regenerates(again)
    other = configured(f"data.path={file}", "data.responses=auto", "experiment=none")
    assert regenerates(other)


def test_several_samples_differ_and_are_the_same_again(configured: Callable[..., Config], tmp_path: Path) -> None:
    file = jsonl(tmp_path / "data.jsonl", [user("One?"), answer("1")])
    settings = [
        "generation.max_tokens=12",
        "generation.samples=3",
        "generation.temperature=1",
        "data.responses=regenerate",
    ]
    found = []
    for outputs in ("a", "b"):
        config = configured(f"data.path={file}", f"outputs={tmp_path}/{outputs}", *settings)
        generate(config)
        text = (responses_artifact(config).directory / "responses-00000.jsonl").read_text()
        found.append([json.loads(line)["messages"][-1]["content"] for line in text.splitlines()])
    assert found[0] == found[1]
    assert len({*found[0]}) == 3


def test_new_answers_are_added_to_those_that_are_there(configured: Callable[..., Config], tmp_path: Path) -> None:
    file = jsonl(tmp_path / "data.jsonl", [user("One?"), answer("1")], [user("Two?"), answer("2")])
    config = configured(f"data.path={file}", "generation.max_tokens=12", "data.responses=add", "data.held_out=1", OWN)
    generate(config)
    talks = [it.example for it in deal(answered_data(config), Counter())]
    messages = [talk.messages for talk in talks if isinstance(talk, Conversation)]
    asked, said = zip(*([it["content"] for it in talk] for talk in messages), strict=True)
    assert asked == ("One?", "Two?", "Two?")  # the first is held out, once
    assert said[:2] == ("1", "2")
    assert said[2] != "2"


def test_questions_alone_are_answered(configured: Callable[..., Config], tmp_path: Path) -> None:
    """As MT-Bench has them; the second turn is not asked, since a random verifier's first answer is cut."""
    file = tmp_path / "question.jsonl"
    file.write_text('{"question_id": 81, "turns": ["One?", "Two?"]}\n{"question_id": 82, "turns": ["Three?"]}\n')
    config = configured(f"data.path={file}", "generation.max_tokens=12", "data.responses=auto", "experiment=none")
    generate(config)
    lines = (responses_artifact(config).directory / "responses-00000.jsonl").read_text().splitlines()
    talks = [json.loads(line)["messages"] for line in lines]
    assert [(talk[0]["content"], [it["role"] for it in talk]) for talk in talks] == [
        ("One?", ["user", "assistant"]),
        ("Three?", ["user", "assistant"]),
    ]
    assert all(talk[1]["content"] != ANSWER_TO_COME for talk in talks)


def test_rows_without_turns_are_refused(configured: Callable[..., Config], tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "nothing to answer"}\n')
    with pytest.raises(EyasError, match=r"data\.jsonl:1: nothing to answer"):
        generate(configured(f"data.path={file}", "data.responses=regenerate"))
