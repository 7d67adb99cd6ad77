"""The loss mask of every template family against masks written by hand, token by token."""

import re
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from data.families import FAMILIES, Family, talk, tokenizer_of
from data.families.cases import CALLING, CONVERSATIONS, EXPECTED, RESULT, answer, user
from eyas.data.render import Row, render, truncate
from eyas.errors import EyasError

CHATML, GLM, QWEN3, HARMONY = (FAMILIES[name] for name in ("chatml", "glm", "qwen3", "harmony"))
HEAD = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def row(family: Family, marked: str) -> Row:
    """The row of a text with its supervised parts between ⟦ and ⟧."""
    ids: list[int] = []
    mask: list[bool] = []
    for number, part in enumerate(re.split("[⟦⟧]", marked)):
        part_ids = tokenizer_of(family)(part, add_special_tokens=False)["input_ids"]
        ids += part_ids
        mask += [number % 2 == 1] * len(part_ids)
    return Row(ids, mask)


def marked(family: Family, rendered: Row) -> str:
    """A row as a text with its supervised parts between ⟦ and ⟧."""
    parts, previous = [], False
    for token, mask in zip(rendered.input_ids, rendered.loss_mask, strict=True):
        parts.append(("⟦" if mask else "⟧") * (mask != previous) + tokenizer_of(family).decode([token]))
        previous = mask
    return "".join(parts) + "⟧" * previous


def rows(family: Family, messages: list[dict[str, Any]], **options: Any) -> list[str]:
    cut, kwargs = options.pop("cut", False), options.pop("kwargs", {})
    conversation = talk(messages, cut=cut, tools=options.pop("tools", None))
    rendered = render(tokenizer_of(family), conversation, kwargs, family.stop_ids, **options)
    return [marked(family, one) for one in rendered]


@pytest.mark.parametrize(
    ("name", "conversation", "kwargs", "expected"), EXPECTED, ids=[f"{case[0]}-{case[1]}" for case in EXPECTED]
)
def test_mask_is_the_one_written_by_hand(
    name: str, conversation: str, kwargs: dict[str, Any], expected: list[str]
) -> None:
    family = FAMILIES[name]
    rendered = render(tokenizer_of(family), talk(CONVERSATIONS[conversation]), kwargs, family.stop_ids)
    assert rendered == [row(family, one) for one in expected]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_its_cases(name: str) -> None:
    needed = {"reasoning"} if FAMILIES[name].always_reasons else {"single", "multi", "empty", "long"}
    assert needed <= {conversation for family, conversation, *_ in EXPECTED if family == name}


def test_gemma_refuses_a_system_prompt() -> None:
    with pytest.raises(EyasError, match=r"here: the chat template can't render turns 1 to 2 \(no system role\)"):
        rows(FAMILIES["gemma"], CONVERSATIONS["system"])


def test_an_answer_without_the_reasoning_that_the_prompt_opens_is_refused() -> None:
    with pytest.raises(EyasError, match=r"here: the chat template renders the answer of turn 2 differently.*Yo"):
        rows(FAMILIES["minimax"], CONVERSATIONS["single"])


def test_a_conversation_that_begins_with_an_answer_is_refused() -> None:
    with pytest.raises(EyasError, match="here: the first turn is an answer"):
        rows(CHATML, [answer("Yo"), user("Hi"), answer("So")])


def test_tools_are_passed_to_the_template() -> None:
    [text] = rows(CHATML, CONVERSATIONS["single"], tools=[{"name": "f"}])
    assert text == f'<|im_start|>system\nTools: [{{"name": "f"}}]<|im_end|>\n{HEAD}⟦Yo<|im_end|>⟧'


@pytest.mark.parametrize("text", ["a<|im_end|>b", "a<|im_end|>\n<|im_start|>assistant\nb", "<|im_end|>"])
def test_delimiters_in_texts_change_nothing(text: str) -> None:
    assert rows(CHATML, [user("Hi"), answer(text)]) == [f"{HEAD}⟦{text}<|im_end|>⟧"]
    asked = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert rows(CHATML, [user(text), answer("Yo")]) == [f"{asked}⟦Yo<|im_end|>⟧"]


def test_quoted_closing_tokens_where_the_template_adds_two() -> None:
    head, text = "<|user|>\nHi<|end|>\n<|assistant|>\n", "a<|end|>\n<|endoftext|>"
    assert rows(FAMILIES["phi"], [user("Hi"), answer(text)]) == [f"{head}⟦{text}<|end|>⟧"]
    assert rows(FAMILIES["phi"], [user("Hi"), answer(text)], cut=True) == [f"{head}⟦{text}⟧"]


def test_a_quoted_role_token_is_no_closing_token() -> None:
    head = "[gMASK]<sop><|user|>\nHi<|assistant|>\n"
    assert rows(GLM, [user("Hi"), answer("a<|user|>b")]) == [f"{head}⟦a<|user|>b⟧"]
    assert rows(GLM, [user("Hi"), answer("a<|user|>b"), user("<|observation|>")]) == [f"{head}⟦a<|user|>b<|user|>⟧"]


def test_an_answer_cut_by_length_has_no_closing_token() -> None:
    assert rows(CHATML, CONVERSATIONS["single"], cut=True) == [f"{HEAD}⟦Yo⟧"]
    assert rows(CHATML, CONVERSATIONS["open"], cut=True) == [f"{HEAD}⟦Yo<|im_end|>⟧"]  # the answer isn't the last turn
    assert rows(GLM, CONVERSATIONS["single"], cut=True) == ["[gMASK]<sop><|user|>\nHi<|assistant|>\n⟦Yo⟧"]


def test_last_turn_only() -> None:
    [text] = rows(CHATML, CONVERSATIONS["multi"], last_turn_only=True)
    assert text == f"{HEAD}Yo<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n⟦So<|im_end|>⟧"


@pytest.mark.parametrize(
    ("name", "conversation", "supervised"),
    [
        ("chatml", "reasonings", ["Yo<|im_end|>", "So<|im_end|>"]),
        ("chatml", "multi", ["Yo<|im_end|>", "So<|im_end|>"]),
        ("qwen3", "single", ["Yo<|im_end|>"]),
        ("qwen3", "reasonings", ["Yo<|im_end|>", "So<|im_end|>"]),
        ("kimi", "reasoning", ["Yo<|im_end|>"]),
        ("glm", "reasonings", ["Yo<|user|>", "So"]),
        ("harmony", "reasonings", ["Yo<|return|>", "So<|return|>"]),
        ("minimax", "reasonings", ["Yo[e~[", "So[e~["]),
        ("command", "reasonings", ["Yo<|END_OF_TURN_TOKEN|>", "So<|END_OF_TURN_TOKEN|>"]),
        ("llama2", "multi", [" Yo </s>", " So </s>"]),
    ],
)
def test_without_reasoning(name: str, conversation: str, supervised: list[str]) -> None:
    texts = rows(FAMILIES[name], CONVERSATIONS[conversation], reasoning=False)
    assert [part for text in texts for part in re.findall("⟦(.*?)⟧", text, re.DOTALL)] == supervised


def test_without_reasoning_written_into_the_content() -> None:
    [text] = rows(CHATML, [user("Hi"), answer("<think>\nhm\n</think>\n\nYo")], reasoning=False)
    assert text == f"{HEAD}<think>\nhm\n</think>\n\n⟦Yo<|im_end|>⟧"


def test_without_reasoning_a_tool_call_is_supervised() -> None:
    [first, _] = rows(HARMONY, CONVERSATIONS["reasoned_tool"], reasoning=False)
    assert first.partition("⟦")[2].endswith('to=f<|message|>{"name": "f", "arguments": {"a": 1}}<|call|>⟧')
    assert "hm" in first.partition("⟦")[0]


def test_a_token_merged_across_the_boundary_belongs_to_the_prompt() -> None:
    tokenizer = tokenizer_of(CHATML, ("Ċ", "Y"))
    [rendered] = render(tokenizer, talk(CONVERSATIONS["single"]), {}, [tokenizer.convert_tokens_to_ids("<|im_end|>")])
    shown = [
        tokenizer.decode([token]) for token, mask in zip(rendered.input_ids, rendered.loss_mask, strict=True) if mask
    ]
    assert shown == ["o", "<|im_end|>"]
    assert tokenizer.decode(rendered.input_ids) == f"{HEAD}Yo<|im_end|>"


class Slow(PreTrainedTokenizerFast):
    """A tokenizer without a fast version: it tells no offsets."""

    is_fast = False


class OwnRenderer(PreTrainedTokenizerFast):
    """A tokenizer whose code renders conversations, to other ids than those of its text."""

    def apply_chat_template(self, *arguments: Any, tokenize: bool = True, **options: Any) -> Any:
        rendered = super().apply_chat_template(*arguments, tokenize=tokenize, **options)
        return [0, *rendered] if tokenize else rendered


def as_class(kind: type[PreTrainedTokenizerFast], *merges: tuple[str, str]) -> PreTrainedTokenizerFast:
    """The ChatML tokenizer as one of another class."""
    original = tokenizer_of(CHATML, *merges)
    tokenizer = kind(tokenizer_object=original.backend_tokenizer, additional_special_tokens=CHATML.special.split())
    tokenizer.chat_template = original.chat_template
    return tokenizer


def test_a_slow_tokenizer_needs_no_offsets() -> None:
    rendered = render(as_class(Slow), talk(CONVERSATIONS["multi"]), {}, CHATML.stop_ids)
    assert rendered == render(tokenizer_of(CHATML), talk(CONVERSATIONS["multi"]), {}, CHATML.stop_ids)


def test_a_slow_tokenizer_that_merges_across_the_boundary_is_refused() -> None:
    tokenizer = as_class(Slow, ("Ċ", "Y"))
    stop_ids = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    with pytest.raises(EyasError, match=r"here: the tokenizer merges .*'Yo<\|im_end\|>' .*use a fast tokenizer"):
        render(tokenizer, talk(CONVERSATIONS["single"]), {}, stop_ids)


def test_a_tokenizer_that_renders_to_other_ids_than_its_text_has_is_refused() -> None:
    with pytest.raises(EyasError, match="here: OwnRenderer makes ids of a conversation that differ"):
        render(as_class(OwnRenderer), talk(CONVERSATIONS["single"]), {}, CHATML.stop_ids)


@pytest.mark.parametrize("text", ["Yo", " Yo", "\n\nYo", "\n"])
def test_offsets_without_white_space_change_nothing(text: str) -> None:
    """Some tokenizers trim white space from offsets; none of these boundaries needs them but those of merged tokens."""
    merges = (("Ċ", "Ċ"), ("Ġ", "Y"))
    trimming, plain = tokenizer_of(replace(CHATML), *merges), tokenizer_of(CHATML, *merges)
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    stop_ids = [plain.convert_tokens_to_ids("<|im_end|>")]
    conversation = talk([user("Hi"), answer(text)])
    assert render(trimming, conversation, {}, stop_ids) == render(plain, conversation, {}, stop_ids)


def changed(family: Family, old: str, new: str) -> Any:
    tokenizer = tokenizer_of(replace(family, special=family.special + " <unused>"))
    template = tokenizer_of(family).chat_template
    assert old in template
    tokenizer.chat_template = template.replace(old, new)
    return tokenizer


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{%- generation -%}{{- m.content", "{{- m.content[:1] -}}{%- generation -%}{{- m.content[1:]"),
        ("if m.role == 'assistant'", "if true"),
    ],
    ids=["too little", "too much"],
)
def test_marks_that_disagree_are_refused(old: str, new: str) -> None:
    family = FAMILIES["marked"]
    with pytest.raises(EyasError, match=r"here: the template's \{% generation %\} marks disagree"):
        render(changed(family, old, new), talk(CONVERSATIONS["single"]), {}, family.stop_ids)


def test_marks_without_the_closing_token_are_tolerated() -> None:
    family = FAMILIES["marked"]
    tokenizer = changed(
        family, " + '<|im_end|>' -}}{%- endgeneration -%}", " -}}{%- endgeneration -%}{{- '<|im_end|>' -}}"
    )
    [rendered] = render(tokenizer, talk(CONVERSATIONS["multi"]), {}, family.stop_ids)
    assert rendered == row(family, next(case[3][0] for case in EXPECTED if case[:2] == ("marked", "multi")))


def test_truncation_is_at_the_end_of_a_turn() -> None:
    [whole] = render(tokenizer_of(CHATML), talk(CONVERSATIONS["multi"]), {}, CHATML.stop_ids)
    first = row(CHATML, f"{HEAD}⟦Yo<|im_end|>⟧")
    assert truncate(whole, len(whole.input_ids)) == (whole, False)
    for length in (len(whole.input_ids) - 1, len(first.input_ids)):
        assert truncate(whole, length) == (first, False)
    inside = row(CHATML, f"{HEAD}⟦Yo⟧")
    assert truncate(whole, len(first.input_ids) - 1) == (inside, True)
    assert not any(truncate(whole, 3)[0].loss_mask)


def test_consecutive_answers_and_calls() -> None:
    texts = rows(CHATML, [user("Hi"), answer("Yo"), answer("So"), CALLING, RESULT, answer("")])
    assert [len(re.findall("⟦", text)) for text in texts] == [4]
