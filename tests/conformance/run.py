"""Every model type that transformers registers, opened by YAML alone: `python -m tests.conformance.run [TYPE ...]`.

A tiny random checkpoint is built from the type's own config class and saved as the model itself saves it. Eyas opens the
directory as `verifier=auto` does, captures the last state through its own hooks, and the teacher's logits are compared with
the model's. Then the same checkpoint is opened as if no YAML listed its type. Prints one line per type; without TYPE all
of them run, and results.json and docs/verifiers.md are written.
"""

import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tests.conformance import tiny

from eyas.capture.modules import find_modules
from eyas.capture.tap import Tap
from eyas.cli.auto import verifier_composer
from eyas.cli.compose import compose as compose_config
from eyas.config import Config
from eyas.doctor.facts_checks import examine_facts
from eyas.doctor.findings import Verdict
from eyas.doctor.trial import try_all
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.detect import detect
from eyas.verifier.facts import Arithmetic, VerifierFacts, resolve
from eyas.verifier.library import arithmetics, read_library
from eyas.verifier.schema import Target, VerifierConfig
from eyas.verifier.teacher import Teacher

EXACT = 1e-5
RESULTS = Path(__file__).with_name("results.json")
SHAPE_ROWS = ("p09_layer_ids", "p10_vocabulary", "p13_draft_shape", "evidence")
"""The doctor's rows that a checkpoint of four narrow layers can't satisfy."""

compose = verifier_composer([])
library = read_library()


@dataclass(frozen=True)
class Outcome:
    """What became of one model type."""

    model_type: str
    verdict: str
    """passed: the teacher's logits are the model's; resolved: the facts alone, since the model can't be built here;
    refused, failed, out of scope."""
    option: str = ""
    target: str = ""
    difference: float | None = None
    """Largest difference of the logits, relative to the largest logit."""
    reason: str = ""
    tried: str = ""
    """What a trial finds where no YAML lists the type: the option whose arithmetic it took, or why it refused."""

    @property
    def tried_and_found(self) -> bool:
        return bool(self.tried) and not self.tried.startswith(("refused", "WRONG"))


def conform(model_type: str, *, with_trial: bool = True) -> Outcome:
    """Build, save, open, compare one type."""
    if model_type in tiny.OUT_OF_SCOPE:
        return Outcome(model_type, "out of scope", reason=tiny.OUT_OF_SCOPE[model_type])
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        directory = Path(name)
        outcome = Outcome(model_type, "refused")
        try:
            if model_type in tiny.NOT_BUILT:
                return _resolved(model_type, directory)
            model = tiny.build(model_type).requires_grad_(False)
            tiny.save(model, directory)
            checkpoint = Checkpoint(directory)
            reading = detect(checkpoint, "it", library, compose)
            outcome = replace(outcome, option=reading.option)
            verifier = compose(reading.option, reading.values)
            facts = resolve(verifier, checkpoint)
            outcome = replace(outcome, target=facts.arithmetic.target.name)
            difference = _difference(model, verifier, checkpoint, facts)
        except EyasError as error:
            return replace(outcome, reason=str(error).replace(name, "DIR"))
        if difference >= EXACT:
            return replace(outcome, verdict="failed", difference=difference)
        if doubts := _doubts(verifier, checkpoint):
            return replace(outcome, verdict="failed", difference=difference, reason=f"the doctor says: {doubts}")
        tried = _tried(checkpoint, facts.arithmetic) if with_trial else ""
        return replace(outcome, verdict="passed", difference=difference, tried=tried)


def _difference(
    model: transformers.PreTrainedModel, verifier: VerifierConfig, checkpoint: Checkpoint, facts: VerifierFacts
) -> float:
    teacher = Teacher.from_checkpoint(checkpoint, facts, torch.float32)
    inputs = tiny.text_inputs(model)
    modules = find_modules(model, verifier, facts.num_layers, inputs)
    with (tap := Tap(modules, range(facts.num_layers), verifier)):
        output = model(**inputs, use_cache=False)
        own = output.logits if hasattr(output, "logits") else output[0]
        rebuilt = teacher(tap.take()[1][0])
    own = own[0, -len(rebuilt) :, : rebuilt.shape[-1]].float()
    return float((rebuilt - own).abs().max() / own.abs().max())


@cache
def _training() -> Config:
    """What surrounds the verifier; any will do."""
    return compose_config(["verifier=tiny_llama", "draft.vocab_size=null", "experiment=none"], [])


def _doubts(verifier: VerifierConfig, checkpoint: Checkpoint) -> str:
    """What the doctor would refuse, of all that a tiny checkpoint can satisfy."""
    config = replace(_training(), verifier=verifier)
    failed = [it for it in examine_facts(config, checkpoint, library) if it.verdict is Verdict.fail]
    return "; ".join(f"{it.name}: {it.found}" for it in failed if it.name not in SHAPE_ROWS)


def _tried(checkpoint: Checkpoint, right: Arithmetic) -> str:
    """Open the same checkpoint as if no YAML listed its type."""
    try:
        reading = try_all(
            checkpoint, "it", [(option, compose(option, {"name": "it"})) for option in arithmetics(library)]
        )
        found = resolve(compose(reading.option, reading.values), checkpoint).arithmetic
    except EyasError as error:
        return f"refused: {error}".replace(str(checkpoint.directory), "DIR")
    at_head = Target.head_input in (found.target, right.target)
    same = found.post_head == right.post_head if at_head else found == right
    return reading.option if same else f"WRONG: {found} instead of {right}"


def _resolved(model_type: str, directory: Path) -> Outcome:
    """A type whose model can't be built here: its config, and tensors under the names that it saves."""
    tiny.tiny_config(model_type).save_pretrained(directory)
    save_file(
        {key: torch.ones(shape) for key, shape in tiny.SAVED_KEYS[model_type].items()}, directory / "model.safetensors"
    )
    checkpoint = Checkpoint(directory)
    reading = detect(checkpoint, "it", library, compose)
    facts = resolve(compose(reading.option, reading.values), checkpoint)
    return Outcome(
        model_type, "resolved", reading.option, facts.arithmetic.target.name, reason=tiny.NOT_BUILT[model_type]
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' remarks on toy configs."""
    torch.set_num_threads(1)
    logging.disable()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def guarded(model_type: str) -> Outcome:
    with quiet():
        try:
            return conform(model_type)
        except Exception as error:
            return Outcome(model_type, "failed", reason=f"{type(error).__name__}: {str(error)[:300]}")


def main(names: list[str]) -> None:
    outcomes = []
    with get_context("spawn").Pool(2) as pool:
        for outcome in pool.imap_unordered(guarded, names or sorted(tiny.model_types())):
            outcomes.append(outcome)
            difference = "" if outcome.difference is None else f" {outcome.difference:.0e}"
            shown = f"{outcome.reason}{outcome.target}{difference}"
            print(
                f"{outcome.model_type:26s}{outcome.verdict:13s}{outcome.option:24s}{shown}  {outcome.tried}", flush=True
            )
    outcomes.sort(key=lambda it: it.model_type)
    for verdict in ("passed", "resolved", "refused", "failed", "out of scope"):
        print(f"{verdict}: {sum(it.verdict == verdict for it in outcomes)}")
    wrong = [it.model_type for it in outcomes if it.tried.startswith("WRONG") or it.verdict == "failed"]
    print(f"found by trial: {sum(it.tried_and_found for it in outcomes)}; wrong: {', '.join(wrong) or 'none'}")
    if not names:
        from tests.conformance.table import write_table

        RESULTS.write_text(json.dumps([asdict(it) for it in outcomes], indent=1) + "\n")
        write_table()
    sys.exit(bool(wrong))


def results() -> list[Outcome]:
    """The outcomes of the last whole run."""
    return [Outcome(**it) for it in json.loads(RESULTS.read_text())]


if __name__ == "__main__":
    main(sys.argv[1:])
