"""`eyas evaluate`: a run's draft in another setting, or a draft that no run made, beside any verifier of its shape."""

import sys
from pathlib import Path

from eyas.artifact import remove, write_file
from eyas.cli import train
from eyas.cli.compose import Composed, compose, from_command_line, saved_overrides
from eyas.compare.publish import publish
from eyas.compare.report import print_summary, write_report
from eyas.config import Config, config_yaml, load_config
from eyas.draft.given import PROVENANCE_FILE, find_draft, short_name, trained_for
from eyas.draft.handover import check_provenance
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine
from eyas.process import run_child
from eyas.run import Measurement, Run
from eyas.stages import check_server


def evaluate(target: str, overrides: list[str]) -> None:
    """Measure what `target` names: a run directory, or a draft."""
    run = Run(Path(target))
    if run.exists():
        evaluate_run(run, overrides)
    else:
        evaluate_draft(target, overrides)


def evaluate_run(run: Run, overrides: list[str]) -> None:
    """Measure a run's draft, in another setting if asked; everything else stays as the run has it."""
    foreign = [override for override in overrides if not override.startswith(("evaluation", "server"))]
    if foreign:
        raise EyasError(
            f"eyas evaluate changes evaluation=..., server=... and their keys, not {' '.join(foreign)}: that would be another "
            f"run (beside another verifier: eyas evaluate {run.draft} verifier=...)"
        )
    config = load_config(run.config_file)
    saved, config_dirs = saved_overrides(run.directory)
    asked = compose([*saved, *overrides], config_dirs)
    config.evaluation, config.server = asked.evaluation, asked.server
    with run.held():
        write_file(run.config_file, config_yaml(config))
        train.export(config, run)
        check_provenance(config, run)
        train.evaluate(config, run)
        write_report(config, run)
        publish(config, run)
        print_summary(config, run)


def evaluate_draft(target: str, overrides: list[str]) -> None:
    """Measure a draft that is given: what was composed says everything but the draft itself."""
    usage = "eyas evaluate RUN_DIR key=value ..., or eyas evaluate DRAFT verifier=... key=value ..."
    if target.startswith("-") or "=" in target or target == ".":
        raise EyasError(
            f"{usage}: the first argument is a run directory, a draft's directory or its hub id, not {target}"
        )
    if not any(override.startswith(("verifier=", "verifier.")) for override in overrides):
        raise EyasError(
            f"{target} is no run directory (outputs/NAME); as a draft it is measured beside a verifier: {usage}"
        )
    given = dict(override.partition("=")[::2] for override in overrides)
    # A fine-tune is another path under the same name.
    beside = short_name(given["verifier.path"]) if given.get("verifier.path") else "${verifier.name}"
    own = {
        "draft.init": _quoted(target),
        "name": _quoted(f"{short_name(target)}-on-{beside}"),
        "data.responses": "keep",  # only prompts are asked: nothing is answered anew for it
    }
    sys.argv[1:] = [*overrides, *(f"{key}={value}" for key, value in own.items() if key not in given)]
    from_command_line(measure)


def measure(composed: Composed) -> None:
    """The draft, checked and in one format -> tokens (for the held-out prompts) -> evaluation -> report."""
    config = composed.config
    if config.evaluation.engine is None:
        raise EyasError("evaluation=none measures nothing; choose evaluation=transformers or evaluation=vllm")
    if config.evaluation.engine is Engine.vllm:
        check_server(config)
    find_draft(str(config.draft.init), str(config.draft.init))
    train.make_verifier(config)
    run = Measurement.of(config)
    run.check(config)
    print(f"measure  {run.directory}  {config.draft.init} beside {config.verifier.name}", flush=True)
    with run.opened(config, composed.overrides, composed.config_dirs):
        adopt(config, run)
        if not config.evaluation.prompts:
            train.prepare(config)
        train.evaluate(config, run)
        write_report(config, run)
        print_summary(config, run)


def adopt(config: Config, run: Measurement) -> None:
    """The draft, checked against the verifier, in the format that is measured; one that is refused leaves nothing."""
    draft = str(config.draft.init)
    if (found := trained_for(config, find_draft(draft, draft))) is not None:
        print(f"adopt    {draft} was trained for {found}", flush=True)
    if (run.draft / PROVENANCE_FILE).exists():
        return
    try:
        run_child("eyas.draft.adopt", run.directory)
    except SystemExit:
        remove(run.directory)
        raise


def _quoted(value: str) -> str:
    """A value as Hydra takes it whatever is in it."""
    escaped = value.replace("'", "\\'")
    return f"'{escaped}'"
