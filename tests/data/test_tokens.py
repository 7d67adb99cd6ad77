"""The loss mask against masks written by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eyas.config import Config
from eyas.data.conversations import Conversation
from eyas.data.render import render
from eyas.data.tokens import load_tokens, prepare
from eyas.errors import EyasError
from eyas.stages import tokens_artifact
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.make import byte_tokenizer

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
PROMPT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

# A template that drops what the assistant thought from every turn but the last: history is rewritten.
FORGETFUL = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{{ m['content'] if loop.last or m['role'] != 'assistant' else m['content'].split('|')[-1] }}{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def supervised(
    messages: list[dict[str, str]], *, cut: bool = False, template: str | None = None
) -> list[tuple[str, str]]:
    """(whole text, supervised text with - for every other token) of each row."""
    tokenizer = byte_tokenizer()
    if template:
        tokenizer.chat_template = template
    rows = render(tokenizer, Conversation("here", messages, cut=cut), {}, [tokenizer.eos_token_id])
    decode = tokenizer.decode
    return [
        (
            decode(row.input_ids),
            "".join(decode([token]) if mask else "-" for token, mask in zip(row.input_ids, row.loss_mask, strict=True)),
        )
        for row in rows
    ]


def hidden(text: str) -> str:
    """As many dashes as tokens."""
    return "-" * len(byte_tokenizer()(text)["input_ids"])


def test_one_turn() -> None:
    assert supervised([USER, ANSWER]) == [(PROMPT + "Yo<|im_end|>", hidden(PROMPT) + "Yo<|im_end|>")]


def test_an_answer_cut_by_length_has_no_closing_token() -> None:
    assert supervised([USER, ANSWER], cut=True) == [(PROMPT + "Yo", hidden(PROMPT) + "Yo")]


def test_system_prompt_and_several_turns_are_one_row() -> None:
    system = {"role": "system", "content": "Be brief"}
    head = "<|im_start|>system\nBe brief<|im_end|>\n"
    between = "\n" + PROMPT
    [(text, shown)] = supervised([system, USER, ANSWER, USER, ANSWER])
    assert text == head + PROMPT + "Yo<|im_end|>" + between + "Yo<|im_end|>"
    assert shown == hidden(head + PROMPT) + "Yo<|im_end|>" + hidden(between) + "Yo<|im_end|>"


def test_a_conversation_that_ends_with_a_question_stops_at_the_last_answer() -> None:
    assert supervised([USER, ANSWER, USER]) == [(PROMPT + "Yo<|im_end|>", hidden(PROMPT) + "Yo<|im_end|>")]


def test_rewritten_history_becomes_one_row_per_turn() -> None:
    thought = {"role": "assistant", "content": "hm|Yo"}
    rows = supervised([USER, thought, USER, thought], template=FORGETFUL)
    assert [shown.replace("-", "") for _, shown in rows] == ["hm|Yo<|im_end|>", "hm|Yo<|im_end|>"]
    assert rows[1][0] == PROMPT + "Yo<|im_end|>\n" + PROMPT + "hm|Yo<|im_end|>"


def test_an_empty_answer_is_its_closing_token() -> None:
    assert supervised([USER, {"role": "assistant", "content": ""}])[0][1] == hidden(PROMPT) + "<|im_end|>"


def test_a_generation_prompt_that_is_no_prefix_is_refused() -> None:
    template = FORGETFUL.replace(
        "'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>' }}{% endif %}"
    )
    with pytest.raises(EyasError, match="here: the chat template renders the answer of turn 2 differently"):
        supervised([USER, ANSWER], template=template)


def jsonl(file: Path, *conversations: list[dict[str, str]]) -> Path:
    file.write_text("\n".join(json.dumps({"messages": messages}) for messages in conversations))
    return file


def test_prepare_splits_counts_and_cuts(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    long = [USER, {"role": "assistant", "content": "a" * 500}]
    file = jsonl(tmp_path / "data.jsonl", [USER, ANSWER], long, [USER, ANSWER])
    config = tiny(f"data.path={file}", "data.num_held_out=1", "data.max_length=100")
    prepare(config)
    tokens = load_tokens(tokens_artifact(config).directory)
    assert (tokens.num_rows, tokens.num_train_rows, tokens.lengths[0]) == (3, 2, 100)
    tokenizer = byte_tokenizer()
    assert int(tokens.counts_V[tokenizer.convert_tokens_to_ids("a")]) == 100 - len(hidden(PROMPT))
    assert int(tokens.counts_V[tokenizer.eos_token_id]) == 1  # the held-out row is not counted, nor the cut one's
    assert tokens.held_out_prompts() == [tokenizer(PROMPT)["input_ids"]]
    assert tokens.input_ids.dtype is torch.int32


def test_prepare_refuses_rows_without_supervision(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = jsonl(tmp_path / "data.jsonl", [USER, ANSWER], [USER, ANSWER])
    config = tiny(f"data.path={file}", "data.num_held_out=1", "data.max_length=10")
    with pytest.raises(EyasError, match="2 rows without supervised tokens"):
        prepare(config)
    assert not Path(config.outputs).exists()


def test_prepare_leaves_nothing_of_a_broken_file(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = jsonl(tmp_path / "data.jsonl", [USER, ANSWER], [USER, ANSWER])
    file.write_text(file.read_text() + "\n{broken")
    config = tiny(f"data.path={file}", "data.num_held_out=1")
    with pytest.raises(EyasError, match=r"data\.jsonl:3: not valid JSON"):
        prepare(config)
    assert not Path(config.outputs).exists()


def test_fingerprint_is_of_content_not_of_place(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    here, there = jsonl(tmp_path / "a.jsonl", [USER, ANSWER]), jsonl(tmp_path / "b.jsonl", [USER, ANSWER])
    assert (
        tokens_artifact(tiny(f"data.path={here}")).fingerprint
        == tokens_artifact(tiny(f"data.path={there}")).fingerprint
    )
    jsonl(there, [USER, ANSWER], [USER, ANSWER])
    assert (
        tokens_artifact(tiny(f"data.path={here}")).fingerprint
        != tokens_artifact(tiny(f"data.path={there}")).fingerprint
    )
