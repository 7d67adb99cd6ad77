"""Sources into one stream: shares, caps, weights, doubles, and a split that new data can't change."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.compose import compose
from eyas.data.conversations import Conversation
from eyas.data.mixture import Dealt, deal, mixture_identity, split_identity
from eyas.data.schema import SourceConfig
from eyas.errors import EyasError
from reading import data_config


def rows(file: Path, *questions: str, answer: str = "Yes.") -> Path:
    turns = [[{"role": "user", "content": it}, {"role": "assistant", "content": answer}] for it in questions]
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    return file


def numbered(file: Path, start: int, end: int) -> Path:
    return rows(file, *(f"What is {number}?" for number in range(start, end)))


def question(dealt: Dealt) -> str:
    assert isinstance(dealt.example, Conversation)
    return str(dealt.example.messages[0]["content"])


def dealt(path: Path | None, **changes: Any) -> tuple[list[Dealt], Counter[str]]:
    counts: Counter[str] = Counter()
    return list(deal(data_config(path, **changes), counts)), counts


def sides(found: list[Dealt]) -> dict[str, bool]:
    return {question(it): it.held_out for it in found}


def source(path: Path, **changes: Any) -> SourceConfig:
    data = data_config(path, **changes)
    return SourceConfig(**{name: getattr(data, name) for name in SourceConfig.__dataclass_fields__})


def test_more_data_moves_nothing_across(tmp_path: Path) -> None:
    before = sides(dealt(numbered(tmp_path / "b.jsonl", 0, 2000), held_out=0.1)[0])
    numbered(tmp_path / "a.jsonl", 2000, 4000)  # sorted before the file that was there
    after = sides(dealt(tmp_path, held_out=0.1)[0])
    assert len(after) == 4000
    assert before == {it: after[it] for it in before}
    assert 0.07 < sum(before.values()) / len(before) < 0.13


def test_a_larger_share_only_adds_to_it(tmp_path: Path) -> None:
    file = numbered(tmp_path / "a.jsonl", 0, 1000)
    small, large = (sides(dealt(file, held_out=share)[0]) for share in (0.05, 0.2))
    assert all(large[it] for it in small if small[it])


def test_a_cap_leaves_the_rest_of_the_share_out_of_training_too(tmp_path: Path) -> None:
    file = numbered(tmp_path / "a.jsonl", 0, 1000)
    whole, _ = dealt(file, held_out=0.1)
    capped, counts = dealt(file, held_out=0.1, max_held_out=20)
    assert sum(it.held_out for it in capped) == 20
    assert counts["held_out_beyond_cap"] == sum(it.held_out for it in whole) - 20 > 0
    assert {question(it) for it in capped if not it.held_out} == {question(it) for it in whole if not it.held_out}


@pytest.mark.parametrize("held_out", [1, 0.5])
def test_a_question_that_is_held_out_is_never_trained(tmp_path: Path, held_out: float) -> None:
    file = rows(tmp_path / "a.jsonl", "What is it?", "Other?", "what  is\nIT?", "Third?")
    found, counts = dealt(file, held_out=held_out)
    held = {" ".join(question(it).split()).casefold() for it in found if it.held_out}
    assert not held & {" ".join(question(it).split()).casefold() for it in found if not it.held_out}
    assert counts["like_held_out"] == ("what is it?" in held)  # nor is it held out twice
    assert counts["rows"] == len(found) + counts["like_held_out"]


def test_doubles_go_only_where_asked(tmp_path: Path) -> None:
    file = rows(tmp_path / "a.jsonl", "Hi", "Hi", "Ho")
    found, counts = dealt(file, deduplicate=True, held_out=0.001)
    assert ([question(it) for it in found], counts["duplicate_rows"]) == (["Hi", "Ho"], 1)
    assert len(dealt(file, held_out=0.001)[0]) == 3


def test_a_sample_is_chosen_by_content_and_seed(tmp_path: Path) -> None:
    file = numbered(tmp_path / "b.jsonl", 0, 1000)
    first, counts = dealt(file, sample=0.3, held_out=0.001)
    assert counts["not_sampled"] == 1000 - len(first)
    assert 250 < len(first) < 350
    numbered(tmp_path / "a.jsonl", 1000, 1500)
    more = {question(it) for it in dealt(tmp_path, sample=0.3, held_out=0.001)[0]}
    assert {question(it) for it in first} == {it for it in more if int(it.split()[-1][:-1]) < 1000}
    assert {question(it) for it in dealt(file, sample=0.3, seed=1, held_out=0.001)[0]} != {question(it) for it in first}


def test_a_cap_takes_the_first(tmp_path: Path) -> None:
    found, _ = dealt(numbered(tmp_path / "a.jsonl", 0, 50), max_conversations=7, held_out=0.001)
    assert [question(it) for it in found] == [f"What is {number}?" for number in range(7)]


def test_weights_hold_until_a_source_is_used_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixture = {
        "chat": source(numbered(tmp_path / "chat.jsonl", 0, 1000), weight=3),
        "math": source(numbered(tmp_path / "math.jsonl", 5000, 5050), weight=1),
    }
    found, _ = dealt(None, mixture=mixture, held_out=0.001)
    names = Counter(it.source for it in found)
    assert names["math"] == 50
    assert 150 <= names["chat"] <= 153
    for end in range(4, len(found), 4):  # the proportion holds all along, not only at the end
        assert abs(Counter(it.source for it in found[:end])["math"] - end / 4) <= 1
    assert "math is used up: " in capsys.readouterr().out


def test_without_weights_all_of_every_source_is_taken(tmp_path: Path) -> None:
    mixture = {"a": source(numbered(tmp_path / "a.jsonl", 0, 5)), "b": source(numbered(tmp_path / "b.jsonl", 5, 20))}
    found, counts = dealt(None, mixture=mixture, held_out=0.001)
    assert [it.source for it in found] == ["a"] * 5 + ["b"] * 15
    assert counts["conversations"] == 20


def test_what_is_set_aside_is_used_for_nothing_and_the_rest_is_dealt_as_if_it_began_there(tmp_path: Path) -> None:
    whole, rest = numbered(tmp_path / "whole.jsonl", 0, 300), numbered(tmp_path / "rest.jsonl", 40, 300)
    for held_out in (0.1, 25):
        found, counts = dealt(whole, set_aside=40, held_out=held_out, max_held_out=20)
        expected, counts_of_rest = dealt(rest, held_out=held_out, max_held_out=20)
        assert [(question(it), it.held_out) for it in found] == [(question(it), it.held_out) for it in expected]
        assert counts - counts_of_rest == {"set_aside": 40, "rows": 40}
    assert sides(found) == {f"What is {number}?": number < 65 for number in range(40, 300)}


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("held_out", [1, 0.5])
def test_a_question_that_is_set_aside_is_neither_trained_nor_held_out(
    tmp_path: Path, held_out: float, deduplicate: bool
) -> None:
    """Doubles of each other that are set aside count as two, so it is the same test with and without `deduplicate`."""
    file = rows(
        tmp_path / "a.jsonl",
        "What is it?",
        "What is it?",
        "what  is\nIT?",
        *(f"{n}?" for n in range(20)),
        "What is it?",
    )
    found, counts = dealt(file, set_aside=2, held_out=held_out, deduplicate=deduplicate)
    assert [question(it) for it in found] == [f"{n}?" for n in range(20)]
    assert [it.held_out for it in found].count(True) == 1 or held_out < 1
    assert (counts["set_aside"], counts["like_set_aside"], counts["like_held_out"]) == (2, 2, 0)
    assert counts["rows"] == len(found) + 4


def test_it_is_set_aside_of_what_sample_and_cap_leave(tmp_path: Path) -> None:
    file = numbered(tmp_path / "a.jsonl", 0, 1000)
    capped, counts = dealt(file, max_conversations=7, set_aside=2)
    assert sides(capped) == {f"What is {number}?": number == 2 for number in range(2, 7)}
    assert (counts["set_aside"], counts["conversations"]) == (2, 5)
    sample = [question(it) for it in dealt(file, sample=0.3)[0]]
    assert [question(it) for it in dealt(file, sample=0.3, set_aside=20)[0]] == sample[20:]


def test_it_is_set_aside_of_the_whole_mixture(tmp_path: Path) -> None:
    a, b = numbered(tmp_path / "a.jsonl", 0, 5), numbered(tmp_path / "b.jsonl", 5, 20)
    found, _ = dealt(None, mixture={"a": source(a), "b": source(b)}, set_aside=7, held_out=2)
    assert sides(found) == {f"What is {number}?": number < 9 for number in range(7, 20)}
    weighted = {"a": source(a, weight=1), "b": source(b, weight=3)}
    everything, _ = dealt(None, mixture=weighted)
    found, counts = dealt(None, mixture=weighted, set_aside=8)
    assert [question(it) for it in found] == [question(it) for it in everything][8:]
    assert Counter(it.source for it in everything[:8]) == {"a": 2, "b": 6}  # of each as much as its weight says
    assert counts["set_aside"] == 8


def test_the_chat_of_the_project_can_be_set_aside_and_held_out() -> None:
    data = compose(["data=smollm2_chat", "data.set_aside=54", "data.held_out=54"], []).data
    counts: Counter[str] = Counter()
    found = [(int(it.example.where.rpartition(":")[2]) - 1, it.held_out) for it in deal(data, counts)]
    assert found == [(row, row < 108) for row in range(54, 1080)]
    assert (counts["rows"], counts["set_aside"], counts["like_set_aside"]) == (1080, 54, 0)


def test_something_must_remain(tmp_path: Path) -> None:
    file = rows(tmp_path / "a.jsonl", "A?", "B?", "a?")
    for number, words in ((3, "3 conversations are set aside; lower it"), (9, "=9: nothing remains, 3 conv")):
        with pytest.raises(EyasError, match=words):
            dealt(file, set_aside=number)
    with pytest.raises(EyasError, match="2 conversations are set aside, 1 open like one of them; lower it"):
        dealt(file, set_aside=2)


def test_identity_is_of_all_that_changes_what_is_dealt(tmp_path: Path) -> None:
    numbered(tmp_path / "a.jsonl", 0, 5)
    numbered(tmp_path / "b.jsonl", 0, 5)

    def identity(file: str, **changes: Any) -> tuple[Any, Any]:
        data = data_config(tmp_path / file, **changes)
        return mixture_identity(data), split_identity(data)

    plain = identity("a.jsonl")
    assert plain == identity("b.jsonl", name="other", max_bad_rows=3, num_processes=2)
    changes: list[dict[str, Any]] = [
        {"held_out": 2},
        {"max_held_out": 3},
        {"set_aside": 2},
        {"seed": 1},
        {"deduplicate": True},
        {"sample": 0.5},
        {"max_conversations": 3},
    ]
    for change in changes:
        assert plain != identity("a.jsonl", **change), change


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    file = numbered(tmp_path / "a.jsonl", 0, 5)
    for changes, words in (
        ({"held_out": 0}, "held_out=0"),
        ({"held_out": 1.5}, "held_out=1.5"),
        ({"set_aside": -1}, "set_aside=-1: must be at least 0"),
        ({"sample": 0}, "sample=0"),
        ({"weight": 0}, "weight=0"),
        ({"mixture": {"a": source(file)}}, "one of the two"),
    ):
        with pytest.raises(EyasError, match=words):
            data_config(file, **changes)
    with pytest.raises(EyasError, match="set_aside"):
        compose(["data.set_aside=1.5"], [])
    with pytest.raises(EyasError, match="one of the two"):
        data_config(None)
    with pytest.raises(EyasError, match="b has no weight"):
        data_config(None, mixture={"a": source(file, weight=1), "b": source(file)})
