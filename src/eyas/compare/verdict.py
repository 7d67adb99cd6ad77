"""A table in a sentence: which draft is better, by how much, how sure that is, and at what cost."""

from collections.abc import Sequence

from eyas.compare.entry import Entry
from eyas.compare.setting import Measured
from eyas.compare.statistics import FEWEST, Interval, difference_interval, prompts_to_tell, tau_interval

SAME = 0.02
"""Costs that differ by less are the same."""


def verdict(measure: str, best_first: Sequence[Measured]) -> str:
    """What the table says."""
    best = best_first[0]
    if measure == "tau_sim":
        return _of_estimates(best_first)
    if len(best_first) == 1:
        return f"{best.entry.name} is the only draft measured in this setting: tau {best.tau:.2f}{_alone(best)}."
    second = best_first[1]
    if best.counts_P2 is None or second.counts_P2 is None:
        return (
            f"{best.entry.name} is ahead of {second.entry.name} by {best.tau - second.tau:.2f} tau; how sure that is can't be "
            "said, since the counts of each prompt aren't known (they are, where evaluation.concurrency begins with 1)."
        )
    number = len(best.counts_P2)
    found = difference_interval(best.counts_P2, second.counts_P2)
    if found is None:
        return (
            f"{best.entry.name} is ahead of {second.entry.name} by {best.tau - second.tau:.2f} tau, on {number} prompts: too few "
            f"to say how sure that is (at least {FEWEST}; evaluation.num_prompts)."
        )
    said = f"95 % CI {_pair(found)}, {number} prompts"
    if found.excludes_zero:
        cost = f", {it}" if (it := _cost(best.entry, second.entry)) else ""
        return f"{best.entry.name} beats {second.entry.name} by {best.tau - second.tau:.2f} tau ({said}){cost}."
    needed = prompts_to_tell(best.counts_P2, second.counts_P2)
    if found == (0, 0):
        return f"{best.entry.name} and {second.entry.name} are the same, prompt by prompt: tau {best.tau:.2f}."
    if needed is None:
        return f"{best.entry.name} and {second.entry.name} have the same tau, {best.tau:.2f} ({said} for their difference)."
    return (
        f"{best.entry.name} is ahead of {second.entry.name} by {_small(best.tau - second.tau)} tau, which is within noise "
        f"({said}): telling them apart would take about {_rounded(needed)} prompts.{_first_beaten(best, best_first[2:])}"
    )


def _first_beaten(best: Measured, others: Sequence[Measured]) -> str:
    """From which one on the best is better for sure."""
    for other in others:
        if best.counts_P2 is None or other.counts_P2 is None:
            return ""
        found = difference_interval(best.counts_P2, other.counts_P2)
        if found and found.excludes_zero:
            return f" It does beat {other.entry.name}, by {best.tau - other.tau:.2f} tau ({_pair(found)})."
    return ""


def _of_estimates(best_first: Sequence[Measured]) -> str:
    best, what = best_first[0], "estimated teacher-forced on held-out text, not measured"
    if len(best_first) == 1:
        return f"{best.entry.name} has tau_sim {best.tau:.2f}: {what}."
    second = best_first[1]
    return (
        f"{best.entry.name} is ahead of {second.entry.name} by {_small(best.tau - second.tau)} tau_sim: {what}; `eyas evaluate` "
        "measures them."
    )


def _alone(it: Measured) -> str:
    if it.counts_P2 is None:
        return ""
    found, prompts = tau_interval(it.counts_P2), f"{len(it.counts_P2)} prompts"
    return f" (95 % CI {_pair(found)}, {prompts})" if found else f" ({prompts}, too few for an interval)"


def _cost(best: Entry, second: Entry) -> str:
    """What the better one cost, beside the other."""
    parts = []
    for key, word in (("tokens", "tokens trained"), ("parameters", "trained parameters")):
        here, there = best.cost.get(key), second.cost.get(key)
        if not here or not there:
            return ""
        if abs(here / there - 1) > SAME:
            parts.append(f"{here / there:.2g} times the {word}")
    return f"for {' and '.join(parts)}" if parts else "at the same cost"


def _pair(found: Interval) -> str:
    return f"{_signed(found.low)} to {_signed(found.high)}"


def _signed(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 0.005 else "0.00"


def _small(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.3f}"


def _rounded(number: int) -> str:
    """Two digits are all that such an estimate has."""
    size = 10 ** max(0, len(str(number)) - 2)
    return f"{-(-number // size) * size:,}"
