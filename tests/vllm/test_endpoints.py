"""Capture from a server that Eyas was only given: one whose states are not the verifier's, disks that fill up, and the states
that a training beside its own server must have seen.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from eyas.capture.assembly import request
from eyas.capture.extraction import arguments
from eyas.capture.schema import Keep
from eyas.capture.stage import capture
from eyas.capture.vllm import in_vllm
from eyas.cli.compose import Composed, compose
from eyas.cli.train import train
from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.data.store import StateStore
from eyas.errors import EyasError
from eyas.run import Run, read_metrics
from eyas.serving.client import send
from eyas.serving.server import Server, serving
from eyas.stages import canary_file, draft_shape, states_artifact
from eyas.verifier.locate import locate
from served import vllm_config
from small_disk import fill, small_disk
from talks import write_talks

TRAINING = (
    *("training.epochs=null", "training.max_steps=10", "training.log_every_n_steps=1", "evaluation=none"),
    *(
        "training.validate_every_n_steps=5",
        "training.checkpoint_every_n_steps=5",
        "capture.window_tokens=2048",
        "training.rows_per_step=1",
    ),
)
ONLINE: dict[str, Any] = {"online": True, "keep": Keep.none}


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


def composed(verifier: Path, outputs: Path, file: Path, server: Server | None = None, *overrides: str) -> Config:
    endpoints = ["server=endpoints", f"server.endpoints=[{server.endpoints[0]}]"] if server else ["server=cpu"]
    return compose(
        [
            *("verifier=tiny_llama", f"verifier.path={verifier}", f"outputs={outputs}", "capture=vllm", "data=demo"),
            *(f"data.path={file}", "data.held_out=2", "data.num_processes=1", "data.max_length=300"),
            *("training.row_length=1024", "capture.dtype=float32", "capture.tokens_per_batch=256"),
            *("capture.tokens_per_shard=400", "server.max_in_flight=4", *endpoints, *overrides),
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
def configured(server: Server, tmp_path: Path) -> Callable[..., Config]:
    """A configuration that captures from the server, with its tokens."""

    def prepared(verifier: Path, outputs: Path, *overrides: str) -> Config:
        config = composed(verifier, outputs, write_talks(tmp_path / "talks.jsonl", 40), server, *overrides)
        prepare(config)
        return config

    return prepared


def logits(directory: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        result: Tensor = model(input_ids=torch.arange(5, 60)[None]).logits
    return result


def test_a_rotated_verifier_says_the_same_and_is_refused(
    llama: Path, rotated: Path, configured: Callable[..., Config], tmp_path: Path
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


def test_requests_that_are_given_up_do_no_harm(server: Server) -> None:
    """Half computed or not begun: there is less to hand over than was asked for, and the server goes on."""
    prompts = [torch.full((1000,), 5 + number) for number in range(16)]
    hasty = replace(server, config=replace(server.config, request_timeout=0.2, retries=0))
    with pytest.raises(EyasError, match=r"was lost 1 times .*no answer in server\.request_timeout=0\.2 seconds"):
        list(send(hasty, [request(number, ids_T) for number, ids_T in enumerate(prompts)]))
    assert len([*send(server, [request(number, ids_T[:20]) for number, ids_T in enumerate(prompts)])]) == 16


@pytest.mark.parametrize("full", ["server", "outputs"])
def test_a_disk_fills_up_and_the_same_command_carries_on(
    full: str,
    disks: dict[str, Path],
    rotated: Path,
    configured: Callable[..., Config],
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
    try:
        with pytest.raises(EyasError, match=rf"^the disk of {disks[full]}.* is full.*the same command carries on"):
            capture(config, in_vllm)
    finally:
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


def test_training_beside_its_capture_makes_the_same_draft(
    rotated: Path, configured: Callable[..., Config], tmp_path: Path
) -> None:
    """On-line with a server of its own, which goes with it, and off-line from the server that runs."""
    config = configured(rotated, tmp_path / "outputs", *TRAINING)
    running, others = config.server, {*psutil.Process().children(recursive=True)}
    config.name, config.server, config.capture = "online", vllm_config(), replace(config.capture, **ONLINE)
    train(Composed(config, [], []))
    online = Run.of(config)
    assert {*psutil.Process().children(recursive=True)} <= others, "the capture and its server are gone"
    assert not online.window.exists()
    assert not [*Path(config.outputs).rglob("hs_*")]
    assert not states_artifact(config).directory.parent.exists()

    config.name, config.server, config.capture = (
        "offline",
        running,
        replace(config.capture, online=False, keep=Keep.all),
    )
    train(Composed(config, [], []))
    losses, drafts = zip(*(learnt(run) for run in (online, Run.of(config))), strict=True)
    assert len(losses[0]) == 10
    assert losses[0] == pytest.approx(losses[1], rel=1e-4), "the same rows at each step"
    apart = max(float((drafts[0][name] - weight).abs().max()) for name, weight in drafts[1].items())
    print(f"weights differ by at most {apart:.1e}")
    assert apart < 1e-4


def learnt(run: Run) -> tuple[list[float], dict[str, Tensor]]:
    """The loss at each step, and the draft."""
    rows = read_metrics(run.metrics_file)
    draft = load_file(run.draft / "model.safetensors")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    return losses, {name: tensor.float() for name, tensor in draft.items()}


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
