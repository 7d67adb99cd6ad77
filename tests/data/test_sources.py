"""Every kind of source gives the same rows, in order, each with its place."""

import bz2
import csv
import gzip
import io
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from eyas.cli.compose import compose
from eyas.data.formats import BadRow, RawRow, Reason, read_file
from eyas.data.sources import Files, Hub, find_source, raw_rows, source_identity
from eyas.errors import EyasError
from reading import data_config as config

ROWS = [{"prompt": f'é {number}, "quoted"\nline', "response": "[]{},\\"} for number in range(700)]


def rows(path: Path | str, **changes: Any) -> list[RawRow]:
    data = config(path, **changes)
    found = list(raw_rows(find_source(data), data.max_row_bytes))
    assert all(isinstance(row, RawRow) for row in found)
    return [row for row in found if isinstance(row, RawRow)]


def as_csv(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["prompt", "response"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def as_parquet() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


JSONL = "\n".join(json.dumps(row) for row in ROWS).encode()
KINDS: dict[str, bytes] = {
    ".jsonl": JSONL,
    ".ndjson": b"\xef\xbb\xbf" + JSONL.replace(b"\n", b"\r\n"),
    ".json": json.dumps(ROWS, indent=2, ensure_ascii=False).encode(),
    "-lines.json": JSONL,
    ".csv": as_csv(","),
    ".tsv": b"\xef\xbb\xbf" + as_csv("\t"),
    ".parquet": as_parquet(),
}
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: zstandard.compress(content[:999]) + zstandard.compress(content[999:]),
}


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_files(tmp_path: Path, kind: str, compression: str) -> None:
    file = tmp_path / f"data{kind}{compression}"
    file.write_bytes(COMPRESSORS[compression](KINDS[kind]))
    if kind == ".parquet" and compression:
        with pytest.raises(EyasError, match=r"unknown kind of file; expected \.jsonl"):
            rows(file)
        return
    found = rows(file)
    assert [row.value for row in found] == ROWS
    assert found[0].where.startswith(str(file))
    places = {".jsonl": f"{file}:2", ".json": f"{file} row 2", ".csv": f"{file}:4", ".parquet": f"{file} row 2"}
    assert found[1].where == places.get(kind, found[1].where)


def test_directories_and_globs_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/3.jsonl", "a/10.jsonl", ".hidden/0.jsonl", "a/_meta.json", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}))
    assert [row.value["text"] for row in rows(tmp_path)] == ["a/10.jsonl", "a/3.jsonl", "b/2.jsonl"]
    assert [row.value["text"] for row in rows(tmp_path / "a" / "*.jsonl")] == ["a/10.jsonl", "a/3.jsonl"]
    assert len(rows(tmp_path / "**" / "*.jsonl")) == 3
    with pytest.raises(EyasError, match=r"notes\.txt: unknown kind of file; expected \.jsonl"):
        rows(tmp_path / "a" / "*")
    for nothing in ("a/*.csv", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(EyasError, match="no file of conversations there"):
            rows(tmp_path / nothing)


def test_saved_by_datasets(tmp_path: Path) -> None:
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=made, test=made.select(range(3))).save_to_disk(tmp_path / "two")
    assert [row.value for row in rows(tmp_path / "one")] == ROWS
    assert rows(tmp_path / "one")[4].where == f"{tmp_path / 'one'} row 5"
    assert [row.value for row in rows(tmp_path / "two", split="test")] == ROWS[:3]
    with pytest.raises(EyasError, match=r"data\.split=None: .*two has train, test; set it to one of them"):
        rows(tmp_path / "two")
    with pytest.raises(EyasError, match=r"data\.split=x: .*one holds no splits"):
        rows(tmp_path / "one", split="x")
    assert source_identity(find_source(config(tmp_path / "one"))) == source_identity(
        find_source(config(tmp_path / "one"))
    )


def test_the_hub_is_refused_off_line_with_the_command_that_fetches() -> None:
    data = compose(["data=gsm8k", "experiment=none"], []).data
    assert find_source(data) == Hub("openai/gsm8k", "main", "train")
    wanted = "datasets.load_dataset('openai/gsm8k', 'main', split='train')"
    with pytest.raises(EyasError) as error:
        source_identity(find_source(data))
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match="there is no such file"):
        find_source(config(tmp_path / "nope.jsonl"))
    with pytest.raises(EyasError, match="there is no such file"):
        find_source(config("some/nope.jsonl"))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(EyasError, match="the file is empty"):
        find_source(config(tmp_path / "empty.jsonl"))
    with pytest.raises(EyasError, match="is no file"):
        find_source(config("/dev/null"))
    with pytest.raises(EyasError, match=r"data\.split=train: files have no splits"):
        find_source(config("conf:data/demo.jsonl", split="train"))
    with pytest.raises(EyasError, match=r"data\.config=main: only a data set of the hub has one"):
        find_source(config("conf:data/demo.jsonl", config="main"))
    found = find_source(config("conf:data/demo.jsonl"))
    assert isinstance(found, Files)
    assert found.files[0].is_file()


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv"])
def test_a_cut_archive_is_refused_not_ended(tmp_path: Path, kind: str, compression: str) -> None:
    file = tmp_path / f"data{kind}{compression}"
    file.write_bytes(COMPRESSORS[compression](KINDS[kind])[:-9])
    with pytest.raises(EyasError, match=r"can't be read past row \d+ \(.*\); it is cut short, damaged"):
        list(read_file(file, 1 << 25))


@pytest.mark.parametrize("cut", [1, 20, 50])
def test_a_cut_array_or_parquet_is_refused(tmp_path: Path, cut: int) -> None:
    for kind in (".json", ".parquet"):
        (tmp_path / f"data{kind}").write_bytes(KINDS[kind][:-cut])
        with pytest.raises(EyasError, match="it is cut short, damaged"):
            list(read_file(tmp_path / f"data{kind}", 1 << 25))


def test_array_elements_are_bad_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    long = json.dumps('\\"[' * 40_000)
    file.write_text(f'  [1, {{"a": 1, "a": 2}}, NaN, , {long}, "x", [{long}], {{"b": [1, {{}}]}}]  ')
    found = list(read_file(file, 1000))
    assert [row.where for row in found] == [f"{file} row {number}" for number in range(1, 9)]
    reasons = [row.reason if isinstance(row, BadRow) else row.value for row in found]
    bad = [Reason.duplicate_key, Reason.json, Reason.json, Reason.too_long]
    assert reasons == [1, *bad, "x", Reason.too_long, {"b": [1, {}]}]
    file.write_text("[]")
    assert list(read_file(file, 1000)) == []
    for text in ("[1] 2", "[1}", "[1}]", '["a]'):
        file.write_text(text)
        with pytest.raises(EyasError, match="cut short, damaged"):
            list(read_file(file, 1000))


def test_csv_rows_are_bad_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b'prompt,response\na,b\na,b,c\n\n\xff,b\n"a"x,b\n' + b"x" * 500 + b',b\nc,"d\ne"\nf,"g')
    found = list(read_file(file, 100))
    assert [row.where.rsplit(":", 1)[1] for row in found] == ["2", "3", "5", "6", "7", "8", "10"]
    assert [isinstance(row, BadRow) for row in found] == [False, True, True, True, True, False, True]
    file.write_text("a,a\n1,2\n")
    with pytest.raises(EyasError, match=r"data\.csv:1: expected the columns' names, each once"):
        list(read_file(file, 100))


def test_a_parquet_row_that_is_no_text_is_bad_alone(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"\xff", b"c"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "data.parquet")
    found = list(read_file(tmp_path / "data.parquet", 100))
    assert [row.value["text"] if isinstance(row, RawRow) else row.reason for row in found] == ["a", Reason.utf8, "c"]


def test_zst_without_its_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.jsonl.zst").write_bytes(zstandard.compress(JSONL))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(EyasError, match="pip install zstandard"):
        list(read_file(tmp_path / "data.jsonl.zst", 100))


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    row = {"prompt": "x" * 30_000, "response": ("y" * 100 + '\n"') * 300}
    line, text = json.dumps(row), io.StringIO()
    csv.writer(text).writerow(row.values())
    start, each, end = {
        "jsonl": ("", line + "\n", ""),
        "json": ("[0", "," + line, "]"),
        "csv": ("prompt,response\n", text.getvalue(), ""),
    }[kind]
    peaks = []
    for size in (200, 800):
        file = tmp_path / f"{size}.{kind}"
        file.write_text(start + each * size + end)
        code = (
            "import sys; from pathlib import Path; from eyas.data.formats import read_file;"
            f"assert sum(1 for _ in read_file(Path(sys.argv[1]), 1 << 25)) >= {size};"
            "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(file)], check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0]


def test_rows_come_before_the_file_is_read(tmp_path: Path) -> None:
    """The first rows of a file whose end is broken are there."""
    file = tmp_path / "data.json"
    file.write_bytes(b"[" + b"1," * 3_000_000)
    assert [row.where for row in islice(read_file(file, 100), 2)] == [f"{file} row 1", f"{file} row 2"]
