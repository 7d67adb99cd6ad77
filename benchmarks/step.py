"""The training step, timed: `python -m benchmarks.step [--against speculators] [--case TEXT] [--page FILE]`.

Eyas, speculators and the bare matrix products are processes that take turns, a step each, on the same rows: whatever else the
machine does meanwhile, it does to all of them. Prints a line for each case; `--page` writes the table into that file.
"""

import argparse
import logging
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.agreement import difference
from benchmarks.contenders import CONTENDERS, Inputs
from benchmarks.rows import Case

CASES = [
    Case("demo", 1024),
    Case("demo", 1024, first_pass=True),
    Case("demo", 4096),
    Case("demo", 1024, unroll_steps=7),
    Case("demo", 1024, supervised=0.3),
    Case("demo", 1024, dtype="bfloat16"),
    Case("demo", 4096, dtype="bfloat16"),
    Case("llama8b", 512),
    Case("llama8b", 512, dtype="bfloat16"),
]
GPU_CASES = [
    Case("llama8b", 8192, dtype="bfloat16", compile=True),
    Case("llama8b", 8192, dtype="bfloat16"),
    Case("llama8b", 4096, unroll_steps=7, dtype="bfloat16", compile=True),
]
"""Where there is a GPU; some minutes."""
COLUMNS = "case | Eyas, tokens/s | {} | ratio | memory, MiB | {} | ratio | share of the bound"
BEGIN, END = "<!-- table -->", "<!-- /table -->"


class Contender:
    """One of them, in a process of its own that works when it is asked to."""

    def __init__(self, name: str, case: Case) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(name, case, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is noticed here
        self.tokens_per_step: float = self.pipe.recv()
        self.seconds: list[float] = []

    def step(self) -> None:
        self.pipe.send("step")
        self.seconds.append(self.pipe.recv())

    def end(self) -> float:
        """Its peak of memory above its start, in MiB."""
        self.pipe.send("end")
        peak: float = self.pipe.recv()
        self.process.join()
        return peak

    @property
    def speed(self) -> float:
        """Tokens a second; the first steps warm up."""
        return self.tokens_per_step / statistics.median(self.seconds[2:])


def _work(name: str, case: Case, pipe: Connection) -> None:
    for logger in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    inputs = Inputs(case, torch.device("cuda" if on_gpu() else "cpu"))

    def used(peak: bool) -> float:
        if on_gpu():
            return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / 2**20
        return _resident("VmHWM" if peak else "VmRSS")

    def asked() -> Iterator[None]:
        pipe.send(sum(len(row.input_ids_T) for row in inputs.rows) / len(inputs.rows))
        start = used(peak=False)
        while pipe.recv() == "step":
            started = time.monotonic()
            yield
            if on_gpu():
                torch.cuda.synchronize()
            pipe.send(time.monotonic() - started)
        pipe.send(used(peak=True) - start)
        os._exit(0)  # Lightning would go on for a million steps

    CONTENDERS[name](inputs, asked())


def _resident(field: str) -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def measure(case: Case, against: str, repeats: int) -> str:
    """Let them take turns; a line of the table."""
    contenders = {name: Contender(name, case) for name in ("eyas", against, "products")}
    for _ in range(repeats + 2):
        for contender in contenders.values():
            contender.step()
    eyas, rival, products = contenders.values()
    speeds = f"{eyas.speed:,.0f} | {rival.speed:,.0f} | {eyas.speed / rival.speed:.2f} x"
    share = eyas.speed / products.speed
    memory, rivals_memory, _ = (contender.end() for contender in contenders.values())
    return f"{case} | {speeds} | {memory:,.0f} | {rivals_memory:,.0f} | {memory / rivals_memory:.2f} x | {share:.0%}"


def numbers() -> str:
    """How far the two are apart in what they compute."""
    case = Case("demo", 1024)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        loss, gradient = pool.apply(_difference, (case,))
    apart = f"the losses differ by {loss:.0e} and the gradients by {gradient:.0e}, relatively"
    return f"On one document (1,024 tokens, unroll 3, float32) {apart}."


def _difference(case: Case) -> tuple[float, float]:
    return difference(Inputs(case, torch.device("cpu")))


def on_gpu() -> bool:
    return torch.cuda.is_available()


def machine() -> str:
    """Where and with what this was measured."""
    name = torch.cuda.get_device_name() if on_gpu() else _processor()
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "speculators", "transformers"))
    return f"{datetime.now(UTC):%Y-%m-%d}, {name}, {torch.get_num_threads()} threads, {versions}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor())


def write_table(page: Path, table: str) -> None:
    """Put the table between its marks in the page."""
    text = page.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    page.write_text(f"{before}\n{table}\n{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step")
    parser.add_argument("--against", default="speculators")
    parser.add_argument("--case", default="", help="only the cases whose line has this in it")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()

    columns = COLUMNS.format(args.against, args.against)
    lines = [machine(), "", f"| {columns} |", "|--" * len(columns.split(" | ")) + "|"]
    print("\n".join(lines), flush=True)
    for case in GPU_CASES if on_gpu() else CASES:
        if args.case in str(case):
            lines.append(f"| {measure(case, args.against, args.repeats)} |")
            print(lines[-1], flush=True)
    lines += ["", numbers()]
    print("\n".join(lines[-2:]), flush=True)
    if args.page:
        write_table(args.page, "\n".join(lines))


if __name__ == "__main__":
    main()
