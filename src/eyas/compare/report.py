"""A run's report: report.md and training.png in its directory, and a short table in the terminal."""

from pathlib import Path
from typing import Any

from eyas.config import Config
from eyas.draft.handover import serve_line, write_card
from eyas.run import Run, read_metrics
from eyas.verifier.locate import locate


def write_report(config: Config, run: Run) -> None:
    """Write report.md and training.png from what the run left, and the draft's card anew, now that it may be measured."""
    metrics = read_metrics(run.metrics_file)
    plot_training(metrics, run.directory / "training.png", config)
    lines = [f"# {config.name}", "", "| | |", "|--|--|"]
    lines += [f"| {name} | {value} |" for name, value in summary(config, run)]
    lines += ["", "![training](training.png)", "", *acceptance_table(run, metrics, config)]
    lines += ["", "Serve it:", "", "```bash", serve_command(config, run), "```", ""]
    lines += run.evaluation().get("verdict", [])
    (run.directory / "report.md").write_text("\n".join(lines) + "\n")
    write_card(config, run)


def print_summary(config: Config, run: Run) -> None:
    """The table at the end of `python train.py`, and the last lines for people and programs."""
    from rich.console import Console  # here, since a composed configuration is printed in less time than rich takes
    from rich.table import Table

    table = Table(show_header=False, title=config.name, title_justify="left")
    for name, value in summary(config, run):
        table.add_row(name, value, style="bold" if name == "measured tau" else None)
    Console().print(table)
    print(f"serve it with:\n  {serve_command(config, run)}")  # outside the table: to be copied
    for line in run.evaluation().get("verdict", []):
        print(line)


def summary(config: Config, run: Run) -> list[tuple[str, str]]:
    """What a person wants to know first."""
    metrics = read_metrics(run.metrics_file)
    last = {key: value for row in metrics for key, value in row.items()}
    speed = _mean(metrics, "train/tokens_per_second")
    rows = [
        ("draft", str(run.draft)),
        ("verifier", config.verifier.name),
        ("training", f"{last['step']} steps, loss {last['train/loss']:.3f}, {speed:,.0f} tokens/s"),
        ("tau_sim", f"{last['val/tau_sim']:.2f}  (teacher-forced, {config.training.unroll_steps} steps, held out)"),
    ]
    report = run.evaluation()
    if report:
        setting, rate = report["setting"], report["tokens_per_second"]
        where = f"k={setting['k']}, T=0, {setting['engine']}, {report['num_prompts']} held-out prompts"
        accepted = "  ".join(f"{share:.0%}" for share in report["acceptance"])
        rows += [
            ("measured tau", f"{report['tau']:.2f}  ({where})"),
            ("accepted", f"{accepted}  (joint, at positions 1 to {setting['k']})"),
            ("speed", f"{rate['speculative']:.1f} tokens/s with the draft, {rate['plain']:.1f} without, one sequence"),
        ]
    return rows


def serve_command(config: Config, run: Run) -> str:
    """What serves the draft beside its verifier, to be copied into a shell."""
    return serve_line(config.verifier, locate(config.verifier), run.draft, config.evaluation.k)


def acceptance_table(run: Run, metrics: list[dict[str, float]], config: Config) -> list[str]:
    """Acceptance per position, teacher-forced and measured, as Markdown."""
    last = {key: value for row in metrics for key, value in row.items()}
    report = run.evaluation()
    lines = ["| position | teacher-forced, joint | conditional | measured, joint | conditional |", "|--|--|--|--|--|"]
    for position in range(max(config.training.unroll_steps, len(report.get("acceptance", [])))):
        cells = [last.get(f"val/acceptance_{position}"), last.get(f"val/acceptance_cond_{position}")]
        cells += [_at(report.get(key, []), position) for key in ("acceptance", "acceptance_cond")]
        lines.append(
            f"| {position + 1} | " + " | ".join("" if cell is None else f"{cell:.3f}" for cell in cells) + " |"
        )
    return lines


def plot_training(metrics: list[dict[str, float]], file: Path, config: Config) -> None:
    """Loss and acceptance per position over steps."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for key, label, style in (
        ("train/loss", "training", {"color": "0.6", "lw": 1}),
        ("val/loss", "held out", {"color": "C0", "marker": "o"}),
    ):
        left.plot(*_series(metrics, key), label=label, **style)
    left.set(title="Loss per target", xlabel="step")
    left.legend(frameon=False)
    for position in range(config.training.unroll_steps):
        right.plot(*_series(metrics, f"val/acceptance_{position}"), marker="o", label=f"position {position + 1}")
    right.set(title="Acceptance, held out (joint, teacher-forced)", xlabel="step", ylim=(0, None))
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.suptitle(config.name, x=0.01, ha="left", fontsize=10)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _series(metrics: list[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    rows = [row for row in metrics if key in row]
    return [row["step"] for row in rows], [row[key] for row in rows]


def _mean(metrics: list[dict[str, float]], key: str) -> float:
    values = _series(metrics, key)[1]
    return sum(values) / max(len(values), 1)


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None
