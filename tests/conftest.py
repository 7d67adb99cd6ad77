"""Shared fixtures: real verifiers, composed configurations, and the command line as a person uses it."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # two test processes share two cores; children inherit it
os.environ["HF_HUB_OFFLINE"] = "1"

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.cli.compose import compose
from eyas.cli.train import make_verifier
from eyas.config import Config
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.locate import locate

ROOT = Path(__file__).parents[1]

OPTIONS = [
    "verifier=tiny_llama",
    "name=run",
    "capture.tokens_per_shard=2000",
    "capture.tokens_per_batch=256",
    "training.epochs=null",
    "training.max_steps=33",
]


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Config]:
    """A configuration of the tiny verifier whose outputs go to the test's own directory."""

    def composed(*overrides: str) -> Config:
        return compose(["verifier=tiny_llama", f"outputs={tmp_path}/outputs", "data.num_processes=1", *overrides], [])

    return composed


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Checkpoint:
    """The tiny verifier's checkpoint, made if need be."""
    return made("verifier=tiny_llama")


@pytest.fixture(scope="session")
def smollm2_checkpoint() -> Checkpoint:
    """SmolLM2-135M-Instruct, made from its GGUF if need be."""
    return made("verifier=smollm2_135m")


def made(override: str) -> Checkpoint:
    config = compose([override], [])
    make_verifier(config)
    return locate(config.verifier)


def run(*arguments: str, cwd: Path = ROOT, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments to its end."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, timeout=timeout, text=True, capture_output=True)


def train(directory: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    """`python train.py` on the tiny verifier, with its outputs in `directory`."""
    return run("train.py", *OPTIONS, f"outputs={directory}", *overrides)


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Checkpoint) -> Path:
    """The outputs of a finished, undisturbed run, with what it printed; made by one test process for all of them."""
    base = tmp_path_factory.getbasetemp()  # one level up is this session's with xdist, and every session's without
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "outputs"
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            done = train(directory)
            assert done.returncode == 0, done.stderr
            assert done.stderr == "", "a run that goes well says nothing on stderr"
            (directory / "printed").write_text(done.stdout)
    return directory
