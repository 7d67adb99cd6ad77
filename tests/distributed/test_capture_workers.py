"""Several processes that capture one artifact: whoever writes a shard, it is the same; and what happens when one of them dies."""

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from conftest import OPTIONS, run
from eyas.process import EXPLAINED, PREEMPTED
from running import Running

PROGRAM = ("-m", "eyas.cli.main", "capture")
TWO = [*OPTIONS, "capture.workers=2", "capture.tokens_per_shard=400", "data.num_processes=1"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs with what one process captures."""
    outputs = tmp_path_factory.mktemp("alone")
    done = run(*PROGRAM, *TWO, "capture.workers=1", f"outputs={outputs}")
    assert (done.returncode, done.stderr) == (0, "")
    return outputs


@pytest.fixture
def outputs(alone: Path, tmp_path: Path) -> Path:
    """Outputs with the same tokens, and nothing captured."""
    shutil.copytree(alone / "store" / "tokens", tmp_path / "store" / "tokens")
    return tmp_path


def shards(outputs: Path) -> dict[str, bytes]:
    """Of the one artifact, complete or not."""
    return {path.name: path.read_bytes() for path in (outputs / "store" / "states").glob("*/shard-*.safetensors")}


def started(outputs: Path) -> Running:
    return Running.start(outputs, *TWO, program=PROGRAM)


def workers(running: Running) -> list[psutil.Process]:
    """In the order of their start."""
    with suppress(psutil.Error):
        of_stage = [child for stage in running.children() for child in stage.children()]
        return sorted((it for it in of_stage if "eyas.capture.worker" in it.cmdline()), key=lambda it: it.pid)
    return []


def both_at_work(running: Running, outputs: Path) -> list[psutil.Process]:
    """The two workers, each with a shard to its name; the first is as good as done before the second has started."""
    running.wait_for(lambda: len(shards(outputs)) > 2)
    [first, *_] = workers(running)
    first.send_signal(signal.SIGSTOP)
    before = len(shards(outputs))
    running.wait_for(lambda: len(shards(outputs)) > before + 2)
    both = workers(running)
    assert [both[0], len(both)] == [first, 2]
    both[1].send_signal(signal.SIGSTOP)
    return both


def finished(outputs: Path) -> str:
    """The same command once more."""
    code, printed, said = started(outputs).end()
    assert (code, said) == (0, "")
    assert not list(outputs.rglob("*.partial")), "nothing is left of the workers either"
    return printed


def test_two_write_what_one_writes(alone: Path, outputs: Path) -> None:
    running = started(outputs)
    for worker in both_at_work(running, outputs):
        worker.send_signal(signal.SIGCONT)
    code, printed, said = running.end()
    assert (code, said) == (0, "")
    assert shards(outputs) == shards(alone)
    for line in ("capture  hooks", "capture  parity", "100 %"):
        assert printed.count(line) == 1, "one line for both"
    [directory] = (outputs / "store" / "states").iterdir()
    kept = {path.name for path in directory.iterdir()} - {*shards(alone)}
    assert sorted(name.split("-")[0] for name in kept) == ["manifest.json", "parity"]


def test_killed_together_and_carried_on(alone: Path, outputs: Path) -> None:
    """SIGKILL to the stage, and its workers are gone with it."""
    running = started(outputs)
    both = both_at_work(running, outputs)
    [stage] = running.children()
    stage.kill()
    _, alive = psutil.wait_procs(both, 30)
    assert not alive
    code, _, said = running.end()
    assert code == 128 + signal.SIGKILL
    assert said == "eyas: eyas.capture was killed (SIGKILL); the same command carries on from what is complete\n"
    whole = shards(outputs)
    assert 2 < len(whole) < len(shards(alone))
    assert "capture  resumes after" in finished(outputs)
    assert shards(outputs) == shards(alone)


def test_one_that_is_killed_ends_the_stage(alone: Path, outputs: Path) -> None:
    running = started(outputs)
    both = both_at_work(running, outputs)
    both[1].kill()
    both[0].send_signal(signal.SIGCONT)
    code, _, said = running.end()
    assert code == EXPLAINED
    assert said == (
        "eyas: error: capture: worker 1 of 2 was killed (SIGKILL); the same command carries on from what is complete\n"
    )
    assert not any(worker.is_running() for worker in both)
    assert shards(outputs)
    finished(outputs)
    assert shards(outputs) == shards(alone)


def test_what_one_of_them_refuses_is_one_line(outputs: Path) -> None:
    """The second worker never starts where the first can't read the verifier."""
    wrong = "verifier.transformers.norm=model.layers.0.input_layernorm"
    done = run(*PROGRAM, *TWO, wrong, f"outputs={outputs}")
    assert done.returncode == EXPLAINED
    assert done.stderr.startswith("eyas: error: model.layers.0.input_layernorm does not stand behind the layers")
    assert done.stderr.count("\n") == 1
    assert not list((outputs / "store").glob("states/*"))


@pytest.mark.parametrize(("tell", "expected"), [(signal.SIGTERM, PREEMPTED), (signal.SIGINT, 128 + signal.SIGINT)])
def test_told_to_end(tell: signal.Signals, expected: int, outputs: Path) -> None:
    running = started(outputs)
    both = both_at_work(running, outputs)
    for worker in both:
        worker.send_signal(signal.SIGCONT)
    told: list[Callable[[signal.Signals], None]] = [running.supervisor.send_signal]
    if tell is signal.SIGINT:  # a terminal tells all of them
        told += [process.send_signal for process in (*running.children(), *workers(running))]
    for send in told:
        with suppress(psutil.Error):
            send(tell)
    code, _, said = running.end()
    assert code == expected
    assert said.count("\n") <= 1, said
    _, alive = psutil.wait_procs(both, 30)
    assert not alive
