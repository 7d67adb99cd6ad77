"""Artifacts: directories that are complete or absent, named by a fingerprint of everything that determined them.

An artifact is built in a sibling directory `<name>.partial`, fsynced and renamed; `manifest.json` is written last. Two
processes that want the same artifact take turns, by a lock file in the partial directory.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from eyas.disk import full_disk_explained
from eyas.errors import EyasError
from eyas.progress import Progress

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
LOCK = ".lock"
SAMPLED_FILES, SAMPLED_BYTES = 256, 4096


def fingerprint(stage: str, fields: dict[str, Any], inputs: dict[str, str]) -> str:
    """sha256 over what determines an artifact's content; never paths, never library versions."""
    identity = {"stage": stage, "schema": SCHEMA_VERSION, "fields": fields, "inputs": inputs}
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A directory in the store, existing or not yet."""

    store: Path
    stage: str
    fields: dict[str, Any]
    inputs: dict[str, str] = field(default_factory=dict)
    """Fingerprints of what it is made from."""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.stage, self.fields, self.inputs)

    @property
    def directory(self) -> Path:
        return self.store / self.stage / self.fingerprint[:16]

    def exists(self) -> bool:
        """Whether the directory is complete.

        Raises:
            EyasError: something else stands in its place; the differing fields are named.
        """
        if not self.directory.exists():
            return False
        manifest = read_manifest(self.directory)
        if manifest.get("fingerprint") == self.fingerprint:
            return True
        wanted = {**self.fields, **self.inputs}
        found = {**manifest.get("fields", {}), **manifest.get("inputs", {})}
        different = [key for key in sorted({*wanted, *found}) if wanted.get(key) != found.get(key)]
        raise EyasError(
            f"{self.directory} is not the {self.stage} that this run needs (it differs in: {', '.join(different) or MANIFEST}); "
            "move it away"
        )


@contextmanager
def building(artifact: Artifact) -> Iterator[Path | None]:
    """Yield the artifact's partial directory, locked for this process; None where it is complete (meanwhile).

    What an interrupted build left in it is still there. The caller ends with `complete`.

    Raises:
        EyasError: the disk is full.
    """
    with full_disk_explained(artifact.directory.parent), claimed(artifact.directory, artifact.exists) as partial:
        try:
            yield partial
        except BaseException:
            if partial is not None:
                (partial / LOCK).unlink(missing_ok=True)
                remove_if_empty(partial, upto=artifact.store.parent)
            raise


@contextmanager
def claimed(final: Path, exists: Callable[[], bool]) -> Iterator[Path | None]:
    """Yield `final`'s partial sibling, locked, or None once `exists()`: processes that want the same take turns."""
    partial = final.with_suffix(".partial")
    while not exists():
        partial.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            # Another process renames it when it is done and removes it when it fails: then look again.
            try:
                still_there = stack.enter_context(locked(partial))
            except FileNotFoundError:
                continue
            if still_there and not exists():
                yield partial
                return
            if still_there:  # we made it anew, just after it was done
                (partial / LOCK).unlink()
                with suppress(OSError):
                    partial.rmdir()
    yield None


def complete(artifact: Artifact, partial: Path, counts: dict[str, Any]) -> None:
    """Make a partial directory the artifact: manifest last, everything on disk, then one rename."""
    write_manifest(
        partial,
        {
            "schema": SCHEMA_VERSION,
            "stage": artifact.stage,
            "fingerprint": artifact.fingerprint,
            "fields": artifact.fields,
            "inputs": artifact.inputs,
            "counts": counts,
            **provenance(),
        },
    )
    publish(partial, artifact.directory)


def publish(partial: Path, final: Path) -> None:
    """Flush `partial`, all that is below it, and rename it to `final`, which must not exist; its lock file goes."""
    for path in [*partial.rglob("*"), partial]:
        _fsync(path)
    partial.rename(final)
    if final.is_dir():  # only now: without its lock file, a partial directory could be claimed by another process
        (final / LOCK).unlink(missing_ok=True)
    _fsync(final.parent)


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    write_file(directory / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def read_manifest(directory: Path) -> dict[str, Any]:
    """A directory's manifest; empty where there is none, that is where the directory is not complete."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def write_file(file: Path, text: str) -> None:
    """Replace a file in one step, so that a reader or a crash sees the old one or the new one."""
    temporary = file.with_name(f".{file.name}.partial")
    temporary.write_text(text)
    _fsync(temporary)
    temporary.rename(file)


@contextmanager
def locked(directory: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock on a directory; yields whether it is still the one at that path once the lock is held.

    The lock ends with the process, however that ends.

    Raises:
        BlockingIOError: `wait` is false and another process holds it.
        FileNotFoundError: the directory is gone.
    """
    file = directory / LOCK
    with file.open("a") as stream:  # writable: NFS locks nothing else
        fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat())


def remove_if_empty(directory: Path, *, upto: Path) -> None:
    """Remove a directory and its parents below and including `upto`, as far as they are empty."""
    for path in (directory, *directory.parents):
        with suppress(OSError):
            path.rmdir()
        if path == upto or path.exists():
            return


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def sha256_of(file: Path) -> str:
    """A file's content; a file that hasn't changed since is read once per process."""
    status = file.stat()
    return _sha256(file, status.st_size, status.st_mtime_ns)


def sha256_of_each(files: Sequence[Path], what: str) -> list[str]:
    """The content of many files, several read at a time; says how far it is where that takes long (terabytes of states)."""
    progress, found = Progress(what, len(files), "files", says_end=False), []
    with ThreadPoolExecutor() as readers:
        for digest in readers.map(sha256_of, files):
            found.append(digest)
            progress.advance(1)
    return found


@cache
def _sha256(file: Path, size: int, changed: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sampled_identity(files: Sequence[Path]) -> str:
    """Of files that are too large to be read whole: their names and sizes, and a block from the middle of some of them."""
    sizes = [file.stat().st_size for file in files]
    digest = hashlib.sha256(json.dumps([[file.name, size] for file, size in zip(files, sizes, strict=True)]).encode())
    for index in range(0, len(files), max(1, len(files) // SAMPLED_FILES)):
        with files[index].open("rb") as stream:
            stream.seek(sizes[index] // 2)
            digest.update(stream.read(SAMPLED_BYTES))
    return digest.hexdigest()


@cache
def provenance() -> dict[str, Any]:
    """Library versions and git revision: recorded beside an artifact, never part of its identity."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in ("eyas", "torch", "transformers", "speculators", "lightning"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    try:
        source = Path(__file__).parent
        git = subprocess.run(
            ["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        git = None
    return {"versions": versions, "git": git}


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
