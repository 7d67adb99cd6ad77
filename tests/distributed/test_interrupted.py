"""What interrupts a run: a pause to measure, a damaged file, a full disk, a loss that blows up, a second process."""

import csv
import json
import os
import re
import shutil
from pathlib import Path

from chaos import same_weights
from conftest import OPTIONS, train
from eyas.artifact import locked
from eyas.process import EXPLAINED
from eyas.run import damage_of
from running import Running
from small_disk import fill, small_disk


def test_measured_on_the_way_and_trained_to_the_same_weights(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs / "store", tmp_path / "store")
    # A pause where no validation is due, and one where one is.
    options = [
        "evaluation.every_n_steps=15",
        "training.checkpoint_every_n_steps=5",
        "training.validate_every_n_steps=10",
    ]
    done = train(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    kept = {path.name: json.loads(path.read_text()) for path in (tmp_path / "run" / "evaluations").iterdir()}
    assert {name: report["draft"]["step"] for name, report in kept.items()} == {
        "step-00000015.json": 15,
        "step-00000030.json": 30,
    }
    assert f"| 15 | {kept['step-00000015.json']['tau']:.2f} |" in (tmp_path / "run" / "report.md").read_text()
    assert same_weights(tmp_path, outputs)
    with (tmp_path / "run" / "metrics.csv").open() as stream:
        validated = [int(row["step"]) for row in csv.DictReader(stream) if row["val/tau_sim"]]
    assert validated == [10, 15, 20, 30, 33]


def test_a_truncated_checkpoint_is_left_aside(outputs: Path, tmp_path: Path) -> None:
    """The one before it is used, and its own step comes out the same."""
    shutil.copytree(outputs, tmp_path / "outputs")
    newest = tmp_path / "outputs" / "run" / "checkpoints" / "step-00000033"
    weights = newest / "__0_0.distcp"
    size = weights.stat().st_size
    os.truncate(weights, size - 1)
    done = train(tmp_path / "outputs", "evaluation=none")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{newest} is left aside: __0_0.distcp has {size - 1:,} bytes of {size:,}\n" in done.stdout
    assert "resumes at step 30: 33 steps" in done.stdout
    assert damage_of(newest) is None
    assert same_weights(tmp_path / "outputs", outputs)


def test_a_disk_that_is_full_at_a_checkpoint(outputs: Path, tmp_path: Path) -> None:
    """One line for all ranks; the checkpoint before is whole, and the same command carries on when there is room."""
    options = [*OPTIONS, "training.max_steps=233", "trainer.devices=2", "evaluation=none"]
    options += [
        f"training.{what}_every_n_steps={steps}" for what, steps in (("log", 1), ("checkpoint", 200), ("validate", 200))
    ]
    with small_disk(tmp_path / "disk") as disk:
        shutil.copytree(outputs, disk / "outputs")
        running = Running.start(disk / "outputs", *options)
        running.wait_for(lambda: running.steps() > 34)
        ballast = fill(disk, leaving=1 << 17)
        code, _, said = running.end()
        full = (
            f"eyas: error: the disk of {running.run.directory} is full: make room there, and the same command carries on "
            "after what is whole\n"
        )
        assert (code, said) == (EXPLAINED, full)
        assert running.run.trained_steps() == 33
        assert not list(running.run.checkpoints.glob("*.partial"))
        ballast.unlink()
        code, printed, said = Running.start(disk / "outputs", *options).end()
        assert (code, said) == (0, "")
        assert "resumes at step 33: 233 steps" in printed


def test_a_changed_shard_is_refused_by_name(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs / "store", tmp_path / "store")
    [shard] = (tmp_path / "store" / "states").glob("*/shard-00003.safetensors")
    content = bytearray(shard.read_bytes())
    content[-10] ^= 4
    shard.write_bytes(content)
    done = train(tmp_path)
    assert done.returncode == 2
    assert "shard-00003.safetensors is changed since it was captured" in done.stderr


def test_a_loss_that_blows_up_stops_the_run_in_one_line(outputs: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(outputs / "store", tmp_path / "store")).parent
    done = train(directory, "name=hot", "optimizer.lr=1e30", "evaluation=none")
    assert done.returncode == 2
    assert re.match(
        r"eyas: error: step \d+: loss .*, gradient norm .*, on documents \d+, .* of the tokens; ", done.stderr
    )
    assert done.stderr.endswith("try a lower optimizer.lr under another name\n")


def test_one_process_per_run(outputs: Path) -> None:
    with locked(outputs / "run"):
        done = train(outputs)
    assert done.returncode == 2
    assert "is in use by another process" in done.stderr
