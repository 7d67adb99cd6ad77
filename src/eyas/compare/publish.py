"""`python -m eyas.compare.publish RUN_DIR`: what is known after a training goes to its run in Weights & Biases.

tau and acceptance with their setting, what the training cost, what the doctor says, and, if asked, the draft as an artifact.
`eyas.compare.wandb_runs` reads the same back.
"""

import os
from pathlib import Path
from typing import Any, cast

from eyas.artifact import sha256_of, write_file
from eyas.config import Config, load_config
from eyas.disclosure import disclosed
from eyas.draft.given import provenance_of
from eyas.errors import EyasError
from eyas.evaluation.report import in_words
from eyas.process import child_main, run_child
from eyas.run import Run


def publish(config: Config, run: Run) -> None:
    """In a process of its own, where the run has a page that doesn't say so yet."""
    if "wandb" in config.logger and run.draft.exists() and _said(run) != _to_say(run):
        run_child("eyas.compare.publish", run.directory)


def _to_say(run: Run) -> str:
    files = [file for file in (run.draft / "eyas.json", run.evaluation_file) if file.exists()]
    return " ".join(sha256_of(file) for file in files)


def _said(run: Run) -> str:
    return _marker(run).read_text() if _marker(run).exists() else ""


def _marker(run: Run) -> Path:
    """What was published last."""
    return run.directory / "wandb" / "published"


def main(directory: Path) -> None:
    import wandb

    from eyas.training.loggers import WANDB, named_logger

    os.environ.setdefault("WANDB_SILENT", "true")  # the training has shown the run's page
    run = Run(directory)
    config = load_config(run.config_file)
    known = summary(config, run)
    try:
        page = cast(Any, named_logger(run, config, WANDB)).experiment
    except wandb.Error as error:
        raise EyasError(
            f"Weights & Biases did not take what is known of {run.directory} ({' '.join(str(error).split())}); the run itself is "
            "complete, and the same command tries again"
        ) from None
    for key, value in known.items():
        page.summary[key] = value
    if config.logger[WANDB].get("log_model", False):
        page.log_artifact(
            str(run.draft), name=artifact_name(config), type="model", aliases=[f"step-{run.exported_step()}"]
        )
    page.finish()
    write_file(_marker(run), _to_say(run))


def summary(config: Config, run: Run) -> dict[str, Any]:
    """By key in the run's summary."""
    evaluation = disclosed(run.evaluation())
    found: dict[str, Any] = {"cost": provenance_of(run.draft).get("cost", {}), "doctor": doctor(config)}
    if evaluation:
        setting = evaluation["setting"]
        at = f"{in_words(setting)}, {setting['prompts']}"
        found |= {"evaluation": evaluation, "measured/tau": evaluation["tau"], "measured/setting": at}
        found |= {f"measured/acceptance_{place}": share for place, share in enumerate(evaluation["acceptance"], 1)}
    return found


def doctor(config: Config) -> dict[str, Any]:
    """Which of the cheap checks were passed, and what the others say."""
    from eyas.doctor.facts_checks import examine_facts
    from eyas.doctor.findings import Verdict
    from eyas.doctor.training_checks import examine_training
    from eyas.verifier.library import read_library
    from eyas.verifier.locate import locate

    findings = [*examine_facts(config, locate(config.verifier), read_library()), *examine_training(config)]
    said = {it.name: disclosed(it.found) for it in findings if it.verdict in (Verdict.warn, Verdict.fail)}
    return {"passed": sum(it.verdict is Verdict.ok for it in findings), "said": said}


def artifact_name(config: Config) -> str:
    return config.name.replace("/", "-").replace("+", "-").replace("=", "-").replace(",", "-")


if __name__ == "__main__":
    child_main(main)
