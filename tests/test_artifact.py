import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from eyas.artifact import Artifact, building, complete, locked, read_manifest, write_manifest
from eyas.errors import EyasError


def artifact(store: Path, **fields: object) -> Artifact:
    return Artifact(store=store, stage="tokens", fields=fields, inputs={"data": "abc"})


def build(store: Path, content: str) -> bool:
    with building(artifact(store, a=1)) as partial:
        if partial is None:
            return False
        (partial / "file").write_text(content)
        complete(artifact(store, a=1), partial, {"rows": 1})
        return True


def test_built_once(tmp_path: Path) -> None:
    assert build(tmp_path, "first")
    assert not build(tmp_path, "second")
    made = artifact(tmp_path, a=1)
    assert made.exists()
    assert (made.directory / "file").read_text() == "first"
    assert read_manifest(made.directory)["counts"] == {"rows": 1}


def test_fingerprint_depends_on_fields_and_inputs(tmp_path: Path) -> None:
    same, other = artifact(tmp_path, a=1, b=2), artifact(tmp_path / "elsewhere", b=2, a=1)
    assert same.fingerprint == other.fingerprint
    assert artifact(tmp_path, a=2, b=2).fingerprint != same.fingerprint


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"the disk of .*tokens is full"), building(artifact(tmp_path, a=1)):
        raise OSError(errno.ENOSPC, "No space left on device")


def interrupted_build(store: Path) -> None:
    with building(artifact(store, a=1)) as partial:
        assert partial is not None
        (partial / "shard-0").write_text("done")
        raise KeyboardInterrupt


def test_interrupted_build_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_build(tmp_path)
    assert not artifact(tmp_path, a=1).exists()
    with building(artifact(tmp_path, a=1)) as partial:
        assert partial is not None
        assert (partial / "shard-0").read_text() == "done"


def test_failed_build_without_files_leaves_nothing(tmp_path: Path) -> None:
    store = tmp_path / "outputs" / "store"
    with pytest.raises(EyasError), building(artifact(store, a=1)):
        raise EyasError("bad data")
    assert list(tmp_path.iterdir()) == []


def test_something_else_in_its_place_is_refused_by_field(tmp_path: Path) -> None:
    wanted = artifact(tmp_path, a=1, b=2)
    wanted.directory.mkdir(parents=True)
    write_manifest(wanted.directory, {"fingerprint": "other", "fields": {"a": 1, "b": 3}, "inputs": {"data": "abc"}})
    with pytest.raises(EyasError, match=r"differs in: b\)"):
        wanted.exists()


def test_two_processes_take_turns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        built = pool.starmap(build, [(tmp_path, str(index)) for index in range(8)])
    assert sum(built) == 1
    assert not list(tmp_path.rglob("*.partial"))
    assert not list(tmp_path.rglob(".lock"))


def test_a_missing_file_in_a_build_is_an_error_as_any_other(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), building(artifact(tmp_path / "store", a=1)):
        (tmp_path / "nowhere").read_text()


def test_a_held_lock_is_noticed(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(BlockingIOError), locked(tmp_path, wait=False):
        pass


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with locked(tmp_path):
            os._exit(0)
    os.waitpid(child, 0)
    with locked(tmp_path, wait=False) as still_there:
        assert still_there
