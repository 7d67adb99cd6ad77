"""Why drafts fail: what the verifier said where a drafted token was tried, and whether the draft had it.

A token is tried when all drafted ones before it, in the same forward, were right; so every share here is conditional.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENTROPIES = (0.1, 0.5, 1.0, 2.0)
"""Bounds of the verifier's entropy, in nats: from certain to anybody's guess."""
COUNTS = (10, 100, 1000)
"""Bounds of how often a token stands in the training answers."""

CLASSES = {
    "end or markup": "special tokens",
    "whitespace": "spaces and line breaks alone",
    "digits": "numbers",
    "symbols": "punctuation, operators, brackets: what code is full of",
    "start of a word": "letters after a space",
    "inside a word": "letters without one",
}


@dataclass(frozen=True)
class Tried:
    """One drafted token that the verifier looked at."""

    position: int
    """In its chain, from 0."""
    token: int
    """What the verifier says there."""
    accepted: bool
    entropy: float
    """Of the verifier's distribution, in nats."""


def class_of(text: str, special: bool) -> str:
    """A token's class, by what it decodes to (`CLASSES`)."""
    if special:
        return "end or markup"
    if not text.strip():
        return "whitespace"
    if any(it.isdigit() for it in text):
        return "digits"
    if not any(it.isalpha() for it in text):
        return "symbols"
    return "start of a word" if text[0].isspace() else "inside a word"


def explain(
    tried: Sequence[Tried], class_of_token: Callable[[int], str], drafted: Collection[int], counts: Sequence[int] | None
) -> dict[str, Any]:
    """Shares of accepted tokens by kind, and how many tokens the draft could not have said.

    Args:
        drafted: The draft's vocabulary, as tokens of the verifier.
        counts: How often each of the verifier's tokens stands in the training answers; None where there are none.
    """
    found: dict[str, Any] = {
        "by_class": grouped((class_of_token(it.token), it.accepted) for it in tried),
        "by_entropy": grouped((between(it.entropy, ENTROPIES), it.accepted) for it in tried),
    }
    if counts is not None:
        found["by_count"] = grouped((seen(counts[it.token]), it.accepted) for it in tried)
    failed = [it for it in tried if not it.accepted]
    outside = sum(it.token not in drafted for it in failed)
    return {**found, "tried": len(tried), "outside_vocabulary": outside / max(len(failed), 1)}


def grouped(outcomes: Iterable[tuple[str, bool]]) -> dict[str, dict[str, float]]:
    """Of each kind: its share of all, and the share of it that was accepted."""
    kinds: dict[str, list[bool]] = defaultdict(list)
    for kind, accepted in outcomes:
        kinds[kind].append(accepted)
    total = sum(map(len, kinds.values()))
    return {kind: {"share": len(it) / total, "accepted": sum(it) / len(it)} for kind, it in sorted(kinds.items())}


def seen(count: int) -> str:
    """How often, roughly."""
    return between(count, COUNTS) if count else "never"


def between(value: float, bounds: Sequence[float]) -> str:
    """The interval that a value lies in."""
    below = [bound for bound in bounds if bound <= value]
    above = [bound for bound in bounds if bound > value]
    if not below:
        return f"below {above[0]:g}"
    return f"{below[-1]:g} to {above[0]:g}" if above else f"{below[-1]:g} or more"


def why_table(why: Mapping[str, Any]) -> list[str]:
    """As Markdown."""
    lines = ["| the verifier's token | of all tried | accepted |", "|--|--|--|"]
    for kind, name in (("by_class", "{}"), ("by_entropy", "entropy {}"), ("by_count", "in the training answers: {}")):
        for key, of_kind in sorted(why.get(kind, {}).items(), key=lambda it: _order(it[0], kind, it[1])):
            lines.append(f"| {name.format(key)} | {of_kind['share']:.0%} | {of_kind['accepted']:.0%} |")
    share = f"{why['outside_vocabulary']:.0%} of the tokens that were refused are outside the draft's vocabulary"
    return [*lines, "", f"{why['tried']:,} drafted tokens were tried; {share}."]


def _order(key: str, kind: str, of_kind: Mapping[str, float]) -> float:
    """Classes by their share, intervals from below."""
    if kind == "by_class":
        return -of_kind["share"]
    return {"never": -2.0, "below": -1.0}.get(key.split()[0]) or float(key.split()[0])
