"""Several machines (here: several supervisors on this one), as torchrun and SLURM start them."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from conftest import OPTIONS as ORDINARY
from conftest import ROOT
from eyas import machines
from eyas.artifact import locked
from eyas.cli.compose import compose
from eyas.errors import EyasError
from eyas.machines import Gathering, Machines
from eyas.process import EXPLAINED
from eyas.run import Run
from eyas.stages import states_artifact
from eyas.training.launch import free_port
from running import compare_metrics

OPTIONS = (*ORDINARY, "training.rows_per_step=2", "evaluation=none")
Supervisor = "subprocess.Popen[str]"


def supervisor(*command: str, outputs: Path, environment: Mapping[str, str] | None = None) -> Supervisor:
    words = [sys.executable, *command, *OPTIONS, f"outputs={outputs}"]
    pipe = subprocess.PIPE
    variables = {**os.environ, **(environment or {})}
    return subprocess.Popen(words, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True)


def test_two_machines_wait_for_a_capture_longer_than_the_time_out(outputs: Path, tmp_path: Path) -> None:
    """torchrun, twice, with a process too many on each; the states are held back for 20 seconds, the group's time-out is 15."""
    seconds = 20
    directory = states_artifact(compose([*OPTIONS, f"outputs={tmp_path}"], [])).directory.with_suffix(".partial")
    directory.mkdir(parents=True)
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    port = free_port()
    with locked(directory):
        started = [
            supervisor(
                *(*torchrun, f"--master-port={port}", f"--node-rank={number}", "train.py"),
                *("trainer.num_nodes=2", "trainer.timeout_seconds=15"),
                outputs=tmp_path,
            )
            for number in (0, 1)
        ]
        deadline = time.monotonic() + 120
        while not list((tmp_path / "store" / "tokens").glob("*/manifest.json")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(seconds)
    ended = [it.communicate(timeout=240) for it in started]
    assert [it.returncode for it in started] == [0, 0], ended
    assert "machines 1 of 2" in ended[1][0]
    assert ended[0][0].count("run  new\n") == 1, "one supervisor walks the stages"
    assert "run      " not in ended[1][0]
    assert sorted(path.name for path in (tmp_path / "run" / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]

    alone = supervisor("train.py", outputs=tmp_path / "alone")
    alone.communicate(timeout=240)
    assert alone.returncode == 0
    compare_metrics(Run(tmp_path / "run"), Run(tmp_path / "alone" / "run"))


def test_the_others_hear_how_the_first_one_ends(tmp_path: Path) -> None:
    slurm = {"SLURM_STEP_NUM_NODES": "2", "SLURM_LOCALID": "0"}
    words = ["train.py", "trainer.num_nodes=2", "data.path=/nowhere.jsonl"]
    first, second = (
        supervisor(*words, outputs=tmp_path, environment={**slurm, "SLURM_NODEID": str(number)}) for number in (0, 1)
    )
    assert "data.path=/nowhere.jsonl" in first.communicate(timeout=60)[1]
    assert second.communicate(timeout=60)[1] == f"eyas: machine 0 has ended with exit code {EXPLAINED}\n"
    assert (first.returncode, second.returncode) == (EXPLAINED, EXPLAINED)


def test_machines_as_the_launchers_describe_them() -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert Machines.of({**torchrun, "MASTER_ADDR": "node-0"}) == Machines(1, 2, "node-0", spare=False)
    assert Machines.of({**torchrun, "LOCAL_RANK": "7"}).spare
    step = {"SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}
    assert Machines.of(step) == Machines(3, 4, None, spare=False)
    batch_script = {"SLURM_NNODES": "4", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    assert Machines.of(batch_script) == Machines.of({}) == Machines(0, 1, None, spare=False)


def test_a_number_of_machines_other_than_configured_is_refused() -> None:
    trainer = compose(["trainer=multinode"], []).trainer
    Machines(1, 2, None, spare=False).check(trainer)
    with pytest.raises(EyasError, match=r"trainer.num_nodes=2, and 1 machine was started: set trainer.num_nodes=1, or"):
        Machines.of({}).check(trainer)


def test_a_machine_that_says_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an earlier start has left its words."""
    monkeypatch.setattr(machines, "SILENCE_SECONDS", 0.2)
    first = Gathering(tmp_path, Machines(0, 2, None, spare=False))
    first.say(says="end")
    second = Gathering(tmp_path, Machines(1, 2, None, spare=False))
    assert second.hear(0) is None
    first.say(says="train", call=1)
    word = second.hear(0)
    assert word is not None
    assert word.says == "train"
    time.sleep(0.3)
    with pytest.raises(EyasError, match=r"machine 0 of 2 has said nothing for 0.2 seconds in .* all of them see"):
        second.hear(0)
    second.say()
    assert not first.others_are_there()
    second.say()
    assert first.others_are_there()
    first.call(lambda: 1)
    time.sleep(0.3)
    with pytest.raises(EyasError, match=r"machine 1 of 2 has said nothing"):
        first.call(lambda: 1)
