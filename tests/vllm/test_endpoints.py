"""Capture from a server that Eyas was only given: one whose states are not the verifier's, and disks that fill up."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from eyas.capture.extraction import arguments
from eyas.capture.stage import capture
from eyas.capture.vllm import in_vllm
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.data.store import StateStore
from eyas.errors import EyasError
from eyas.serving.server import Server, serving
from eyas.stages import canary_file, draft_shape, states_artifact
from eyas.verifier.locate import locate
from served import vllm_config
from talks import write_talks

DISK_BYTES = 48 << 20


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of a few MB; needs the right to mount one (root's)."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    mounted = subprocess.run(command, text=True, capture_output=True)
    assert mounted.returncode == 0, f"a disk that can be filled needs the right to mount one: {mounted.stderr}"
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(disk: Path) -> Path:
    """A file that leaves no room."""
    ballast = disk / "ballast"
    with ballast.open("wb") as stream:
        status = os.statvfs(disk)
        os.posix_fallocate(stream.fileno(), 0, status.f_bavail * status.f_frsize)
    return ballast


def rotate(directory: Path, target: Path) -> None:
    """The same verifier with its residual stream turned: other states in every layer, the same logits.

    An RMS norm without weights doesn't see a rotation; so its weights move into the matrices that read it.
    """
    target.mkdir()
    for file in directory.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(directory / "model.safetensors")
    torch.manual_seed(2)
    turn_HH = torch.linalg.qr(torch.randn(2 * [weights["model.norm.weight"].numel()], dtype=torch.float64)).Q
    save_file(
        {name: turned(name, weights, turn_HH).float().contiguous() for name in weights},
        target / "model.safetensors",
        {"format": "pt"},
    )


def turned(name: str, weights: dict[str, Tensor], turn_HH: Tensor) -> Tensor:
    """One tensor of the turned verifier; matrices are [out, in]."""
    weight, part = weights[name].double(), name.split(".")[-2]
    if weight.ndim == 1:
        return torch.ones_like(weight)
    if part in ("o_proj", "down_proj"):  # writes into the stream
        return turn_HH.T @ weight
    layer = name.rsplit(".", 3)[0]
    norms = {
        "embed_tokens": None,
        "lm_head": "model.norm.weight",
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), f"{layer}.input_layernorm.weight"),
        **dict.fromkeys(("gate_proj", "up_proj"), f"{layer}.post_attention_layernorm.weight"),
    }
    norm = norms[part]
    return (weight if norm is None else weight * weights[norm].double()) @ turn_HH


@pytest.fixture(scope="module")
def rotated(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rotated") / "verifier"
    rotate(llama, directory)
    return directory


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """One where the server writes its states, and one of Eyas's own."""
    base = tmp_path_factory.mktemp("disks")
    with ExitStack() as mounts:
        yield {name: mounts.enter_context(small_disk(base / name)) for name in ("server", "outputs")}


def composed(verifier: Path, outputs: Path, file: Path, server: Server | None = None) -> Config:
    endpoints = ["server=endpoints", f"server.endpoints=[{server.endpoints[0]}]"] if server else ["server=cpu"]
    return compose(
        [
            *("verifier=tiny_llama", f"verifier.path={verifier}", f"outputs={outputs}", "capture=vllm", "data=demo"),
            *(f"data.path={file}", "data.held_out=2", "data.num_processes=1", "data.max_length=300"),
            *("training.row_length=1024", "capture.dtype=float32", "capture.tokens_per_batch=256"),
            *("capture.tokens_per_shard=400", "server.max_in_flight=4", *endpoints),
        ],
        [],
    )


@pytest.fixture(scope="module")
def server(rotated: Path, disks: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the rotated verifier that captures, started with what Eyas prints for `server=endpoints`."""
    base = tmp_path_factory.mktemp("endpoint")
    config = composed(rotated, base / "outputs", write_talks(base / "talks.jsonl", 40))
    checkpoint = locate(config.verifier)
    args, env = arguments(config, [*draft_shape(config).layer_ids, 8], disks["server"])
    served = vllm_config()
    served.env |= env
    with serving(served, config.verifier, checkpoint, log=base / "server.log", args=args) as running:
        yield running


@pytest.fixture
def configured(server: Server, tmp_path: Path) -> Callable[[Path, Path], Config]:
    """A configuration that captures from the server, with its tokens."""

    def prepared(verifier: Path, outputs: Path) -> Config:
        config = composed(verifier, outputs, write_talks(tmp_path / "talks.jsonl", 40), server)
        prepare(config)
        return config

    return prepared


def logits(directory: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        result: Tensor = model(input_ids=torch.arange(5, 60)[None]).logits
    return result


def test_a_rotated_verifier_says_the_same_and_is_refused(
    llama: Path, rotated: Path, configured: Callable[[Path, Path], Config], tmp_path: Path
) -> None:
    """Nothing that it says tells it from the verifier, so no canary does; only its states are others."""
    assert torch.allclose(logits(llama), logits(rotated), atol=1e-3)
    itself, config = configured(rotated, tmp_path / "rotated"), configured(llama, tmp_path / "outputs")
    capture(itself, in_vllm)
    canary_file(config).parent.mkdir(parents=True, exist_ok=True)
    canary_file(config).write_bytes(canary_file(itself).read_bytes())  # the verifier's own: it says the same
    with pytest.raises(EyasError, match="the teacher's logits are not the verifier's own"):
        capture(config, in_vllm)
    assert not states_artifact(config).exists()
    assert not [*states_artifact(config).directory.parent.rglob("*.safetensors")]


@pytest.mark.parametrize("full", ["server", "outputs"])
def test_a_disk_fills_up_and_the_same_command_carries_on(
    full: str,
    disks: dict[str, Path],
    rotated: Path,
    configured: Callable[[Path, Path], Config],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = configured(rotated, disks["outputs"] / full)
    partial = states_artifact(config).directory.with_suffix(".partial")
    ballast, over = list[Path](), threading.Event()

    def something_else_fills_it() -> None:
        while not (partial / "shard-00000.safetensors").exists() and not over.wait(0.005):
            pass
        ballast.append(fill(disks[full]))

    other = threading.Thread(target=something_else_fills_it)
    other.start()
    with pytest.raises(EyasError, match=rf"^the disk of {disks[full]}.* is full.*the same command carries on"):
        capture(config, in_vllm)
    over.set()
    other.join()
    assert not states_artifact(config).exists()
    assert not [*partial.glob("shard-*.partial")], "half shards would take what little room there is"
    whole = {file.name: file.stat().st_mtime_ns for file in partial.glob("shard-*.safetensors")}

    ballast[0].unlink()
    capsys.readouterr()
    capture(config, in_vllm)
    assert "capture  resumes after" in capsys.readouterr().out
    store = StateStore(states_artifact(config).directory)
    store.verify()
    assert len(store.shards) > len(whole) > 0
    files = {file.name: file.stat().st_mtime_ns for file in states_artifact(config).directory.glob("shard-*")}
    assert whole.items() <= files.items(), "what was whole is not captured again"


def test_an_address_where_nothing_answers(rotated: Path, tmp_path: Path) -> None:
    config = composed(rotated, tmp_path, write_talks(tmp_path / "talks.jsonl", 4))
    config.server.endpoints = ["http://127.0.0.1:9"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(config.server.endpoints[0])
    prepare(config)
    with pytest.raises(
        EyasError, match=r"http://127\.0\.0\.1:9 does not answer \(connection refused\); start a server"
    ):
        capture(config, in_vllm)
    assert not states_artifact(config).exists()
