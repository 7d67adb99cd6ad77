"""A run's report: report.md and its charts in its directory, and a short table in the terminal."""

import json
from typing import Any

from eyas.compare.plots import plot_evaluation, plot_training
from eyas.config import Config
from eyas.draft.given import PROVENANCE_FILE
from eyas.draft.handover import measurement_table, measurements, serve_line, write_card
from eyas.evaluation.starts import starts_table
from eyas.evaluation.why import why_table
from eyas.run import Measurement, Run, read_metrics
from eyas.verifier.locate import locate


def write_report(config: Config, run: Run) -> None:
    """Write report.md and its charts from what there is, and the draft's card anew, now that it may be measured."""
    metrics, evaluation = read_metrics(run.metrics_file), run.evaluation()
    lines = [f"# {config.name}", "", "| | |", "|--|--|"]
    lines += [f"| {name} | {value} |" for name, value in summary(config, run)]
    if metrics:
        plot_training(metrics, run.directory / "training.png", config)
        lines += ["", "![training](training.png)", "", *acceptance_table(run, metrics, config)]
    if evaluation:
        steps = measured_steps(run)
        plot_evaluation(measurements(evaluation), _by_step(steps, metrics), run.directory / "evaluation.png")
        lines += ["", "## Measured", "", "![evaluation](evaluation.png)", "", measurement_table(evaluation)]
        lines += ["", *(f"- {line}" for line in evaluation["verdict"]), *step_table(steps)]
        if "why" in evaluation:
            lines += ["", "## Where drafted tokens fail", "", *why_table(evaluation["why"])]
        if "starts" in evaluation.get("why", {}):
            trained = [row for row in metrics if row["step"] <= evaluation["draft"]["step"]]
            lines += ["", "### From tau_sim to tau", "", *starts_table(evaluation, _last(trained))]
    lines += ["", "## Serve it", "", "```bash", serve_command(config, run), "```"]
    run.report_file.write_text("\n".join(lines) + "\n")
    if not isinstance(run, Measurement):
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
    last = _last(metrics)
    speed = _mean(metrics, "train/tokens_per_second")
    rows = [("draft", str(run.draft)), ("verifier", config.verifier.name)]
    if isinstance(run, Measurement):
        rows[:1] = [("draft", str(config.draft.init)), ("as measured", str(run.draft))]
        record = json.loads((run.draft / PROVENANCE_FILE).read_text())
        rows += [("trained for", record["trained_for"])] if record["trained_for"] else []
    if metrics:
        rows += [
            ("training", f"{last['step']} steps, loss {last['train/loss']:.3f}, {speed:,.0f} tokens/s"),
            ("tau_sim", f"{last['val/tau_sim']:.2f}  (teacher-forced, {config.training.unroll_steps} steps, held out)"),
        ]
    report = run.evaluation()
    if report:
        setting, rate = report["setting"], report["tokens_per_second"]
        asked = f"{report['num_prompts']} {'prompts' if config.evaluation.prompts else 'held-out prompts'}"
        where = f"k={setting['k']}, T={setting['temperature']:g}, {setting['engine']}, {asked}"
        at_a_time = "one sequence" if setting["concurrency"][0] == 1 else f"{setting['concurrency'][0]} at a time"
        accepted = "  ".join(f"{share:.0%}" for share in report["acceptance"])
        rows += [
            ("measured tau", f"{report['tau']:.2f}  ({where})"),
            ("accepted", f"{accepted}  (joint, at positions 1 to {setting['k']})"),
            ("speed", f"{rate['speculative']:.1f} tokens/s with the draft, {rate['plain']:.1f} without, {at_a_time}"),
        ]
    return rows


def serve_command(config: Config, run: Run) -> str:
    """What serves the draft beside its verifier, to be copied into a shell."""
    return serve_line(config.verifier, locate(config.verifier), run.draft, config.evaluation.k)


def acceptance_table(run: Run, metrics: list[dict[str, float]], config: Config) -> list[str]:
    """Acceptance per position, teacher-forced and measured, as Markdown."""
    last = _last(metrics)
    report = run.evaluation()
    lines = ["| position | teacher-forced, joint | conditional | measured, joint | conditional |", "|--|--|--|--|--|"]
    for position in range(max(config.training.unroll_steps, len(report.get("acceptance", [])))):
        cells = [last.get(f"val/acceptance_{position}"), last.get(f"val/acceptance_cond_{position}")]
        cells += [_at(report.get(key, []), position) for key in ("acceptance", "acceptance_cond")]
        lines.append(
            f"| {position + 1} | " + " | ".join("" if cell is None else f"{cell:.3f}" for cell in cells) + " |"
        )
    return lines


def measured_steps(run: Run) -> dict[int, dict[str, Any]]:
    """evaluation.json of each step that was measured on the way, and of the last one."""
    on_the_way = [json.loads(file.read_text()) for file in sorted(run.measured_file(0).parent.glob("*.json"))]
    return {report["draft"]["step"]: report for report in [*on_the_way, run.evaluation()]} if on_the_way else {}


def step_table(steps: dict[int, dict[str, Any]]) -> list[str]:
    """What was measured on the way, as Markdown."""
    lines = ["", "| step | tau | accepted at 1, 2, ... (joint) | k |", "|--|--|--|--|"] if steps else []
    for step, report in steps.items():
        shares = "  ".join(f"{share:.0%}" for share in report["acceptance"])
        lines.append(f"| {step:,} | {report['tau']:.2f} | {shares} | {report['setting']['k']} |")
    return lines


def _by_step(steps: dict[int, dict[str, Any]], metrics: list[dict[str, float]]) -> dict[str, list[tuple[float, float]]]:
    """tau by step: as measured, and as predicted teacher-forced."""
    if not steps:
        return {}
    predicted = [(row["step"], row["val/tau_sim"]) for row in metrics if "val/tau_sim" in row]
    return {"measured": [(step, report["tau"]) for step, report in steps.items()], "tau_sim": predicted}


def _last(metrics: list[dict[str, float]]) -> dict[str, float]:
    """The last value of each metric."""
    return {key: value for row in metrics for key, value in row.items()}


def _mean(metrics: list[dict[str, float]], key: str) -> float:
    values = [row[key] for row in metrics if key in row]
    return sum(values) / max(len(values), 1)


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None
