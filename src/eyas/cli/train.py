"""`python train.py`: from a configuration to a measured draft.

The supervisor walks a chain of stages and never touches a GPU: each stage is a child process, skipped where its result
is complete, continued where it is partial. So the same command starts a run, resumes it, and says that it is done.
"""

import os
import tempfile
from pathlib import Path

from eyas.artifact import read_manifest, write_file
from eyas.cli.compose import Composed, from_command_line
from eyas.cli.sweep import sweep
from eyas.compare.publish import publish
from eyas.compare.report import print_summary, write_report
from eyas.config import Config, config_yaml
from eyas.data.report import changed, dropped, print_report, read_examples
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine
from eyas.machines import Gathering, Machines, follow, gathered
from eyas.process import run_child
from eyas.run import Run, damage_of
from eyas.serving.command import beside_the_server
from eyas.stages import (
    draft_shape,
    is_online,
    parity_file,
    regenerates,
    responses_artifact,
    states_artifact,
    tokens_artifact,
)
from eyas.training.launch import free_port, launch
from eyas.training.schema import Accelerator
from eyas.verifier.locate import to_be_made


def train(composed: Composed) -> None:
    """On the first machine the whole chain, on the others their share of the training."""
    config, machines = composed.config, Machines.of(os.environ)
    if machines.spare:
        return
    machines.check(config.trainer)
    with gathered(Run.of(config).directory, machines) as gathering:
        if machines.first:
            walk(composed, gathering)
        else:
            follow(gathering, lambda meeting: launch(Run.of(config), config, meeting, machines.number))


def walk(composed: Composed, gathering: Gathering) -> None:
    """conversations -> tokens -> states -> checkpoints -> draft -> evaluation -> report."""
    config = composed.config
    run = Run.of(config)
    make_verifier(config)
    # Checked in an instant, before anything is written: shapes, the data file, a directory that holds another run.
    draft_shape(config)
    tokens_artifact(config)
    config.trainer.check_divides(config.training.rows_per_step)  # a run may go on with more devices than it began with
    run.check(config)
    print(f"run      {run.directory}  {'continues' if run.exists() else 'new'}", flush=True)
    for checkpoint in run.all_checkpoints():
        if damage := damage_of(checkpoint):
            print(f"run      {checkpoint} is left aside: {damage}", flush=True)
    preflight(config)

    prepare(config)
    if config.evaluation.engine is Engine.vllm and not run.newest_checkpoint():
        run_stage("eyas.evaluation.probe", config)
    if not is_online(config):
        capture(config)
    with run.opened(config, composed.overrides, composed.config_dirs):
        fit(config, run, gathering)
        export(config, run)
        evaluate(config, run)
        write_report(config, run)
        publish(config, run)
        print_summary(config, run)


def make_verifier(config: Config) -> None:
    """A verifier that is made here and not there yet (the demo's, a random one)."""
    if to_be_made(config.verifier):
        run_stage("eyas.verifier.make", config)


def preflight(config: Config) -> None:
    """Checks that need torch; once the run has a checkpoint they have been passed."""
    if not Run.of(config).newest_checkpoint():
        run_stage("eyas.doctor.preflight", config)


def doctor(config: Config) -> None:
    """Every check, the expensive ones too; exit code 0 only without a failure."""
    make_verifier(config)
    run_stage("eyas.doctor", config)
    if config.serve:
        prepare(config)
        run_stage("eyas.evaluation.probe", config)


def generate(config: Config) -> None:
    """The responses stage: the verifier's own answers."""
    make_verifier(config)
    artifact = responses_artifact(config)
    if not artifact.exists():
        run_stage("eyas.data.responses", config)
    counts = read_manifest(artifact.directory)["counts"]
    cut = (
        f", {counts['cut_answers']:,} of them cut at {config.generation.max_tokens} tokens"
        if counts["cut_answers"]
        else ""
    )
    print(f"answers  {artifact.directory}  {counts['answered']:,} conversations answered{cut}", flush=True)


def prepare(config: Config) -> None:
    """The tokens stage."""
    make_verifier(config)
    if regenerates(config):
        generate(config)
    artifact = tokens_artifact(config)
    if not artifact.exists():
        run_stage("eyas.data.prepare", config)
    counts = read_manifest(artifact.directory)["counts"]
    supervised = counts["train_supervised_tokens"] / counts["train_tokens"]
    rows = f"{counts['train_rows']:,} rows to train, {counts['held_out_rows']:,} held out"
    lost = "; ".join(f"{number} {why}" for number, why in [*dropped(counts), *changed(counts)])
    tokens = f"{counts['train_tokens']:,} tokens, {supervised:.0%} supervised"
    print(f"tokens   {artifact.directory}  {rows}; {tokens}{'; ' if lost else ''}{lost}", flush=True)


def show_tokens(config: Config) -> None:
    """The tokens stage, and what it made in figures and examples."""
    prepare(config)
    directory = tokens_artifact(config).directory
    print_report(directory, read_manifest(directory)["counts"], read_examples(directory))


def capture(config: Config) -> None:
    """The states stage."""
    make_verifier(config)
    if not tokens_artifact(config).exists():
        prepare(config)
    artifact = states_artifact(config)
    if not artifact.exists() or not parity_file(config).exists():
        run_stage("eyas.capture", config)
    num_tokens, ids = read_manifest(artifact.directory)["counts"]["tokens"], artifact.fields["layer_ids"]
    layers = f"layers {ids} and the last, {config.capture.dtype.name}"
    print(f"states   {artifact.directory}  {num_tokens:,} tokens, {layers}", flush=True)


def fit(config: Config, run: Run, gathering: Gathering) -> None:
    """Training to its full length, with a measurement at each pause that is asked for."""
    if run.is_trained(config):
        print(f"train    {run.newest_checkpoint()}  already trained to its full length", flush=True)
    measure_on_the_way(config, run)
    while not run.is_trained(config):
        before = run.trained_steps()
        train_on(config, run, gathering)
        if run.trained_steps() == before or not (run.is_trained(config) or is_pause(config, run)):
            raise EyasError(
                f"training stopped at {run.newest_checkpoint()}, before its end; the same command carries on"
            )
        measure_on_the_way(config, run)
    if run.window.exists():
        run_child("eyas.capture.keep", run.directory)


def train_on(config: Config, run: Run, gathering: Gathering) -> None:
    """Training: a child per device, gone before evaluation takes its devices; on-line, with its capture beside it."""
    meeting = gathering.call(free_port)
    if is_online(config):
        run.open_window()
        devices = config.trainer.devices if config.trainer.accelerator is Accelerator.cuda else 0
        environment = beside_the_server(config.server, devices)
        launch(run, config, meeting, beside="eyas.capture.online", environment=environment)
    else:
        launch(run, config, meeting)


def is_pause(config: Config, run: Run) -> bool:
    """Whether the training stands where its draft is to be measured before it goes on (`evaluation.every_n_steps`)."""
    every, step = config.evaluation.every_n_steps, run.trained_steps()
    return every is not None and step > 0 and step % every == 0 and not run.is_trained(config)


def measure_on_the_way(config: Config, run: Run) -> None:
    """Measure the draft of a pause, once: evaluation.json is kept under its step."""
    file = run.measured_file(run.trained_steps())
    if not is_pause(config, run) or file.exists():
        return
    export(config, run)
    evaluate(config, run)
    file.parent.mkdir(exist_ok=True)
    write_file(file, run.evaluation_file.read_text())
    print(f"measure  step {run.trained_steps()}  {run.evaluation()['verdict'][0]}", flush=True)


def export(config: Config, run: Run) -> None:
    """The draft in the formats that are asked for."""
    if not run.is_exported(config):
        run_child("eyas.draft.export", run.directory)


def evaluate(config: Config, run: Run) -> None:
    """Speculative decoding for real, unless this draft has been measured in this setting."""
    if not run.is_measured(config):
        run_child("eyas.evaluation", run.directory)


def run_stage(module: str, config: Config) -> None:
    """Run a stage that isn't a run's own: its child reads the resolved configuration from a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="eyas-") as file:
        file.write(config_yaml(config))
        file.flush()
        run_child(module, Path(file.name))


def main() -> None:
    from_command_line(train, many=sweep)
