"""Sources -> one stream of examples, each on its side of the split.

Every choice is made by what a conversation says, or by the order of its source: adding data moves nothing from training
to the held-out side or back.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import takewhile
from typing import Any, NamedTuple

from eyas.data.conversations import Example, PlainText, TokenRow, read_conversations, reading_identity
from eyas.data.schema import DataConfig, SourceConfig
from eyas.errors import EyasError

_IDENTITY = ("sample", "max_conversations", "weight")


class Dealt(NamedTuple):
    """An example on its side."""

    example: Example
    source: str
    held_out: bool


def mixture_identity(data: DataConfig) -> dict[str, Any]:
    """Everything that determines what `mixed` yields.

    Raises:
        EyasError: a source isn't there.
    """
    sources = [
        {**reading_identity(source), **{key: getattr(source, key) for key in _IDENTITY}}
        for source in data.sources.values()
    ]
    # Where nothing is set aside, what was made before there was this key is still the same.
    return {"sources": sources, "seed": data.seed, **({"set_aside": data.set_aside} if data.set_aside else {})}


def split_identity(data: DataConfig) -> dict[str, Any]:
    """Everything else that determines what `deal` yields."""
    return {key: getattr(data, key) for key in ("deduplicate", "held_out", "max_held_out")}


def deal(data: DataConfig, counts: Counter[str], *, unanswered: bool = False) -> Iterator[Dealt]:
    """The examples of all sources, without those that are not to be used.

    An example whose opening (what is asked before the first answer) is that of a held-out one is left out: it is never
    trained on, and nothing is measured twice, however many answers a question has.

    `counts` gets what `mixed` counts, and `conversations` (yielded), `duplicate_rows`, `like_held_out` and
    `held_out_beyond_cap`.

    Raises:
        EyasError: as `mixed`.
    """
    held_out_openings: set[bytes] = set()
    by_share = data.held_out < 1
    examples = mixed(data, counts, unanswered=unanswered)
    for name, example in _unique(examples, counts) if data.deduplicate else examples:
        opening, num_held_out = _digest(_opening(example)), len(held_out_openings)
        if opening in held_out_openings:
            counts["like_held_out"] += 1
            continue
        is_held_out = _fraction(opening) < data.held_out if by_share else num_held_out < data.held_out
        if is_held_out and by_share and num_held_out == data.max_held_out:
            counts["held_out_beyond_cap"] += 1
            continue
        if is_held_out:
            held_out_openings.add(opening)
        counts["conversations"] += 1
        yield Dealt(example, name, is_held_out)


def mixed(data: DataConfig, counts: Counter[str], *, unanswered: bool = False) -> Iterator[tuple[str, Example]]:
    """(source, example) of all sources, without the first ones that are set aside, nor any that opens like one of these.

    So nobody sees them, whether the answers are those that are there or are made anew.

    `counts` gets what `read_conversations` counts, and `not_sampled`, `set_aside` and `like_set_aside`.

    Raises:
        EyasError: as `read_conversations`, or nothing remains.
    """
    openings: set[bytes] = set()
    remains = False
    for position, (name, example) in enumerate(_merged(data, counts, unanswered)):
        if position < data.set_aside:
            counts["set_aside"] += 1
            openings.add(_digest(_opening(example)))
        elif openings and _digest(_opening(example)) in openings:
            counts["like_set_aside"] += 1
        else:
            remains = True
            yield name, example
    if data.set_aside and not remains:
        alike = f", {counts['like_set_aside']} open like one of them" if counts["like_set_aside"] else ""
        raise EyasError(
            f"data.set_aside={data.set_aside}: nothing remains, {counts['set_aside']} conversations are set aside{alike}; lower it, "
            "or give more data"
        )


def _merged(data: DataConfig, counts: Counter[str], unanswered: bool) -> Iterator[tuple[str, Example]]:
    """One source after the other or, where they have weights, the one that is furthest behind its share.

    The first weighted source that is used up ends it: beyond that the proportions could not be kept.
    """
    streams = {name: _taken(source, data.seed, counts, unanswered) for name, source in data.sources.items()}
    weights = {name: source.weight for name, source in data.sources.items() if source.weight is not None}
    if not data.mixture or not weights:
        for name, stream in streams.items():
            yield from ((name, example) for example in stream)
        return
    taken = dict.fromkeys(weights, 0)
    while True:
        name = min(weights, key=lambda name: (taken[name] + 1) / weights[name])
        example = next(streams[name], None)
        if example is None:
            numbers = ", ".join(f"{number:,} of {name}" for name, number in taken.items())
            print(f"mixture  {name} is used up: {numbers}", flush=True)
            return
        taken[name] += 1
        yield name, example


def _unique(examples: Iterator[tuple[str, Example]], counts: Counter[str]) -> Iterator[tuple[str, Example]]:
    seen: set[bytes] = set()
    for name, example in examples:
        key = _digest(_content(example))
        if key in seen:
            counts["duplicate_rows"] += 1
        else:
            seen.add(key)
            yield name, example


def _taken(source: SourceConfig, seed: int, counts: Counter[str], unanswered: bool) -> Iterator[Example]:
    """The conversations of one source that its `sample` and `max_conversations` let through."""
    taken = 0
    for example in read_conversations(source, counts, unanswered=unanswered):
        if taken == source.max_conversations:
            return
        if source.sample < 1 and _fraction(_digest([seed, _content(example)])) >= source.sample:
            counts["not_sampled"] += 1
            continue
        taken += 1
        yield example


def _content(example: Example) -> Any:
    """The same for examples that say the same, wherever they stand."""
    values = asdict(example)
    del values["where"]
    return values


def _opening(example: Example) -> Any:
    """What was asked before the first answer, however it is spaced or capitalised."""
    if isinstance(example, PlainText):
        return example.text
    if isinstance(example, TokenRow):
        asked_ids = list(takewhile(lambda pair: not pair[1], zip(example.input_ids, example.loss_mask, strict=True)))
        return [token for token, _ in asked_ids] or example.input_ids
    asked = takewhile(lambda message: message["role"] != "assistant", example.messages)
    return [[message["role"], " ".join(str(message["content"]).split()).casefold()] for message in asked]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def _fraction(digest: bytes) -> float:
    """Uniform in [0, 1)."""
    return int.from_bytes(digest[:6]) / 2**48
