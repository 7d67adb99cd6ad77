"""The file of an off-line run: records in pieces, a last one half-written, and what another start says again."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from eyas.compare.wandb_file import BLOCK, HEADER, START, LoggedRun, fragments
from eyas.compare.wandb_runs import _continued, _logged, as_entry
from eyas.errors import EyasError


def written(records: list[bytes]) -> bytes:
    """LevelDB's log, one byte after another."""
    log = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        rest, is_first = record, True
        while True:
            left = BLOCK - len(log) % BLOCK
            if left < HEADER:
                log += bytes(left)
                continue
            part, rest = rest[: left - HEADER], rest[left - HEADER :]
            kind = 1 if is_first and not rest else 2 if is_first else 3 if rest else 4
            log += bytes(4) + len(part).to_bytes(2, "little") + bytes([kind]) + part
            is_first = False
            if not rest:
                break
    return bytes(log)


@pytest.mark.parametrize(
    "lengths", [[0, 1, 5], [BLOCK, 3 * BLOCK + 1, 7], [BLOCK - START - 2 * HEADER - 3, 50], [BLOCK - START - HEADER]]
)
def test_records_of_any_length(tmp_path: Path, lengths: list[int]) -> None:
    records = [bytes([index + 1]) * length for index, length in enumerate(lengths)]
    file = tmp_path / "run-x.wandb"
    file.write_bytes(written(records))
    assert list(fragments(file)) == records
    file.write_bytes(written(records)[:-1])
    assert list(fragments(file)) == records[:-1]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(b"PK\x03\x04")
    with pytest.raises(EyasError, match="is no file of Weights & Biases"):
        list(fragments(tmp_path / "run-x.wandb"))


def test_a_resumed_run_has_each_step_once_and_the_last_word() -> None:
    def row(step: int, loss: float) -> dict[str, float]:
        return {"trainer/global_step": step, "train/loss": loss}

    first = LoggedRun("id", "name", "g", {"a": 1}, {"cost": 1}, [row(10, 1.0), row(20, 2.0), row(30, 3.0)])
    second = LoggedRun("id", "name", "g", {"a": 2}, {}, [row(30, 3.5), row(40, 4.0)])
    both = _continued(_continued(first, second), LoggedRun("id", summary={"evaluation": {"tau": 1.5}}))
    assert [it["train/loss"] for it in both.history] == [1.0, 2.0, 3.5, 4.0]
    assert (both.config, both.summary, both.name) == ({"a": 2}, {"cost": 1, "evaluation": {"tau": 1.5}}, "name")


def test_what_the_service_gives_becomes_the_same_entry() -> None:
    row = {"_step": 0, "_runtime": 1.0, "trainer/global_step": 10, "epoch": 0, "val/tau_sim": 1.4}
    config = {"training": {"unroll_steps": 3}, "eyas": {"tokens": "7070", "git": None}}
    given = SimpleNamespace(
        id="id", name="s/a", group="s", config=config, summary={"cost": {"tokens": 5}}, scan_history=lambda: iter([row])
    )
    entry = as_entry(_logged(given), "https://host/entity/project/runs/id")
    assert (entry.name, entry.tokens, entry.cost, entry.problem) == ("s/a", "7070", {"tokens": 5}, "")
    assert entry.metrics == [{"step": 10, "val/tau_sim": 1.4}]
    assert entry.config == {"training.unroll_steps": 3}


def test_a_run_of_another_program_is_refused() -> None:
    with pytest.raises(EyasError, match="Eyas did not log"):
        as_entry(LoggedRun("id", "name", config={"lr": 1}), "somewhere")
