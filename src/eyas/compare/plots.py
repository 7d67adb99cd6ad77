"""The charts of a report: training.png, and evaluation.png."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.config import Config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]


def plot_training(metrics: Sequence[Mapping[str, float]], file: Path, config: Config) -> None:
    """Loss and acceptance per position over steps."""
    figure, (left, right) = _panels(2, config.name)
    for key, label, style in (
        ("train/loss", "training", {"color": "0.6", "lw": 1}),
        ("val/loss", "held out", {"color": "C0", "marker": "o"}),
    ):
        left.plot(*_series(metrics, key), label=label, **style)
    left.set(title="Loss per target", xlabel="step")
    for position in range(config.training.unroll_steps):
        right.plot(*_series(metrics, f"val/acceptance_{position}"), marker="o", label=f"position {position + 1}")
    right.set(title="Acceptance, held out (joint, teacher-forced)", xlabel="step", ylim=(0, None))
    _save(figure, file)


def plot_evaluation(lines: Sequence[Mapping[str, Any]], by_step: Mapping[str, Sequence[Point]], file: Path) -> None:
    """Speed-up by requests at a time, acceptance by position, and, where it was measured on the way, tau by step.

    Args:
        lines: The measurements, as `eyas.draft.handover.measurements` has them.
        by_step: Points (step, tau), by what they are.
    """
    figure, (speed, accepted, *more) = _panels(3 if by_step else 2, "")
    concurrencies = sorted({line["concurrency"] for line in lines})
    for label, of_one in _by_label(lines).items():
        at = {line["concurrency"]: line for line in of_one}
        speed.plot(list(at), [line["speedup"] for line in at.values()], marker="o", label=label)
        joint = at[min(at)]["acceptance"]
        accepted.plot(range(1, len(joint) + 1), joint, marker="o", label=label)
    speed.axhline(1, color="0.5", lw=1, ls="--", zorder=0)
    speed.set(title="Speed-up (1 = without the draft)", xlabel="requests at a time", ylim=(0, None))
    if len(concurrencies) > 1:
        speed.set_xscale("log", base=2)
    speed.set_xticks(concurrencies, [f"{it}" for it in concurrencies])
    speed.minorticks_off()
    longest = max(len(line["acceptance"]) for line in lines)
    accepted.set(title="Accepted at position (joint, measured)", xlabel="position", ylim=(0, 1))
    accepted.set_xticks(range(1, longest + 1))
    for axes in more:
        for label, points in by_step.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set(title="tau while training", xlabel="step")
    _save(figure, file)


def _by_label(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The measurements of one k, prompt set and length, called by what tells them apart."""
    shared = {key for key in ("k", "prompts", "length") if len({line.get(key) for line in lines}) == 1}
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: (line["k"], line["concurrency"])):
        parts = [f"{line[key]}" for key in ("prompts", "length") if key not in shared and line.get(key)]
        if "k" not in shared or not parts:
            parts.append(f"k={line['k']}")
        found.setdefault(", ".join(parts), []).append(line)
    return found


def _panels(number: int, title: str) -> "tuple[Figure, Sequence[Axes]]":
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, number, figsize=(5.5 * number, 4), layout="constrained")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure, list(panels)


def _save(figure: "Figure", file: Path) -> None:
    from matplotlib import pyplot

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _series(metrics: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    rows = [row for row in metrics if key in row]
    return [row["step"] for row in rows], [row[key] for row in rows]
