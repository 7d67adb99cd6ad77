"""What interrupts a run: kill -9, a damaged file, a loss that blows up, a second process."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

from conftest import OPTIONS, ROOT, train
from eyas.artifact import locked


def wait_for(process: "subprocess.Popen[bytes]", happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill_when(directory: Path, happened: Callable[[], bool]) -> None:
    """Start the run, kill -9 its supervisor at that moment, and see that its children are gone as well."""
    process = subprocess.Popen(
        [sys.executable, "train.py", *OPTIONS, f"outputs={directory}"], cwd=ROOT, stdout=-3, stderr=-3
    )
    wait_for(process, happened)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], text=True, capture_output=True).stdout.split()
    assert children
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    assert not [child for child in children if is_running(child)]


def is_running(process: str) -> bool:
    """Whether a process is there and no zombie that nobody has reaped yet."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z"


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
    ours, theirs = (load_file(directory / "run" / "draft" / "model.safetensors") for directory in (tmp_path, outputs))
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    with (tmp_path / "run" / "metrics.csv").open() as stream:
        validated = [int(row["step"]) for row in csv.DictReader(stream) if row["val/tau_sim"]]
    assert validated == [10, 15, 20, 30, 33]


def test_killed_twice_and_carried_on_bit_for_bit(outputs: Path, tmp_path: Path) -> None:
    def states(pattern: str) -> list[Path]:
        return list((tmp_path / "store" / "states").glob(pattern))

    kill_when(tmp_path, lambda: len(states("*.partial/shard-*.safetensors")) >= 3)
    [partial] = states("*.partial")
    assert not states("*/manifest.json")
    shards = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.safetensors")}

    checkpoints = tmp_path / "run" / "checkpoints"
    kill_when(tmp_path, lambda: (checkpoints / "step-00000020" / "manifest.json").exists())
    [complete] = states("*")
    assert all((complete / name).stat().st_mtime_ns == moment for name, moment in shards.items())
    assert not (checkpoints / "step-00000033").exists()

    done = train(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumes at step 2" in done.stdout or "resumes at step 3" in done.stdout
    assert done.stdout.splitlines()[-2:] == (outputs / "printed").read_text().splitlines()[-2:]

    undisturbed = {path.name: path.read_bytes() for path in (outputs / "store" / "states").glob("*/*.safetensors")}
    assert {path.name: path.read_bytes() for path in complete.glob("*.safetensors")} == undisturbed
    ours, theirs = (load_file(directory / "run" / "draft" / "model.safetensors") for directory in (tmp_path, outputs))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)

    def numbers(directory: Path) -> list[dict[str, str]]:
        with (directory / "run" / "metrics.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        timed = ("train/tokens_per_second", "train/data_wait_share")
        return [{key: value for key, value in row.items() if key not in timed} for row in rows]

    assert numbers(tmp_path) == numbers(outputs)


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
    assert "eyas: error: step " in done.stderr
    assert done.stderr.endswith("try a lower optimizer.lr under another name\n")


def test_one_process_per_run(outputs: Path) -> None:
    with locked(outputs / "run"):
        done = train(outputs)
    assert done.returncode == 2
    assert "is in use by another process" in done.stderr
