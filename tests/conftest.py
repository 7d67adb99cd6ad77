"""Shared fixtures: real verifiers, composed configurations, and the command line as a person uses it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.cli.compose import compose
from eyas.config import Config

ROOT = Path(__file__).parents[1]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Config]:
    """A configuration of the tiny verifier whose outputs go to the test's own directory."""

    def composed(*overrides: str) -> Config:
        return compose(["verifier=tiny_llama", f"outputs={tmp_path}/outputs", *overrides], [])

    return composed


@pytest.fixture(scope="session")
def tiny_checkpoint():  # type: ignore[no-untyped-def]
    """The tiny verifier's checkpoint, made if need be."""
    from eyas.verifier.locate import locate
    from eyas.verifier.make import make

    config = compose(["verifier=tiny_llama"], [])
    make(config.verifier)
    return locate(config.verifier)


@pytest.fixture(scope="session")
def smollm2_checkpoint():  # type: ignore[no-untyped-def]
    """SmolLM2-135M-Instruct, made from its GGUF if need be."""
    from eyas.verifier.locate import locate
    from eyas.verifier.make import make

    config = compose([], [])
    make(config.verifier)
    return locate(config.verifier)


def run(*arguments: str, cwd: Path = ROOT, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        timeout=timeout,
        text=True,
        capture_output=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
