"""Killed with SIGKILL at four random moments, the same run comes to the same weights; twenty of them: `make chaos`."""

import csv
import shutil
from pathlib import Path

import pytest

from chaos import OPTIONS, disturbed, moments, same_weights
from running import Running


@pytest.fixture
def undisturbed(outputs: Path, tmp_path: Path) -> Path:
    """Of the same two processes, on states that another run has captured."""
    shutil.copytree(outputs / "store", tmp_path / "undisturbed" / "store")
    code, _, said = Running.start(tmp_path / "undisturbed", *OPTIONS).end()
    assert (code, said) == (0, ""), said
    return tmp_path / "undisturbed"


def test_killed_at_random_and_carried_on_bit_for_bit(undisturbed: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    for moment, said in disturbed(killed, moments(4)):
        if moment.victim == "rank 1":
            assert said == (
                "eyas: rank 1 of 2 was killed (SIGKILL); the same command carries on from what is complete\n"
            )
    assert same_weights(killed, undisturbed)
    ours, theirs = (
        {path.name: path.read_bytes() for path in (outputs / "store" / "states").glob("*/*.safetensors")}
        for outputs in (killed, undisturbed)
    )
    assert ours == theirs
    assert numbers(killed) == numbers(undisturbed)
    assert not list(killed.rglob("*.partial"))


def numbers(outputs: Path) -> list[dict[str, str]]:
    """What training measured at each step, apart from times."""
    timed = ("train/tokens_per_second", "train/data_wait_share")
    with (outputs / "run" / "metrics.csv").open() as stream:
        return [{key: value for key, value in row.items() if key not in timed} for row in csv.DictReader(stream)]
