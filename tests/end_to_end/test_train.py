"""`python train.py` as a person uses it: once through, again, killed and carried on, and with bad input."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from conftest import ROOT, run
from eyas.verifier.checkpoint import Checkpoint

STORE = ["capture.tokens_per_shard=2000", "capture.tokens_per_batch=256"]
OPTIONS = ["verifier=tiny_llama", "name=run", *STORE, "training.epochs=null", "training.max_steps=33"]


def train(directory: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    return run("train.py", *OPTIONS, f"outputs={directory}", *overrides)


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Checkpoint) -> Path:
    """A finished, undisturbed run, with what it printed."""
    directory = tmp_path_factory.mktemp("outputs")
    done = train(directory)
    assert done.returncode == 0, done.stderr
    (directory / "printed").write_text(done.stdout)
    assert "warning" not in done.stderr.lower(), done.stderr
    return directory


def test_what_a_person_sees(outputs: Path) -> None:
    lines = (outputs / "printed").read_text().splitlines()
    assert lines[-2].startswith("measured tau ")
    assert lines[-2].endswith("(k=3, T=0, transformers, float32)")
    assert lines[-1] == "output identical to plain greedy decoding (4/4)"
    for word in ("tokens ", "capture", "train ", "validate", "export", "tau_sim", "vllm serve"):
        assert any(word in line for line in lines), word


def test_what_a_run_leaves(outputs: Path) -> None:
    directory = outputs / "run"
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert (config["name"], config["training"]["unroll_steps"]) == ("run", 3)
    with (directory / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["step"]) for row in rows if row["val/tau_sim"]] == [10, 20, 30, 33]
    assert [int(row["step"]) for row in rows if row["train/loss"]] == [5, 10, 15, 20, 25, 30, 33]
    for column in ("val/acceptance_0", "val/acceptance_cond_2", "train/tokens_per_second", "train/data_wait_share"):
        assert column in rows[0]
    report = json.loads((directory / "evaluation.json").read_text())
    assert report["setting"]["k"] == 3
    assert report["tau"] == pytest.approx(1 + sum(report["acceptance"]))
    assert "![training](training.png)" in (directory / "report.md").read_text()
    assert (directory / "training.png").stat().st_size > 10_000
    assert {path.name for path in (directory / "draft").iterdir()} == {"config.json", "eyas.json", "model.safetensors"}
    assert [path.name for path in sorted((directory / "checkpoints").iterdir())] == ["step-00000030", "step-00000033"]
    assert not list(outputs.rglob("*.partial"))


def test_the_same_command_again_says_so_in_seconds(outputs: Path) -> None:
    before = (outputs / "run" / "checkpoints" / "step-00000033" / "manifest.json").stat().st_mtime_ns
    started = time.monotonic()
    done = train(outputs)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 10
    assert "already trained" in done.stdout
    assert done.stdout.splitlines()[-2:] == (outputs / "printed").read_text().splitlines()[-2:]
    assert (outputs / "run" / "checkpoints" / "step-00000033" / "manifest.json").stat().st_mtime_ns == before


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


def test_a_longer_run_continues(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs, tmp_path / "outputs")
    done = train(tmp_path / "outputs", "training.max_steps=36", "evaluation=none")
    assert done.returncode == 0, done.stderr
    assert "resumes at step 33: 36 steps" in done.stdout
    assert (tmp_path / "outputs" / "run" / "checkpoints" / "step-00000036").exists()


def test_stages_alone_and_evaluation_in_another_setting(outputs: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(outputs, tmp_path / "outputs")
    for stage in ("prepare", "capture"):
        done = run("-m", "eyas.cli.main", stage, *OPTIONS, f"outputs={directory}")
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("states ")
    done = run("-m", "eyas.cli.main", "evaluate", str(directory / "run"), "evaluation.k=2", "evaluation.num_prompts=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "output identical to plain greedy decoding (2/2)"
    assert "(k=2, T=0, transformers, float32)" in done.stdout
    done = run("-m", "eyas.cli.main", "evaluate", str(directory / "run"), "draft.num_layers=2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "that would be another run" in done.stderr


BAD = [
    pytest.param(["data.path={tmp}/nope.jsonl"], "there is no such file", id="missing-data"),
    pytest.param(["data.path={tmp}/empty.jsonl"], "the file is empty", id="empty-data"),
    pytest.param(["data.path={tmp}/broken.jsonl"], "broken.jsonl:2: not valid JSON", id="broken-line"),
    pytest.param(["data.path={tmp}/silent.jsonl"], "silent.jsonl:1: no assistant turn", id="no-assistant-turn"),
    pytest.param(["verifier.path={tmp}/hollow"], "holds no *.safetensors weights", id="verifier-without-weights"),
    pytest.param(["draft.layer_ids=[2,4,8]"], "expected distinct ids in ascending order from 0 to 7", id="layer-id"),
    pytest.param(["draft.vocab_size=1000"], "is larger than the vocabulary of tiny_llama, 259", id="draft-vocabulary"),
    pytest.param(["outputs=/proc/outputs"], "can't be written", id="unwritable"),
    pytest.param(
        ["+optimizer.momentum=0.9"], "torch.optim.AdamW got an unexpected keyword argument 'momentum'", id="optimizer"
    ),
    pytest.param(["optimizer._target_=os.system"], "expected an object of one of these packages", id="foreign-target"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    overrides: list[str], message: str, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    good = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}\n'
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text(good + '{"messages": [\n')
    (tmp_path / "silent.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    (tmp_path / "hollow").mkdir()
    shutil.copy(tiny_checkpoint.directory / "config.json", tmp_path / "hollow")
    before = sorted(tmp_path.rglob("*"))
    done = train(tmp_path / "outputs", *(override.format(tmp=tmp_path) for override in overrides))
    assert done.returncode == 2
    assert done.stderr.startswith("eyas: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_the_same_name_with_another_identity(outputs: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in (outputs / "run").rglob("*"))
    done = train(outputs, "optimizer.lr=5e-4", "seed=1")
    assert done.returncode == 2
    assert done.stderr == (
        f"eyas: error: {outputs}/run holds another run (optimizer.lr: 0.001 there, 0.0005 now; seed: 0 there, 1 now); "
        "start this one anew with name=run-2\n"
    )
    assert sorted((path, path.stat().st_mtime_ns) for path in (outputs / "run").rglob("*")) == before


def test_one_process_per_run(outputs: Path) -> None:
    from eyas.artifact import locked

    with locked(outputs / "run"):
        done = train(outputs)
    assert done.returncode == 2
    assert "is in use by another process" in done.stderr


def test_a_changed_shard_is_refused_by_name(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs / "store", tmp_path / "store")
    [shard] = (tmp_path / "store" / "states").glob("*/shard-00003.safetensors")
    content = bytearray(shard.read_bytes())
    content[-10] ^= 4
    shard.write_bytes(content)
    done = train(tmp_path)
    assert done.returncode == 2
    assert "shard-00003.safetensors is changed since it was captured" in done.stderr
