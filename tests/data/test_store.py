from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eyas.artifact import sha256_of, write_manifest
from eyas.config import Config
from eyas.data.loader import PackedLoader, ValidationLoader, read_row
from eyas.data.packing import num_steps, pack, permutation
from eyas.data.plan import Plan
from eyas.data.store import Document, StateStore, plan_shards, shard_name, write_shard
from eyas.errors import EyasError

LENGTHS = [5, 9, 3, 12, 7, 1, 8]


def document(index: int) -> Document:
    length, generator = LENGTHS[index], torch.Generator().manual_seed(index)
    states = torch.randn(length, 4, 6, generator=generator)
    ids = torch.arange(length) + 100 * index
    return Document(ids, ids % 2 == 0, states[:, :3], states[:, 3])


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    shards = []
    for index, rows in enumerate(plan_shards(LENGTHS, 16)):
        name = shard_name(index)
        write_shard(tmp_path / name, [document(row) for row in rows])
        lengths = [LENGTHS[row] for row in rows]
        shards.append({"file": name, "sha256": sha256_of(tmp_path / name), "first_row": rows.start, "lengths": lengths})
    write_manifest(tmp_path, {"counts": {"shards": shards}})
    return StateStore(tmp_path)


def test_shards_hold_whole_rows_in_order() -> None:
    shards = plan_shards(LENGTHS, 16)
    assert [row for rows in shards for row in rows] == list(range(len(LENGTHS)))
    assert all(len(rows) == 1 or sum(LENGTHS[row] for row in rows) <= 16 for rows in shards)


def test_rows_come_back_as_they_were(store: StateStore) -> None:
    assert store.lengths == LENGTHS
    for row in (6, 0, 3, 5, 1, 2, 4):
        found, wanted = store.read(row), document(row)
        for name in ("input_ids_T", "loss_mask_T", "hidden_TLH", "last_TH"):
            assert torch.equal(getattr(found, name), getattr(wanted, name))


def test_a_changed_byte_is_found_by_name(store: StateStore) -> None:
    store.verify()
    file = store.directory / shard_name(1)
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(EyasError, match=r"shard-00001\.safetensors is changed"):
        store.verify()
    file.unlink()
    with pytest.raises(EyasError, match=r"shard-00001\.safetensors is missing"):
        store.verify()


def test_incomplete_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match="no complete states directory"):
        StateStore(tmp_path)


@pytest.mark.parametrize(("value", "message"), [(float("nan"), "not finite"), (0.0, "all zero")])
def test_states_nobody_can_have_meant_are_refused(tmp_path: Path, value: float, message: str) -> None:
    wrong = document(0)
    wrong.hidden_TLH[:, 1] = value
    with pytest.raises(EyasError, match=message):
        write_shard(tmp_path / shard_name(0), [wrong])
    assert list(tmp_path.iterdir()) == []


def test_packing_keeps_every_document_once_and_fills_rows() -> None:
    lengths = [int(length) for length in torch.randint(5, 300, (500,), generator=torch.Generator().manual_seed(0))]
    rows = pack(lengths, 512)
    assert sorted(document for row in rows for document in row) == list(range(500))
    assert all(sum(lengths[document] for document in row) <= 512 for row in rows)
    assert sum(lengths) / (512 * len(rows)) > 0.98
    assert rows == pack(lengths, 512)


def test_a_document_longer_than_a_row_is_cut(store: StateStore) -> None:
    rows = pack(LENGTHS, 8)
    assert [3] in rows
    assert len(read_row(store, [3], 8).input_ids_T) == 8


def test_a_packed_row_keeps_documents_apart(store: StateStore) -> None:
    row = read_row(store, [2, 0], 16)
    assert row.input_ids_T.tolist() == [200, 201, 202, 0, 1, 2, 3, 4]
    assert row.document_ids_T.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert row.position_ids_T.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert torch.equal(row.last_TH, torch.cat([document(2).last_TH, document(0).last_TH]))


def loader(store: StateStore, **ranks: int) -> PackedLoader:
    plan = Plan(pack(LENGTHS, 16), rows_per_step=2, num_steps=7, seed=3)
    return PackedLoader(store, plan, row_length=16, **ranks)


def seen(loader: PackedLoader) -> list[list[list[int]]]:
    return [[row.input_ids_T.tolist() for row in step.rows] for step in loader]


def test_loader_passes_over_all_rows_in_shuffled_passes(store: StateStore) -> None:
    plan = loader(store).plan
    num_rows = len(plan.rows)
    stream = [row for step in range(7) for row in plan.rows_of(step)]
    for epoch in range(len(stream) // num_rows):
        assert stream[epoch * num_rows :][:num_rows] == permutation(num_rows, 3, epoch)
        assert sorted(stream[epoch * num_rows :][:num_rows]) == list(range(num_rows))


def test_loader_resumes_exactly(store: StateStore) -> None:
    whole, first = seen(loader(store)), loader(store)
    iterator = iter(first)
    begun = [[row.input_ids_T.tolist() for row in next(iterator).rows] for _ in range(3)]
    state = first.state_dict()
    assert state == {"step": 3}  # what was yielded; the row read ahead does not count
    second = loader(store)
    second.load_state_dict(state)
    assert begun + seen(second) == whole


def test_ranks_share_a_step(store: StateStore) -> None:
    whole = seen(loader(store))
    parts = [seen(loader(store, rank=rank, num_ranks=2)) for rank in range(2)]
    assert [[*a, *b] for a, b in zip(*parts, strict=True)] == whole


def test_validation_deals_every_row_once(store: StateStore) -> None:
    rows = pack(LENGTHS, 16)
    ranks = [list(ValidationLoader(store, rows, row_length=16, rank=rank, num_ranks=2)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])  # each costs a collective
    supervised = sum(int(step.rows[0].loss_mask_T.sum()) for steps in ranks for step in steps)
    assert supervised == sum(int(document(index).loss_mask_T.sum()) for index in range(len(LENGTHS)))


def test_length_in_steps_or_epochs(tiny: Callable[..., Config]) -> None:
    assert num_steps(10, 4, max_steps=7, epochs=None) == 7
    assert num_steps(10, 4, max_steps=None, epochs=2.0) == 5
    assert num_steps(1, 4, max_steps=None, epochs=1.0) == 1
