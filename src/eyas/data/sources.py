"""`data.path` -> a stream of raw rows, in an order that depends on nothing but the content's names.

A file, a glob, a directory, what `datasets` saved to disk, or a data set of the hub.
"""

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from eyas.artifact import MANIFEST, sha256_of
from eyas.data.formats import ROWS_PER_BATCH, BadRow, RawRow, batches, file_format, known_suffixes, read_file
from eyas.data.schema import SourceConfig
from eyas.errors import EyasError


@dataclass(frozen=True)
class Files:
    """Files that are read one after another."""

    files: tuple[Path, ...]


@dataclass(frozen=True)
class Saved:
    """A directory that `datasets` wrote with save_to_disk."""

    directory: Path
    split: str | None


@dataclass(frozen=True)
class Hub:
    """A data set of the hub, read through `datasets` and its cache."""

    name: str
    config: str | None
    split: str | None
    revision: str | None = None


Source = Files | Saved | Hub


def find_source(data: SourceConfig) -> Source:
    """What data.path means; nothing is read yet.

    Raises:
        EyasError: nothing is there, or nothing that we read.
    """
    assert data.path is not None  # a mixture's own; nobody reads that
    source = _source(data, data.path)
    if isinstance(source, Files) and data.split is not None:
        raise EyasError(
            f"data.split={data.split}: files have no splits; set it to null and name the files in data.path"
        )
    if not isinstance(source, Hub) and data.config is not None:
        raise EyasError(f"data.config={data.config}: only a data set of the hub has one, and {data.path} is none")
    if not isinstance(source, Hub) and data.revision is not None:
        raise EyasError(f"data.revision={data.revision}: only a data set of the hub has one, and {data.path} is none")
    return source


def raw_rows(source: Source, max_row_bytes: int) -> Iterator[RawRow | BadRow]:
    """Every row of the source, in order.

    Raises:
        EyasError: a part of it can't be read.
    """
    if isinstance(source, Files):
        for file in source.files:
            yield from read_file(file, max_row_bytes)
    else:
        dataset = _dataset(source)
        where = source.name if isinstance(source, Hub) else str(source.directory)
        # Arrow, not Python: columns such as images are not decoded, which would take packages that aren't there.
        yield from batches(where, dataset.with_format("arrow").iter(batch_size=ROWS_PER_BATCH))


def source_identity(source: Source) -> dict[str, Any]:
    """What the rows are determined by: content, never places.

    Raises:
        EyasError: it can't be read.
    """
    if isinstance(source, Hub):
        return {"hub": source.name, "fingerprint": _dataset(source)._fingerprint}
    try:
        if isinstance(source, Files):
            return {"sha256": _sha256(source.files), "formats": sorted({str(file_format(it)) for it in source.files})}
        parts = tuple(sorted(it for it in source.directory.rglob("*") if it.is_file()))
        return {"sha256": _sha256(parts), "split": source.split}
    except OSError as error:
        raise EyasError(f"{error.filename}: can't be read ({error.strerror})") from None


def _sha256(parts: tuple[Path, ...]) -> str:
    """A file's content, or, of several, the names below what they share and the contents."""
    if len(parts) == 1:
        return sha256_of(parts[0])
    base = os.path.commonpath([part.parent for part in parts])
    named = [[part.relative_to(base).as_posix(), sha256_of(part)] for part in parts]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def _source(data: SourceConfig, place: str) -> Source:
    path = Path(place).expanduser()
    if place.startswith("conf:"):
        path = Path(str(files("eyas.conf") / place.removeprefix("conf:")))
    if path.is_dir():
        return _directory(path, data)
    if path.is_file():
        return _files([path], data)
    if path.exists():
        raise EyasError(
            f"data.path={data.path}: is no file; expected conversations in a file, a directory or on the hub"
        )
    if glob.has_magic(str(path)):
        return _files(sorted(it for it in map(Path, _glob(str(path))) if it.is_file()), data)
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", place, re.ASCII) and file_format(path) is None:
        return Hub(place, data.config, data.split, data.revision)
    raise EyasError(
        f"data.path={data.path}: there is no such file; expected a file or directory of conversations, a glob, or a "
        "data set of the hub as owner/name"
    )


def _glob(pattern: str) -> list[str]:
    return glob.glob(pattern, recursive=True)  # noqa: PTH207  Path.glob takes no absolute pattern


def _directory(directory: Path, data: SourceConfig) -> Source:
    if any((directory / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return Saved(directory, data.split)
    parts = [
        it
        for it in directory.rglob("*")
        if it.is_file()
        and file_format(it)
        and it.name != MANIFEST
        and not any(name[0] in "._" for name in it.relative_to(directory).parts)
    ]
    return _files(sorted(parts, key=lambda it: it.relative_to(directory).as_posix()), data)


def _files(parts: list[Path], data: SourceConfig) -> Files:
    if not parts:
        raise EyasError(f"data.path={data.path}: no file of conversations there; expected {known_suffixes()}")
    for part in parts:
        if file_format(part) is None:
            raise EyasError(f"{part}: unknown kind of file; expected {known_suffixes()}: name it by what it holds")
        if part.stat().st_size == 0:
            raise EyasError(f"{part}: the file is empty; expected conversations: remove it or write it again")
    return Files(tuple(parts))


@cache
def _dataset(source: Saved | Hub) -> Any:
    """A `datasets.Dataset`, memory-mapped.

    Raises:
        EyasError: it isn't there, or has several splits and none is chosen.
    """
    import datasets

    place = source.name if isinstance(source, Hub) else str(source.directory)
    try:
        if isinstance(source, Hub):
            found = datasets.load_dataset(source.name, source.config, split=source.split, revision=source.revision)
        else:
            found = datasets.load_from_disk(str(source.directory))
    except Exception as error:  # whatever the network, the cache, or any of its file readers raises
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        if isinstance(source, Saved):
            raise EyasError(f"{place}: `datasets` can't read what was saved there ({why}); save it again") from None
        arguments = ", ".join(
            [repr(source.name)]
            + ([repr(source.config)] if source.config else [])
            + ([f"split={source.split!r}"] if source.split else [])
            + ([f"revision={source.revision!r}"] if source.revision else [])
        )
        raise EyasError(
            f"data.path={place}: there is no such path, and the hub's data set can't be loaded ({why}); with a network, "
            f'fetch it into the cache: python -c "import datasets; datasets.load_dataset({arguments})"'
        ) from None
    if not isinstance(found, datasets.DatasetDict):
        if isinstance(source, Saved) and source.split is not None:
            raise EyasError(f"data.split={source.split}: {place} holds no splits; set it to null")
        return found
    split = source.split or (next(iter(found)) if len(found) == 1 else None)
    if split not in found:
        raise EyasError(f"data.split={split}: {place} has {', '.join(map(str, found))}; set it to one of them")
    return found[split]
