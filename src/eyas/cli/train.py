"""`python train.py`: from a configuration to a measured draft.

The supervisor walks a chain of stages and never touches a GPU: each stage is a child process, skipped where its result
is complete, continued where it is partial. So the same command starts a run, resumes it, and says that it is done.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eyas.artifact import Artifact, read_manifest
from eyas.cli.compose import Composed, from_command_line
from eyas.compare.report import print_summary, write_report
from eyas.config import Config, config_yaml, to_dict
from eyas.process import run_child
from eyas.stages import draft_shape, states_artifact, tokens_artifact
from eyas.training.run import Run
from eyas.verifier.locate import to_be_made


def train(composed: Composed) -> None:
    """conversations -> tokens -> states -> checkpoints -> draft -> evaluation -> report."""
    config = composed.config
    run = Run.of(config)
    make_verifier(config)
    # Checked in an instant, before anything is written: shapes, the data file, a directory that holds another run.
    draft_shape(config)
    tokens_artifact(config)
    run.check(config)
    print(f"run      {run.directory}  {'continues' if run.exists() else 'new'}", flush=True)
    preflight(config)

    prepare(config)
    capture(config)
    with run.opened(config, composed.overrides, composed.config_dirs):
        fit(config, run)
        export(run)
        evaluate(config, run)
        write_report(config, run)
        print_summary(config, run)


def make_verifier(config: Config) -> None:
    """A verifier that is made here and not there yet (the demo's, a random one)."""
    if to_be_made(config.verifier):
        with saved(config) as file:
            run_child("eyas.verifier.make", file)


def preflight(config: Config) -> None:
    """Checks that need torch; once the run has a checkpoint they have been passed."""
    if not Run.of(config).newest_checkpoint():
        with saved(config) as file:
            run_child("eyas.doctor", file)


def prepare(config: Config) -> Artifact:
    """The tokens stage."""
    make_verifier(config)
    artifact = tokens_artifact(config)
    if not artifact.exists():
        with saved(config) as file:
            run_child("eyas.data.tokens", file)
    counts = read_manifest(artifact.directory)["counts"]
    supervised = 100 * counts["train_supervised_tokens"] / counts["train_tokens"]
    print(
        f"tokens   {artifact.directory}  {counts['train_rows']:,} rows, {counts['train_tokens']:,} tokens, {supervised:.0f} % supervised; "
        f"{counts['held_out_rows']:,} rows held out; {counts['cut_rows']:,} cut at {config.data.max_length}, "
        f"{counts['unsupervised_rows']:,} dropped without supervision",
        flush=True,
    )
    return artifact


def capture(config: Config) -> Artifact:
    """The states stage."""
    make_verifier(config)
    if not tokens_artifact(config).exists():
        prepare(config)
    artifact = states_artifact(config)
    if not artifact.exists():
        with saved(config) as file:
            run_child("eyas.capture", file)
    counts, ids = read_manifest(artifact.directory)["counts"], artifact.fields["layer_ids"]
    print(
        f"states   {artifact.directory}  {counts['tokens']:,} tokens, layers {ids} and the last, {config.capture.dtype.name}",
        flush=True,
    )
    return artifact


def fit(config: Config, run: Run) -> None:
    """Training: one child (and its ranks), gone before evaluation takes its devices."""
    if run.is_trained(config):
        print(f"train    {run.newest_checkpoint()}  already trained to its full length", flush=True)
    else:
        run_child("eyas.training", run.directory)


def export(run: Run) -> None:
    """The draft in the format that vLLM loads."""
    newest = run.newest_checkpoint()
    if newest is None or run.exported_step() != read_manifest(newest)["step"]:
        run_child("eyas.draft.export", run.directory)


def evaluate(config: Config, run: Run) -> None:
    """Speculative decoding for real, unless this draft has been measured in this setting."""
    if config.evaluation.engine is None:
        return
    done = run.evaluation()
    if done.get("asked") != to_dict(config.evaluation) or done["draft"]["step"] != run.exported_step():
        run_child("eyas.evaluation", run.directory)


@contextmanager
def saved(config: Config) -> Iterator[Path]:
    """The resolved configuration in a file, for a child process."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="eyas-") as file:
        file.write(config_yaml(config))
        file.flush()
        yield Path(file.name)


def main() -> None:
    from_command_line(train)
