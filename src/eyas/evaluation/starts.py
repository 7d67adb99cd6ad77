"""Why the measured tau is lower than tau_sim: chains start where drafting is hard. Torch-free.

tau_sim counts at every position of a text. A chain that got a tokens right puts the next one a + 1 further, so what is easy
is crossed in few long strides and what is hard in many short ones: the starts are a biased sample of the positions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.evaluation.report import acceptance, by_position

WHY = (
    "Chains start where it is hard: one that got *a* tokens right puts the next one *a* + 1 further, so what is easy is crossed "
    "in few long strides, and what is hard in many short ones."
)


def of_starts(answers: Sequence[Sequence[int]], k: int) -> dict[str, Any]:
    """tau and acceptance over every position where a chain could start, and over those that chains would start at.

    Args:
        answers: Of each answer, how many of k drafted tokens are right at every such position (`right_at_every_start`).

    Raises:
        EyasError: no answer has such a position.
    """
    every = [right for answer in answers for right in answer]
    visited = [right for answer in answers for right in walk(answer)]
    return {
        name: {"positions": len(found), **acceptance(len(found), by_position(found, k))}
        for name, found in (("every_position", every), ("walked", visited))
    }


def walk(right: Sequence[int]) -> list[int]:
    """Of the starts of one answer, those that are visited: the first, then each as far on as the chain before it reached."""
    visited, start = [], 0
    while start < len(right):
        visited.append(right[start])
        start += right[start] + 1
    return visited


def starts_table(evaluation: Mapping[str, Any], trained: Mapping[str, float]) -> list[str]:
    """From tau_sim to the measured tau, as Markdown.

    Args:
        evaluation: evaluation.json, with `why` -> `starts`.
        trained: The last value of each metric of the training up to this draft; empty where no run of ours made it.
    """
    starts, k = evaluation["why"]["starts"], evaluation["setting"]["k"]
    every, walked = starts["every_position"], starts["walked"]
    lines = [f"| where the draft is asked | tokens per forward | right at 1 to {k} (joint) |", "|--|--|--|"]
    lines += _simulated(trained, k)
    lines.append(_row(f"at each of the {every['positions']:,} positions of these answers", every))
    lines.append(_row(f"at the {walked['positions']:,} of them where chains start: the measured tau", evaluation))
    if walked["acceptance"] != evaluation["acceptance"]:
        differ = f"A walk over the positions gives {walked['tau']:.3f}, decoding gave {evaluation['tau']:.3f}"
        lines += ["", f"{differ}: more than some near-ties in {evaluation['setting']['dtype']} would be a fault."]
    return [*lines, "", WHY] if walked["tau"] < every["tau"] else lines


def _simulated(trained: Mapping[str, float], k: int) -> list[str]:
    """tau_sim's row, over no more unroll steps than tokens are drafted; none where nothing was validated."""
    keys = [key for step in range(len(trained)) if (key := f"val/acceptance_{step}") in trained]
    if not keys:
        return []
    shares = [trained[key] for key in keys[:k]]
    name = "tau_sim" if len(keys) == k else f"tau_sim over {len(shares)} unroll steps"
    found = {"tau": 1 + sum(shares), "acceptance": shares}
    return [_row(f"in training, at every position of all held-out answers: {name}", found)]


def _row(where: str, found: Mapping[str, Any]) -> str:
    shares = "  ".join(f"{share:.1%}" for share in found["acceptance"])
    return f"| {where} | {found['tau']:.2f} | {shares} |"
