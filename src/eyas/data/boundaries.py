"""Which of a text's tokens come before a position in it."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from eyas.errors import EyasError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenize(
    tokenizer: "PreTrainedTokenizerBase", text: str, positions: Sequence[int], where: str
) -> tuple[list[int], list[int]]:
    """The text's ids, and how many of them come before each position. A token belongs to where it begins.

    Three ways, the next where one fails: the text between an added token and the position encodes to the ids that follow
    that token; the text up to the position encodes to how the ids begin; the tokenizer's offsets tell (where it merges
    the end of the prompt with the beginning of the answer).

    Raises:
        EyasError: none of them can tell.
    """
    ids = _encode(tokenizer, text)
    anchors = _anchors(tokenizer, text, ids)
    cuts: list[int] = []
    for position in positions:
        cut = len(ids) if position == len(text) else _by_anchor(tokenizer, text, ids, anchors, position)
        cuts.append(_by_prefix(tokenizer, text, ids, position, where) if cut is None else cut)
    return ids, cuts


def _anchors(tokenizer: "PreTrainedTokenizerBase", text: str, ids: list[int]) -> list[tuple[int, int]]:
    """(index, where it begins) of every added token in the text; what stands between two of them is encoded on its own.

    Empty where the ids don't hold exactly the added tokens that are found in the text.
    """
    added = _added_tokens(tokenizer)
    indices = [index for index, token in enumerate(ids) if token in added]
    if not indices:
        return []
    names = [added[ids[index]] for index in indices]
    found = list(_pattern(frozenset(names)).finditer(text))
    if [match.group() for match in found] != names:
        return []
    return [(index, match.start()) for index, match in zip(indices, found, strict=True)]


def _by_anchor(
    tokenizer: "PreTrainedTokenizerBase", text: str, ids: list[int], anchors: list[tuple[int, int]], position: int
) -> int | None:
    index, start = next((anchor for anchor in reversed(anchors) if anchor[1] < position), (0, 0))
    between = text[start:position]
    # Mostly a generation prompt, or nothing but a stop token: the same in every conversation.
    encoded = list(_encode_short(tokenizer, between)) if len(between) < 256 else _encode(tokenizer, between)
    return index + len(encoded) if ids[index : index + len(encoded)] == encoded else None


def _by_prefix(tokenizer: "PreTrainedTokenizerBase", text: str, ids: list[int], position: int, where: str) -> int:
    prefix = _encode(tokenizer, text[:position])
    if ids[: len(prefix)] == prefix:
        return len(prefix)
    if not tokenizer.is_fast:
        raise EyasError(
            f"{where}: the tokenizer merges {text[:position][-20:]!r} with {text[position:][:20]!r} that follows it, and without "
            "a fast version it doesn't tell where tokens begin; expected a token boundary there: use a fast tokenizer"
        )
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    # Some tokenizers trim white space from offsets, so a token begins no later than the one before it ends.
    begins = (min(start, before) for (start, _), (_, before) in zip(offsets, [(0, 0), *offsets], strict=False))
    return sum(begin < position for begin in begins)


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    fast = _without_offsets(tokenizer)
    if fast is None:
        return _call(tokenizer, text)
    ids: list[int] = fast.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _call(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    encoded = tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)
    ids: list[int] = encoded["input_ids"]
    return ids


PROBE = "A probe: <|im_start|>user\n  two  blanks,\ttabs, Ünï, 中文, 🙂, 3.14; def f(x): return x\r\n</s>"


@lru_cache(maxsize=8)
def _without_offsets(tokenizer: "PreTrainedTokenizerBase") -> Any:
    """A fast tokenizer's own engine, which saves a fifth of the time where no offsets are wanted.

    None where the class around it does more than call it: they don't agree on a text with all sorts of things in it.
    """
    if not tokenizer.is_fast:
        return None
    expected = _call(tokenizer, PROBE)  # this also tells the engine to cut and pad nothing
    fast = tokenizer.backend_tokenizer
    return fast if fast.encode_batch_fast([PROBE], add_special_tokens=False)[0].ids == expected else None


@lru_cache(maxsize=4096)
def _encode_short(tokenizer: "PreTrainedTokenizerBase", text: str) -> tuple[int, ...]:
    return tuple(_encode(tokenizer, text))


@lru_cache(maxsize=8)
def _added_tokens(tokenizer: "PreTrainedTokenizerBase") -> dict[int, str]:
    return {index: str(token) for index, token in tokenizer.added_tokens_decoder.items()}


@lru_cache(maxsize=4096)
def _pattern(texts: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=lambda text: (-len(text), text))))
