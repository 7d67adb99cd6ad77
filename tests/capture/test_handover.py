"""Files of states: waited for, checked, and gone afterwards; each wrong one in a line that says what is wrong."""

import fcntl
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.capture.expected import Expected
from eyas.capture.handover import Handover, LostStatesError
from eyas.errors import EyasError

IDS = torch.arange(5, 12)
HANDOVER = Handover(Expected([1, 2, 4], 8, torch.float32), timeout=0.2)


def states() -> Tensor:
    return torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(0))


def written(directory: Path, hidden: Tensor, ids: Tensor = IDS, notes: dict[str, str] | None = None) -> Path:
    file = directory / "cmpl-1.safetensors"
    save_file({"hidden_states": hidden, "token_ids": ids}, file, metadata=notes)
    file.with_name(f"{file.name}.lock").touch()
    return file


def take(file: Path | None, handover: Handover = HANDOVER) -> Tensor:
    named = None if file is None else {"hidden_states_path": str(file)}
    return handover.take({"kv_transfer_params": named}, IDS)


def test_what_was_asked_for(tmp_path: Path) -> None:
    assert torch.equal(take(written(tmp_path, states(), notes={"layer_ids": "[1, 2, 4]"})), states())
    assert not list(tmp_path.iterdir())


def with_value(value: float, slot: int) -> Tensor:
    hidden = states()
    hidden[3, slot] = value
    return hidden


def without_layer(slot: int) -> Tensor:
    hidden = states()
    hidden[:, slot] = 0
    return hidden


@pytest.mark.parametrize(
    ("hidden", "ids", "message"),
    [
        (states()[:-1].contiguous(), IDS[:-1], r"captured other tokens .*: 6 of them, .* expected 7"),
        (states(), IDS.flip(0).contiguous(), r"captured other tokens than it was given: 7 of them, \[11, 10"),
        (states()[:-1].contiguous(), IDS, r"states of shape \[6, 3, 8\], expected \[7, 3, 8\]"),
        (states()[:, :2].contiguous(), IDS, r"states of shape \[7, 2, 8\], expected \[7, 3, 8\] .* layers \[1, 2, 4\]"),
        (states().bfloat16(), IDS, r"hands over torch\.bfloat16, and capture\.dtype is torch\.float32"),
        (with_value(float("nan"), 1), IDS, "layer 2 are not finite; try capture.dtype=float32"),
        (with_value(float("inf"), 2), IDS, "layer 4 are not finite"),
        (without_layer(0), IDS, "layer 1 are all zero: .* set capture=transformers"),
    ],
)
def test_what_asking_again_would_not_mend(hidden: Tensor, ids: Tensor, message: str, tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=message) as error:
        take(written(tmp_path, hidden, ids))
    assert not isinstance(error.value, LostStatesError)
    assert not list(tmp_path.iterdir()), "a wrong file is removed too"


def test_ids_minus_one_where_the_file_says_which(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"hands over layers \[0, 1, 3\], expected \[1, 2, 4\]"):
        take(written(tmp_path, states(), notes={"layer_ids": "[0, 1, 3]"}))


def test_a_server_that_does_not_capture() -> None:
    with pytest.raises(EyasError, match=r"answers without states: .* server=local"):
        take(None)


def test_files_that_are_lost(tmp_path: Path) -> None:
    with pytest.raises(LostStatesError, match=r"is not there$"):
        take(tmp_path / "cmpl-1.safetensors")
    with pytest.raises(LostStatesError, match="shared with the server's machine"):
        take(tmp_path / "elsewhere" / "cmpl-1.safetensors")
    file = written(tmp_path, states())
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(LostStatesError, match="is not whole"):
        take(file)
    file.write_bytes(b"")
    file.with_name(f"{file.name}.lock").touch()
    with pytest.raises(LostStatesError, match="is not whole"):
        take(file)
    assert not list(tmp_path.iterdir())


def test_it_waits_until_the_file_is_written(tmp_path: Path) -> None:
    lock = tmp_path / "cmpl-1.safetensors.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def write() -> None:
            time.sleep(0.1)
            written(tmp_path, states())
            fcntl.flock(held, fcntl.LOCK_UN)

        writer = threading.Thread(target=write)
        writer.start()
        taken = take(tmp_path / "cmpl-1.safetensors", Handover(Expected([1, 2, 4], 8, torch.float32), timeout=10))
        writer.join()
    assert torch.equal(taken, states())
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LostStatesError, match=r"still being written after 0\.2 seconds"):
            take(tmp_path / "cmpl-1.safetensors")
