"""Chat template families: small tokenizers and templates of our own making that behave as each family does.

In expected rows what the verifier wrote, and so what is supervised, stands between ⟦ and ⟧.
"""

# ruff: noqa: RUF001 (the full-width bars of DeepSeek)

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eyas.data.conversations import Conversation

Messages = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)  # one object, one tokenizer
class Family:
    """A template and what its tokenizer knows."""

    name: str
    special: str
    """Special tokens, a space between two."""
    stops: str
    """Those that end an answer."""
    answer: str
    """What the verifier writes for {content}, its closing token after it."""
    reasoned: str | None = None
    """What it writes for {reasoning} and {content}."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Template arguments with which `reasoned` holds."""
    trims: bool = False
    has_system: bool = True
    always_reasons: bool = False

    @property
    def stop_ids(self) -> list[int]:
        return [tokenizer_of(self).convert_tokens_to_ids(token) for token in self.stops.split()]


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "chatml",
            "<|im_start|> <|im_end|>",
            "<|im_end|>",
            "{content}<|im_end|>",
            "<think>\n{reasoning}\n</think>\n\n{content}<|im_end|>",
        ),
        Family("marked", "<|im_start|> <|im_end|>", "<|im_end|>", "{content}<|im_end|>"),
        Family(
            "phi",
            "<|system|> <|user|> <|assistant|> <|end|> <|endoftext|>",
            "<|end|> <|endoftext|>",
            "{content}<|end|>",
        ),
        Family(
            "llama3",
            "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|>",
            "<|eot_id|> <|eom_id|>",
            "{content}<|eot_id|>",
            trims=True,
        ),
        Family("llama2", "<s> </s>", "</s>", " {content} </s>", trims=True),
        Family(
            "mistral",
            "<s> </s> [INST] [/INST] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]",
            "</s>",
            " {content}</s>",
            trims=True,
        ),
        Family(
            "gemma",
            "<bos> <start_of_turn> <end_of_turn>",
            "<end_of_turn>",
            "{content}<end_of_turn>",
            trims=True,
            has_system=False,
        ),
        Family(
            "deepseek",
            "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <think> </think> <｜tool▁calls▁begin｜> "
            "<｜tool▁calls▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>",
            "<｜end▁of▁sentence｜>",
            "{content}<｜end▁of▁sentence｜>",
            "{reasoning}</think>{content}<｜end▁of▁sentence｜>",
            {"thinking": True},
        ),
        Family(
            "kimi",
            "<|im_system|> <|im_user|> <|im_assistant|> <|im_middle|> <|im_end|> <think> </think> "
            "<|tool_calls_section_begin|> <|tool_calls_section_end|>",
            "<|im_end|>",
            "</think>{content}<|im_end|>",
            "{reasoning}</think>{content}<|im_end|>",
        ),
        Family(
            "glm",
            "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <|endoftext|> <think> </think>",
            "<|user|> <|observation|> <|endoftext|>",
            "{content}<|user|>",
            "<think>{reasoning}</think>\n{content}<|user|>",
            trims=True,
        ),
        Family(
            "harmony",
            "<|start|> <|channel|> <|message|> <|end|> <|return|> <|call|>",
            "<|return|> <|call|>",
            "<|channel|>final<|message|>{content}<|return|>",
            "<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant<|channel|>final<|message|>{content}<|return|>",
        ),
        Family(
            "qwen3",
            "<|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>",
            "<|im_end|>",
            "<think>\n\n</think>\n\n{content}<|im_end|>",
            "<think>\n{reasoning}\n</think>\n\n{content}<|im_end|>",
        ),
        Family(
            "minimax",
            "]~!b[ ]~b] [e~[ <think> </think>",
            "[e~[",
            "",
            "{reasoning}\n</think>\n\n{content}[e~[",
            always_reasons=True,
        ),
        Family(
            "granite",
            "<|start_of_role|> <|end_of_role|> <|end_of_text|> <|tool_call|>",
            "<|end_of_text|>",
            "{content}<|end_of_text|>",
        ),
        Family(
            "command",
            "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|> "
            "<|START_THINKING|> <|END_THINKING|> <|START_ACTION|> <|END_ACTION|> <|START_TOOL_RESULT|> <|END_TOOL_RESULT|>",
            "<|END_OF_TURN_TOKEN|>",
            "{content}<|END_OF_TURN_TOKEN|>",
            "<|START_THINKING|>{reasoning}<|END_THINKING|>{content}<|END_OF_TURN_TOKEN|>",
            trims=True,
        ),
    )
}


def talk(messages: Messages, *, cut: bool = False, tools: list[dict[str, Any]] | None = None) -> Conversation:
    return Conversation("here", messages, cut=cut, tools=tools)


@cache
def tokenizer_of(family: Family, *merges: tuple[str, str]) -> PreTrainedTokenizerFast:
    """A token per byte, the merges, and the family's special tokens; its template renders."""
    vocab = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    core = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(vocab)}, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, additional_special_tokens=family.special.split())
    tokenizer.chat_template = (Path(__file__).parent / f"{family.name}.jinja").read_text()
    return tokenizer
