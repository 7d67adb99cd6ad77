"""What a sweep's runs have reached, and the table at its end."""

from dataclasses import dataclass

from eyas.config import Config
from eyas.run import Run, read_metrics
from eyas.sweep.jobs import Sweep
from eyas.sweep.record import Record


@dataclass(frozen=True)
class Result:
    """A number and how it was measured: numbers of different settings are never ranked together."""

    value: float
    setting: str
    line: str


def result_of(run: Run, config: Config) -> Result | None:
    """What the draft was measured at, or else what its last validation predicts."""
    if report := run.evaluation():
        line: str = report["verdict"][0]
        return Result(report["tau"], line.partition("(")[2], line)
    predicted = [row["val/tau_sim"] for row in read_metrics(run.metrics_file) if "val/tau_sim" in row]
    if not predicted:
        return None
    setting = f"teacher-forced, {config.training.unroll_steps} steps"
    return Result(predicted[-1], f"~{setting}", f"tau_sim {predicted[-1]:.3f} ({setting})")


def print_table(sweep: Sweep, record: Record) -> None:
    """Job, state, and what it has reached: the best first, each setting by itself."""
    results = {job.name: result_of(job.run, job.config) for job in sweep.jobs}
    rows = []
    for job in sweep.jobs:
        row, result = record.row(job.name, job.swept), results[job.name]
        order = (0, result.setting, -result.value) if result and not row.reason else (1, "", 0.0)
        rows.append((order, (sweep.short(job), row.state.name, row.reason or (result.line if result else ""))))
    cells = [("job", "state", "result"), *(cells for _, cells in sorted(rows, key=lambda it: it[0]))]
    widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
    print()
    for job_name, state, result_line in cells:
        print(f"{job_name:<{widths[0]}}  {state:<{widths[1]}}  {result_line}".rstrip())
    if len({result.setting for result in results.values() if result}) > 1:
        print("settings differ: only numbers of the same setting can be compared")
