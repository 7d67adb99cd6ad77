"""What the ranks of a training do to each other: what they exchange, what they refuse, and how they end together."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import OPTIONS
from eyas.cli.compose import compose
from eyas.process import EXPLAINED, start
from eyas.run import Run
from eyas.training import launch
from running import Running


def test_one_all_gather_and_one_reduce_scatter_a_step(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(outputs / "store", tmp_path / "store")
    short = ["trainer.devices=2", "training.max_steps=4", "training.unroll_steps=3", f"outputs={tmp_path}"]
    config = compose([*OPTIONS, *short], [])
    monkeypatch.setattr(launch, "MODULE", "counted")
    with Run.of(config).opened(config, [], []):
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        meeting = ("127.0.0.1", launch.free_port())
        launch.launch(Run.of(config), config, meeting, environment={"PYTHONPATH": path})
    used = [json.loads(line) for line in re.findall(r"^used (.*)$", capfd.readouterr().out, re.M)]
    assert len(used) == 4
    for counts in used:
        sums = counts.pop("c10d::allreduce_")
        assert counts == {"c10d::_allgather_base_": 1, "c10d::_reduce_scatter_base_": 1}
        assert sums == 3, "the step's sums, its tokens, the gradient's norm"


def test_ranks_that_would_train_different_drafts_are_refused(outputs: Path, tmp_path: Path) -> None:
    ranks = []
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launch.free_port()), "WORLD_SIZE": "2"}
    for rank in (0, 1):
        run = Run(shutil.copytree(outputs / "run", tmp_path / str(rank)))
        text = run.config_file.read_text().replace("devices: 1\n", "devices: 2\n")
        run.config_file.write_text(text.replace("\nseed: 0\n", f"\nseed: {rank}\n"))
        rank_variables = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(start("eyas.training", run.directory, {**variables, **rank_variables}, stderr=subprocess.PIPE))
    ended = [(rank.communicate(timeout=120)[1].decode(), rank.returncode) for rank in ranks]
    explained = (
        "eyas: error: rank 1 has another configuration and another draft than rank 0; all machines must see the same "
        "files and have the same versions installed\n"
    )
    assert ended == [(explained, EXPLAINED)] * 2


def test_a_rank_that_hangs_ends_the_run_within_the_time_out(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs, tmp_path / "outputs")
    options = [*OPTIONS, "trainer.devices=2", "trainer.timeout_seconds=15", "training.max_steps=9000"]
    running = Running.start(tmp_path / "outputs", *options, "training.log_every_n_steps=1", "evaluation=none")
    running.wait_for(lambda: running.steps() > 34)
    hung = running.rank(1)
    hung.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    code, _, said = running.end()
    assert time.monotonic() - stopped < 15 + launch.SETTLE_SECONDS + 15
    assert not hung.is_running()
    assert code == 1
    assert said == (
        "eyas: rank 1 of 2 hung: the others waited for it for trainer.timeout_seconds=15; "
        "the same command carries on from what is complete\n"
    )
