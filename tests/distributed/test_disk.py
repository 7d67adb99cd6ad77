"""A full disk is recognised, whichever library writes and however much of it still fits."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from eyas.disk import full_disk_explained
from eyas.errors import EyasError
from eyas.training.sharded import _Writer
from small_disk import fill, small_disk

STATE = {"weight": torch.randn(200_000), "steps": 7}


def as_metadata(directory: Path) -> None:
    with (directory / "meta.pt").open("wb") as stream:
        torch.save(STATE, stream)


def as_shards(directory: Path) -> None:
    """Without what is behind the error, as another rank gets it."""
    with pytest.raises(CheckpointException) as failed:
        save(STATE, storage_writer=_Writer(directory / "shards"), no_dist=True)
    [(cause, _)] = failed.value.failures.values()
    raise pickle.loads(pickle.dumps(cause))


def as_safetensors(directory: Path) -> None:
    save_file({"weight": STATE["weight"]}, directory / "model.safetensors")


def as_text(directory: Path) -> None:
    (directory / "text").write_text("0" * 800_000)


@pytest.mark.parametrize("write", [as_metadata, as_shards, as_safetensors, as_text])
def test_a_full_disk_is_recognised(write: Callable[[Path], None], tmp_path: Path) -> None:
    for leaving in (0, 1 << 12, 1 << 16, 1 << 18):
        with small_disk(tmp_path / f"disk-{leaving}") as disk:
            fill(disk, leaving=leaving)
            with pytest.raises(EyasError, match=f"the disk of {disk} is full"), full_disk_explained(disk):
                write(disk)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), full_disk_explained(tmp_path):
        (tmp_path / "no" / "file").write_text("")
    with pytest.raises(EyasError, match="of its own"), full_disk_explained(tmp_path):
        raise EyasError("of its own")
