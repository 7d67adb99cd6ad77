"""`eyas COMMAND ...`: the whole chain, or one stage of it.

    eyas train    key=value ...        conversations to a measured draft (as `python train.py`)
    eyas plan     key=value ...        parameters, memory by part, steps, disk and time, before any GPU is taken
    eyas generate key=value ...        questions -> the verifier's own answers (as data.responses does by itself)
    eyas prepare  key=value ...        conversations -> tokens and loss mask, in figures and examples
    eyas capture  key=value ...        tokens -> the verifier's hidden states
    eyas doctor   key=value ...        every check of a verifier and a configuration, as a table and doctor.json
    eyas doctor   --list               the named verifiers and their facts
    eyas inspect  DIR                  what a checkpoint is, as a YAML to keep (--bundle=FILE.zip: its headers, to report)
    eyas export   RUN_DIR              a run's newest checkpoint -> draft/ (what vLLM loads; export.formats=[vllm,sglang])
    eyas evaluate RUN_DIR key=value    measure a run's draft (evaluation=..., server=... and their keys)
    eyas evaluate DRAFT   verifier=... measure any EAGLE-3 draft, a directory or hub id, beside any verifier of its shape
    eyas compare  RUN...               rank runs, sweeps and measurements, with intervals (--html --csv --markdown --json FILE)

verifier=auto verifier.path=DIR finds the verifier's YAML by its checkpoint.
key=value and --config-dir, --cfg job, --help, -m are Hydra's; `eyas train --help` lists groups and options.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from eyas.artifact import write_file
from eyas.cli import train
from eyas.cli.compose import Composed, command_line_without, compose, from_command_line, saved_overrides
from eyas.cli.evaluate import evaluate
from eyas.cli.inspect import inspect, list_verifiers
from eyas.cli.sweep import sweep
from eyas.compare.report import write_report
from eyas.config import Config, config_yaml, load_config
from eyas.errors import EyasError
from eyas.process import PARENT, die_with_parent, fail, run_child
from eyas.run import Run


def plan(config: Config) -> None:
    """What a training will take, before it takes it; a verifier that its YAML describes needn't be here."""
    if config.verifier.make is not None:
        train.make_verifier(config)
    train.run_stage("eyas.plan", config)


COMPOSING: dict[str, Callable[[Composed], object]] = {
    "train": train.train,
    "plan": lambda composed: plan(composed.config),
    "generate": lambda composed: train.generate(composed.config),
    "prepare": lambda composed: train.show_tokens(composed.config),
    "capture": lambda composed: train.capture(composed.config),
    "doctor": lambda composed: train.doctor(composed.config),
}


def export(directory: str, overrides: list[str]) -> None:
    """Export the newest checkpoint, again if need be, in other formats if asked."""
    run = Run(Path(directory))
    if not run.exists():
        raise EyasError(f"{run.directory} is no run directory (outputs/NAME, with config.yaml in it)")
    foreign = [override for override in overrides if not override.startswith("export.")]
    if foreign:
        raise EyasError(f"eyas export changes export.formats and nothing else, not {' '.join(foreign)}")
    config = load_config(run.config_file)
    saved, config_dirs = saved_overrides(run.directory)
    config.export = compose([*saved, *overrides], config_dirs).export
    with run.held():
        write_file(run.config_file, config_yaml(config))
        run_child("eyas.draft.export", run.directory)
        write_report(config, run)


WORKING_ON_DIRECTORIES: dict[str, Callable[[str, list[str]], None]] = {"export": export, "evaluate": evaluate}


def main() -> None:
    if PARENT in os.environ:  # a job of a sweep
        die_with_parent()
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command == "doctor" and "--list" in sys.argv[2:]:
        list_verifiers()
    elif command == "inspect":
        explained(inspect, sys.argv[2:])
    elif command == "compare":
        from eyas.cli.compare import compare  # here, since only it needs numpy and more

        explained(compare, sys.argv[2:])
    elif command in COMPOSING:
        command_line_without(1)
        if command == "plan":
            sys.argv[1:] = without_data(sys.argv[1:])
        from_command_line(COMPOSING[command], many=sweep if command == "train" else None)
    elif command in WORKING_ON_DIRECTORIES:
        explained(lambda it: WORKING_ON_DIRECTORIES[command](it[0] if it else ".", it[1:]), sys.argv[2:])
    elif command in ("--help", "-h", "help"):
        print(__doc__)
    else:
        fail(
            f"eyas {command}: there is no such command; it has: {', '.join([*COMPOSING, 'inspect', *WORKING_ON_DIRECTORIES, 'compare'])}"
        )


def without_data(arguments: list[str]) -> list[str]:
    """A plan of a named verifier needs no conversations: where nothing is said of them, there are none."""
    places = [place for place, argument in enumerate(arguments) if argument.startswith("verifier=")]
    if not places or any(argument.startswith(("data=", "data.", "experiment=")) for argument in arguments):
        return arguments
    return [*arguments[: places[0]], "data=none", *arguments[places[0] :]]  # argparse wants overrides in one piece


def explained(command: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Run a command that doesn't compose; errors in one line."""
    try:
        command(arguments)
    except EyasError as error:
        fail(error)


if __name__ == "__main__":
    main()
