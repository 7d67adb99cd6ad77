"""Several workers, one device each, or one worker over several devices: what is the same, what is refused, who has what."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from eyas.capture.modules import Modules
from eyas.capture.stage import capture
from eyas.capture.tap import Tap
from eyas.capture.transformers import in_transformers
from eyas.capture.workers import claimed, device_of
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.stages import num_capture_workers, run_identity, states_artifact, tokens_artifact


def test_how_many_there_are() -> None:
    def number(*overrides: str) -> int:
        return num_capture_workers(compose(["capture=transformers", *overrides], []))

    assert number() == 1, "a forward has all cores of a CPU"
    assert number("trainer.devices=2") == 1
    assert number("trainer=8gpu") == 8
    assert number("trainer=8gpu", "capture.workers=3") == 3
    assert number("trainer=8gpu", "capture.device_map=auto") == 1


def test_states_and_runs_do_not_depend_on_them(tiny: Callable[..., Config]) -> None:
    one, other = tiny(), tiny("capture.workers=7")
    spread = tiny("capture.device_map=auto")
    assert states_artifact(one).fingerprint == states_artifact(other).fingerprint == states_artifact(spread).fingerprint
    assert run_identity(one) == run_identity(other) == run_identity(spread)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["capture=vllm", "capture.workers=2"],
            r"capture\.workers=2 with capture\.engine=vllm: it says how transformers",
        ),
        (["capture=vllm", "capture.device_map=auto"], r"set capture=transformers, or capture\.device_map=null"),
        (["capture.workers=2", "capture.device_map=auto"], "one worker has all devices then; set capture.workers=null"),
        (["capture.workers=0"], r"capture\.workers=0: must be at least 1"),
    ],
)
def test_what_does_not_go_together(overrides: list[str], said: str) -> None:
    with pytest.raises(EyasError, match=said):
        compose(overrides, [])


def test_each_has_a_device_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(trainer: str, number: int) -> list[str | None]:
        config = compose([f"trainer={trainer}"], [])
        return [device_of(config, worker).get("CUDA_VISIBLE_DEVICES") for worker in range(number)]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices("2gpu", 3) == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-ab,3")
    assert devices("2gpu", 2) == ["6", "GPU-ab"]
    assert devices("cpu", 2) == [None, None]


def test_nobody_takes_what_another_one_has(tmp_path: Path) -> None:
    missing = {index: range(index, index + 1) for index in range(5)}
    one, other = claimed(missing, tmp_path), claimed(missing, tmp_path)
    taken = [next(one), next(other), next(other), next(one)]
    assert [index for index, _ in [*taken, *one, *other]] == [0, 1, 2, 3, 4]


def test_states_of_layers_on_several_devices_come_together() -> None:
    """The devices are pretended: that of each tensor is known, and mixing them is an error as on a machine that has them."""

    class Moves(nn.Module):
        def forward(self, state: torch.Tensor) -> torch.Tensor:
            return state.to("cuda:1")

    with FakeTensorMode():
        layers, norm = [nn.Identity(), Moves(), nn.Identity()], nn.Identity()
        with Tap(Modules([*layers], norm, {}), [0, 1, 2], compose([], []).verifier) as tap:
            state = torch.empty(2, 3, 8, device="cuda:0")
            for module in (*layers, norm):
                state = module(state)
            hidden, last = tap.take()
    assert hidden.shape == (2, 3, 3, 8)
    assert str(hidden.device) == str(last.device) == "cuda:1"


@pytest.mark.parametrize("device_map", ["auto", "cpu"])
def test_where_transformers_puts_it(
    device_map: str, captured: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    shards = []
    for overrides in ([f"capture.device_map={device_map}"], []):
        config = captured("capture=transformers", "capture.tokens_per_shard=300", f"name={len(overrides)}", *overrides)
        directory = states_artifact(config).directory
        capture(config, in_transformers)
        shards.append({path.name: path.read_bytes() for path in directory.glob("shard-*")})
        directory.rename(directory.with_name(f"kept-{len(overrides)}"))
    assert shards[0] == shards[1]
    assert len(shards[0]) > 1
    assert "parity argmax 100.0%" in capsys.readouterr().out


def test_the_head_reads_one_position_of_each_sequence(captured: Callable[..., Config], tmp_path: Path) -> None:
    config, read = captured("capture=transformers"), []
    tokens = Tokens(tokens_artifact(config).directory)
    with in_transformers(config, tokens, tmp_path) as engine:
        head = engine.model.get_output_embeddings()
        head.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        list(engine.shards({0: range(6)}, Progress("capture", None, "tokens")))
    assert [state.shape[:2] for state in read] == [(6, 1)]
    assert all(state.is_contiguous() for state in read), "else torch multiplies sequence by sequence"
