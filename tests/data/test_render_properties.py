"""The loss mask of random conversations, over all template families."""

from itertools import groupby
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.families import FAMILIES, Family, talk, tokenizer_of
from data.families.cases import answer, user
from eyas.data.render import Row, render, truncate

settings.register_profile(
    "mask", derandomize=True, max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("mask")

TEXTS = st.text(st.sampled_from("ab \n\t.,<|>[]é語😀_"), max_size=12)
MERGES = [("Ċ", "Ċ"), ("Ġ", "a"), ("a", "b"), ("Ċ", "a"), ("<", "|"), (">", "Ċ")]
"""Also across boundaries: a prompt's line break with an answer's first letter."""


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Family, list[dict[str, Any]], dict[str, Any]]:
    """A family, messages that it can render, and the template arguments."""
    family = FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))]
    reasoned = family.reasoned is not None and (family.always_reasons or draw(st.booleans()))
    messages = []
    if family.has_system and draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    for _ in range(draw(st.integers(1, 4))):
        reasoning = "r" + draw(TEXTS) if reasoned else None
        messages += [user(draw(TEXTS)), answer(draw(TEXTS), reasoning)]
    if draw(st.booleans()):
        messages.append(user(draw(TEXTS)))
    return family, messages, family.kwargs if reasoned else {}


def expected(family: Family, messages: list[dict[str, Any]], *, reasoning: bool = True) -> list[str]:
    """What the verifier wrote of each turn."""
    texts = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        content = message["content"].strip() if family.trims else message["content"]
        thought = message.get("reasoning_content")
        form = str(family.answer if thought is None else family.reasoned)
        before = form.partition("{content}")[0]
        if not reasoning and before.strip():
            form = form.removeprefix(before)
        text = form.format(content=content, reasoning=thought)
        if family.name == "glm" and turn + 1 == len(messages):  # no role token follows
            text = text.removesuffix("<|user|>")
        texts.append(text)
    return texts


def spans(family: Family, rows: list[Row]) -> list[str]:
    """The supervised runs, as text."""
    return [
        tokenizer_of(family).decode([token for token, _ in run])
        for row in rows
        for mask, run in groupby(zip(row.input_ids, row.loss_mask, strict=True), key=lambda pair: pair[1])
        if mask
    ]


@given(conversations())
def test_supervised_spans_are_the_answers(drawn: tuple[Family, list[dict[str, Any]], dict[str, Any]]) -> None:
    family, messages, kwargs = drawn
    conversation, tokenizer = talk(messages), tokenizer_of(family)
    rows = render(tokenizer, conversation, kwargs, family.stop_ids)
    assert spans(family, rows) == [text for text in expected(family, messages) if text]
    per_turn = render(tokenizer, conversation, kwargs, family.stop_ids, row_per_turn=True)
    assert len(per_turn) == sum(message["role"] == "assistant" for message in messages)
    assert supervised(rows) == supervised(per_turn)
    assert all(sum(mask and not after for mask, after in pairs(row)) <= 1 for row in per_turn)
    [last] = render(tokenizer, conversation, kwargs, family.stop_ids, last_turn_only=True)
    assert last == per_turn[-1]


@given(conversations())
def test_without_reasoning_the_visible_answers_are_supervised(
    drawn: tuple[Family, list[dict[str, Any]], dict[str, Any]],
) -> None:
    family, messages, kwargs = drawn
    rows = render(tokenizer_of(family), talk(messages), kwargs, family.stop_ids, reasoning=False)
    assert spans(family, rows) == [text for text in expected(family, messages, reasoning=False) if text]


def supervised(rows: list[Row]) -> list[int]:
    return [token for row in rows for token, mask in zip(row.input_ids, row.loss_mask, strict=True) if mask]


def pairs(row: Row) -> list[tuple[bool, bool]]:
    return list(zip(row.loss_mask, [*row.loss_mask[1:], False], strict=True))


@given(conversations())
def test_a_merging_tokenizer_supervises_the_same_text(
    drawn: tuple[Family, list[dict[str, Any]], dict[str, Any]],
) -> None:
    """All but the part of a token that begins in the prompt."""
    family, messages, kwargs = drawn
    tokenizer = tokenizer_of(family, *MERGES)
    stops = [tokenizer.convert_tokens_to_ids(token) for token in family.stops.split()]
    merged = render(tokenizer, talk(messages), kwargs, stops)
    plain = render(tokenizer_of(family), talk(messages), kwargs, family.stop_ids)
    for one, other in zip(merged, plain, strict=True):
        assert tokenizer.decode(one.input_ids) == tokenizer_of(family).decode(other.input_ids)
        whole, kept = tokenizer_of(family).decode(supervised([other])), tokenizer.decode(supervised([one]))
        answers = sum(mask and not after for mask, after in pairs(other))
        assert len(whole) - answers <= len(kept) <= len(whole)


@given(conversations(), st.integers(1, 120))
def test_truncation_keeps_whole_turns(
    drawn: tuple[Family, list[dict[str, Any]], dict[str, Any]], max_length: int
) -> None:
    family, messages, kwargs = drawn
    for row in render(tokenizer_of(family), talk(messages), kwargs, family.stop_ids):
        kept, inside = truncate(row, max_length)
        length = len(kept.input_ids)
        assert length <= max_length
        assert (kept.input_ids, kept.loss_mask) == (row.input_ids[:length], row.loss_mask[:length])
        if not inside and length < len(row.input_ids):
            assert row.loss_mask[length - 1]
            assert not row.loss_mask[length]
            assert not any(mask and not after for mask, after in pairs(row)[length:max_length])
