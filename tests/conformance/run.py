"""Every model type that transformers registers, opened by YAML alone: `python -m tests.conformance.run [TYPE ...]`.

A tiny random checkpoint is built from the type's own config class and saved as the model itself saves it. Eyas opens the
directory with `auto` (which finds the YAML that lists the type), captures the last state through its own hooks, and the
teacher's logits are compared with the model's. Prints one line per type and writes them as JSON with `--out FILE`.
"""

import json
import logging
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers
from tests.conformance import tiny

from eyas.capture.modules import find_modules
from eyas.capture.tap import Tap
from eyas.cli.auto import verifier_composer
from eyas.doctor.trial import try_all
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.detect import Reading, detect
from eyas.verifier.facts import Arithmetic, resolve
from eyas.verifier.library import arithmetics, read_library
from eyas.verifier.schema import Target
from eyas.verifier.teacher import Teacher

EXACT = 1e-5
compose = verifier_composer([])
library = read_library()


@dataclass(frozen=True)
class Outcome:
    """What became of one model type."""

    model_type: str
    verdict: str
    """passed, refused, failed, not built, out of scope."""
    option: str = ""
    target: str = ""
    difference: float | None = None
    reason: str = ""
    tried: str = ""
    """What a trial finds where no YAML lists the type: the option whose arithmetic it took, or why it refused."""
    seconds: float = 0.0


def conform(model_type: str, with_trial: bool = True) -> Outcome:
    """Build, save, open, compare one type."""
    started = time.perf_counter()
    if model_type in tiny.OUT_OF_SCOPE:
        return Outcome(model_type, "out of scope", reason=tiny.OUT_OF_SCOPE[model_type])
    if model_type in tiny.NOT_BUILT:
        return Outcome(model_type, "not built", reason=tiny.NOT_BUILT[model_type])
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        model = tiny.build(model_type)
        model.requires_grad_(False)
        tiny.save(model, Path(directory))
        checkpoint = Checkpoint(Path(directory))
        reading = Reading("")
        try:
            reading = detect(checkpoint, "it", library, compose)
            verifier = compose(reading.option, reading.values)
            facts = resolve(verifier, checkpoint)
            teacher = Teacher.from_checkpoint(checkpoint, facts, torch.float32)
            inputs = tiny.text_inputs(model)
            modules = find_modules(model, verifier, facts.num_layers, inputs)
            with (tap := Tap(modules, [0], verifier)):
                output = model(**inputs, use_cache=False)
                own = output.logits if hasattr(output, "logits") else output[0]
                rebuilt = teacher(tap.take()[1][0])
        except EyasError as error:
            reason = str(error).replace(directory, "DIR")
            return Outcome(model_type, "refused", reading.option, reason=reason, seconds=time.perf_counter() - started)
        own = own[0, -len(rebuilt) :, : rebuilt.shape[-1]].float()
        difference = float((rebuilt - own).abs().max() / own.abs().max())
        return Outcome(
            model_type,
            "passed" if difference < EXACT else "failed",
            reading.option,
            facts.arithmetic.target.name,
            difference,
            tried=tried(checkpoint, facts.arithmetic) if with_trial else "",
            seconds=time.perf_counter() - started,
        )


def tried(checkpoint: Checkpoint, right: Arithmetic) -> str:
    """Open the same checkpoint as if no YAML listed its type."""
    try:
        reading = try_all(
            checkpoint, "it", [(option, compose(option, {"name": "it"})) for option in arithmetics(library)]
        )
        verifier = compose(reading.option, reading.values)
        found = resolve(verifier, checkpoint).arithmetic
    except EyasError as error:
        return f"refused: {error}".replace(str(checkpoint.directory), "DIR")
    except Exception as error:
        return f"refused: {type(error).__name__}"
    at_head = Target.head_input in (found.target, right.target)
    same = found.post_head == right.post_head if at_head else found == right
    return reading.option if same else f"WRONG: {found} instead of {right}"


def guarded(model_type: str) -> Outcome:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable()
    transformers.utils.logging.disable_progress_bar()
    try:
        return conform(model_type)
    except Exception as error:
        return Outcome(model_type, "failed", reason=f"{type(error).__name__}: {str(error)[:300]}")


def main(arguments: list[str]) -> None:
    out = Path(arguments.pop(arguments.index("--out") + 1)) if "--out" in arguments else None
    names = [argument for argument in arguments if not argument.startswith("--")] or sorted(tiny.model_types())
    outcomes = []
    with get_context("spawn").Pool(2, maxtasksperchild=60) as pool:
        for outcome in pool.imap_unordered(guarded, names):
            outcomes.append(outcome)
            shown = outcome.reason or f"{outcome.target} {outcome.difference:.1e}  tried: {outcome.tried}"
            print(f"{outcome.model_type:28s} {outcome.verdict:12s} {outcome.option:24s} {shown}", flush=True)
    counts = {
        verdict: sum(it.verdict == verdict for it in outcomes) for verdict in sorted({it.verdict for it in outcomes})
    }
    print(", ".join(f"{verdict}: {count}" for verdict, count in counts.items()))
    if out:
        out.write_text(
            json.dumps([asdict(it) for it in sorted(outcomes, key=lambda it: it.model_type)], indent=1) + "\n"
        )
    sys.exit(counts.get("failed", 0) > 0 or any(it.tried.startswith("WRONG") for it in outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
