from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from eyas.artifact import sha256_of, write_manifest
from eyas.config import Config
from eyas.data.loader import PackedLoader, RowReader, ValidationLoader
from eyas.data.packing import num_steps, pack, permutation
from eyas.data.plan import Plan
from eyas.data.positions import plan_unroll
from eyas.data.store import Document, StateStore, plan_shards, shard_name, write_shard
from eyas.data.verifier_tokens import VerifierTokens
from eyas.errors import EyasError

LENGTHS = [5, 9, 3, 12, 7, 1, 8]


def document(index: int) -> Document:
    length, generator = LENGTHS[index], torch.Generator().manual_seed(index)
    states = torch.randn(length, 4, 6, generator=generator)
    ids = torch.arange(length) + 100 * index
    return Document(ids, ids % 10 > 0, states[:, :3], states[:, 3])


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


@pytest.fixture
def reader(store: StateStore, tmp_path: Path) -> RowReader:
    """Of rows of 16, with two unroll steps."""
    return RowReader(store, VerifierTokens(tmp_path / "tokens", 20, 16), 16, partial(plan_unroll, num_steps=2))


def test_a_document_longer_than_a_row_is_cut(reader: RowReader) -> None:
    rows = pack(LENGTHS, 8)
    assert [3] in rows
    row = replace(reader, row_length=8).read(0, [3])
    assert len(row.input_ids_T) == len(row.states_TLH) == 8


def test_a_packed_row_keeps_documents_apart(reader: RowReader) -> None:
    row = reader.read(0, [2, 0])
    assert row.input_ids_T.tolist() == [200, 201, 202, 0, 1, 2, 3, 4]
    assert row.unroll.steps[0].document_T.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert row.position_ids_T.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    for part, states in ((slice(0, 3), document(2)), (slice(3, 8), document(0))):
        assert torch.equal(row.states_TLH[part, :-1], states.hidden_TLH)
        assert torch.equal(row.states_TLH[part, -1], states.last_TH)


def test_what_the_verifier_says_is_searched_once(reader: RowReader) -> None:
    row = reader.read(3, [0, 3])
    assert row.token_J is None
    token_J = torch.arange(len(row.unroll.targets_J)) * 7  # the token 0 is known as well as any other
    assert len(token_J) > 2
    reader.verifier_tokens.keep(3, token_J)
    anew = VerifierTokens(Path(str(reader.verifier_tokens._slots.filename)), 20, 16)
    for tokens in (reader.verifier_tokens, anew):
        assert torch.equal(replace(reader, verifier_tokens=tokens).read(3, [0, 3]).token_J, token_J)
    assert reader.read(4, [0, 3]).token_J is None


PLAN = Plan(pack(LENGTHS, 16), pack(LENGTHS, 16), rows_per_step=2, num_steps=7, seed=3)


def loader(reader: RowReader, **ranks: int) -> PackedLoader:
    return PackedLoader(reader, PLAN, **ranks)


def seen(loader: PackedLoader) -> list[list[list[int]]]:
    return [[row.input_ids_T.tolist() for row in step.rows] for step in loader]


def test_loader_passes_over_all_rows_in_shuffled_passes(reader: RowReader) -> None:
    plan = loader(reader).plan
    num_rows = len(plan.rows)
    stream = [row for step in range(7) for row in plan.rows_of(step)]
    for epoch in range(len(stream) // num_rows):
        assert stream[epoch * num_rows :][:num_rows] == permutation(num_rows, 3, epoch)
        assert sorted(stream[epoch * num_rows :][:num_rows]) == list(range(num_rows))


def test_loader_resumes_exactly(reader: RowReader) -> None:
    whole, first = seen(loader(reader)), loader(reader)
    iterator = iter(first)
    begun = [[row.input_ids_T.tolist() for row in next(iterator).rows] for _ in range(3)]
    state = first.state_dict()
    assert state == {"step": 3}  # what was yielded; the row read ahead does not count
    second = loader(reader)
    second.load_state_dict(state)
    assert begun + seen(second) == whole


def test_ranks_share_a_step(reader: RowReader) -> None:
    whole = seen(loader(reader))
    parts = [seen(loader(reader, rank=rank, num_ranks=2)) for rank in range(2)]
    assert [[*a, *b] for a, b in zip(*parts, strict=True)] == whole


def test_validation_deals_every_row_once(reader: RowReader) -> None:
    ranks = [list(ValidationLoader(reader, PLAN, rank=rank, num_ranks=2)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])  # each costs a collective
    alone = [reader.read(0, documents) for documents in PLAN.held_out_rows]
    supervised = sum(int(step.rows[0].unroll.supervised_K[0]) for steps in ranks for step in steps)
    assert supervised == sum(int(row.unroll.supervised_K[0]) for row in alone) > 0


def test_length_in_steps_or_epochs(tiny: Callable[..., Config]) -> None:
    assert num_steps(10, 4, max_steps=7, epochs=None) == 7
    assert num_steps(10, 4, max_steps=None, epochs=2.0) == 5
    assert num_steps(1, 4, max_steps=None, epochs=1.0) == 1
