"""The tokens stage as a process: any number of them makes the same bytes, killed or not, in memory that doesn't grow."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from eyas.artifact import read_manifest
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.prepare import EXAMPLES_PER_SHARD, prepare
from eyas.data.report import REPORT, dropped
from eyas.data.rows import RowMaker
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.stages import responses_artifact, states_artifact, tokens_artifact
from eyas.verifier.checkpoint import Checkpoint
from measure import config_file, content_hash, measured
from synthetic import write_conversations

NUM_SHARDS = 5


def short_conversations(file: Path, number: int) -> Path:
    with file.open("w") as stream:
        for index in range(number):
            messages = [{"role": "user", "content": f"Q{index}"}, {"role": "assistant", "content": f"A{index}"}]
            stream.write(json.dumps({"messages": messages}) + "\n")
    return file


def test_killed_and_resumed_by_any_number_of_processes_the_bytes_are_the_same(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = short_conversations(tmp_path / "data.jsonl", (NUM_SHARDS - 1) * EXAMPLES_PER_SHARD + 100)
    whole = tiny(f"data.path={file}", f"outputs={tmp_path}/whole")
    prepare(whole)
    expected = tokens_artifact(whole).directory
    assert len(list(expected.glob("shard-*.safetensors"))) == NUM_SHARDS

    config = tiny(f"data.path={file}", f"outputs={tmp_path}/killed", "data.num_processes=2")
    partial = tokens_artifact(config).directory.with_suffix(".partial")
    command = [sys.executable, "-m", "eyas.data.prepare", str(config_file(config, tmp_path))]
    with subprocess.Popen(command) as process:
        while not (partial / "shard-00000.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(workers, timeout=10)
    assert len(workers) == 2
    assert not any(worker.is_running() for worker in workers)
    before = {it.name: it.stat().st_mtime_ns for it in partial.glob("shard-*.safetensors")}
    assert 0 < len(before) < NUM_SHARDS
    assert not tokens_artifact(config).exists()

    subprocess.run(command, check=True)
    directory = tokens_artifact(config).directory
    assert content_hash(directory) == content_hash(expected)
    assert before == {name: (directory / name).stat().st_mtime_ns for name in before}
    assert read_manifest(directory)["counts"] == read_manifest(expected)["counts"]
    assert read_manifest(directory)["fingerprint"] == read_manifest(expected)["fingerprint"]


def test_rows_are_split_and_read_across_shards(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = short_conversations(tmp_path / "data.jsonl", EXAMPLES_PER_SHARD + 50)
    config = tiny(f"data.path={file}", "data.held_out=0.05")
    prepare(config)
    tokens = Tokens(tokens_artifact(config).directory)
    assert tokens.num_rows == EXAMPLES_PER_SHARD + 50
    assert tokens.lengths == [len(tokens.row(index)[0]) for index in range(tokens.num_rows)]
    written = sum(tokens.row(index)[1].sum().item() for index in range(tokens.num_train_rows))
    assert tokens.counts_V.sum() == written == tokens.counts["train_supervised_tokens"]
    held_out = tokens.num_rows - tokens.num_train_rows
    assert 20 < held_out == tokens.counts["held_out_rows"] < 110
    assert len({tuple(it) for it in tokens.held_out_prompts()}) == held_out


def test_what_is_set_aside_leaves_no_trace_but_its_number(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Not a row, so nothing that is captured, and not a token of the draft's vocabulary; a test can ask for it later."""
    rest = short_conversations(tmp_path / "rest.jsonl", 30)
    aside = [[{"role": "user", "content": f"Z{n}"}, {"role": "assistant", "content": "ZZ"}] for n in range(3)]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"messages": it}) + "\n" for it in aside) + rest.read_text())
    with file.open("a") as stream:
        stream.write(json.dumps({"messages": aside[1]}) + "\n")
    config = tiny(f"data.path={file}", "data.set_aside=3", "data.held_out=4")
    begins_there = tiny(f"data.path={rest}", "data.held_out=4")
    for it in (config, begins_there):
        prepare(it)
    found, expected = (
        {file.name: file.read_bytes() for file in tokens_artifact(it).directory.glob("*.safetensors")}
        for it in (config, begins_there)
    )
    assert found == expected
    tokens = Tokens(tokens_artifact(config).directory)
    [z] = set(RowMaker(config).tokenizer("ZZ")["input_ids"])
    assert not any((tokens.row(index)[0] == z).any() for index in range(tokens.num_rows))
    assert tokens.counts_V[z] == 0
    lost = dropped(tokens.counts)
    assert lost == [("3 conversations", "set aside"), ("1 conversation", "the same opening question as one set aside")]
    assert "<td>set aside</td>" in (tokens.directory / REPORT).read_text()

    later = tiny(f"data.path={file}", "data.held_out=3")  # as docs/evaluation.md has it
    prepare(later)
    assert [prompt.count(z) for prompt in Tokens(tokens_artifact(later).directory).held_out_prompts()] == [1, 1, 1]


def test_another_number_set_aside_is_another_data_set(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = short_conversations(tmp_path / "data.jsonl", 5)
    for made in (responses_artifact, tokens_artifact, states_artifact):
        numbers = [made(tiny(f"data.path={file}", f"data.set_aside={number}")).fingerprint for number in (0, 1, 2)]
        assert len({*numbers}) == 3
    nothing = tiny(f"data.path={file}", "data.set_aside=0")
    assert "set_aside" not in str(tokens_artifact(nothing).fields)  # so what was made before it could be said remains


def test_nothing_remains_to_train_on(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = short_conversations(tmp_path / "data.jsonl", 5)
    with pytest.raises(EyasError, match=r"data\.set_aside=5: nothing remains"):
        prepare(tiny(f"data.path={file}", "data.set_aside=5"))
    with pytest.raises(EyasError, match=r"no train rows: 2 conversations, data\.held_out=2, 3 set aside"):
        prepare(tiny(f"data.path={file}", "data.set_aside=3", "data.held_out=2"))


def test_text_and_tokens_become_rows(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    text, ids = tmp_path / "text.jsonl", tmp_path / "tokens.jsonl"
    text.write_text("".join(json.dumps({"text": f"{index} " + "abcdefghij" * 25}) + "\n" for index in range(3)))
    config = tiny(f"data.path={text}", "data.held_out=1", "data.max_length=100", "training.row_length=100")
    prepare(config)
    tokens = Tokens(tokens_artifact(config).directory)
    assert tokens.lengths == [100, 100, 52] * 3  # a long text is several rows, nothing of it is lost
    assert all(tokens.row(index)[1].all() for index in range(9))
    assert [len(prompt) for prompt in tokens.held_out_prompts()] == [32, 32, 26]

    mask = [0, 0, 0, 1, 1, 1]
    ids.write_text("".join(json.dumps({"input_ids": [row, *range(5)], "loss_mask": mask}) + "\n" for row in range(3)))
    config = tiny(f"data.path={ids}", "data.held_out=1")
    prepare(config)
    tokens = Tokens(tokens_artifact(config).directory)
    assert [tokens.row(index)[0].tolist() for index in range(3)] == [[row, 0, 1, 2, 3, 4] for row in (1, 2, 0)]
    assert tokens.row(0)[1].int().tolist() == mask
    ids.write_text(json.dumps({"input_ids": [5, 999_999, 1, 1], "loss_mask": [0, 0, 1, 1]}))
    with pytest.raises(EyasError, match=r"jsonl:1: token id 999999, but the verifier's embedding has"):
        prepare(tiny(f"data.path={ids}", "data.held_out=1"))


def test_options_of_what_is_learnt(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    def turns(question: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": question}, {"role": "assistant", "content": f"Re {question}"}]

    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"messages": turns(it) + turns("more")}) + "\n" for it in ("one", "two")))
    both = tiny(f"data.path={file}", "data.held_out=1")
    last = tiny(f"data.path={file}", "data.held_out=1", "data.last_turn_only=true")
    for config in (both, last):
        prepare(config)
    supervised = [Tokens(tokens_artifact(config).directory).row(0)[1].sum().item() for config in (both, last)]
    assert supervised == [len("Re two") + len("Re more") + 2, len("Re more") + 1]


def test_conversations_that_the_template_refuses_are_bad_rows(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ message.role }}]{{ message.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    file = short_conversations(tmp_path / "data.jsonl", 20)
    messages = [
        {"role": "system", "content": "Be."},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
    ]
    with file.open("a") as stream:
        stream.write(json.dumps({"messages": messages}) + "\n")
    options = (f"data.path={file}", "data.held_out=2", f"verifier.chat.template={template}")
    with pytest.raises(EyasError, match=r"data\.jsonl:21: the chat template can't render .*\(no system\)"):
        prepare(tiny(*options))
    config = tiny(*options, "data.max_bad_rows=0.1")
    prepare(config)
    counts = read_manifest(tokens_artifact(config).directory)["counts"]
    assert (counts["bad_rows"], counts["bad_rows_template"], counts["train_rows"]) == (1, 1, 18)
    assert "bad row  " in capsys.readouterr().out


def test_a_source_without_a_supervised_token_is_refused(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    good = short_conversations(tmp_path / "good.jsonl", 20)
    empty = tmp_path / "empty.jsonl"
    empty.write_text(json.dumps({"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 0, 0]}) + "\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "both.yaml").write_text(
        "defaults: [base/reading@_here_, mine@mixture.good, mine@mixture.empty]\nname: both\npath: null\n"
        f"mixture: {{good: {{path: {good}}}, empty: {{path: {empty}}}}}\n"
    )
    config = compose(
        ["verifier=tiny_llama", f"outputs={tmp_path}/outputs", "data=both", "data.held_out=2"], [str(tmp_path)]
    )
    with pytest.raises(EyasError, match=r"data\.mixture: empty has not one supervised token, from 1 conversations"):
        prepare(config)


def test_memory_does_not_grow_with_the_file(smollm2_checkpoint: Checkpoint, tmp_path: Path) -> None:
    peaks: list[int] = []
    for megabytes in (12, 50):
        file, outputs = tmp_path / f"{megabytes}.jsonl", tmp_path / str(megabytes)
        write_conversations(file, megabytes << 20, unused=0.98)
        options = [
            "verifier=smollm2_135m",
            "data=mine",
            f"data.path={file}",
            f"outputs={outputs}",
            "data.responses=keep",
        ]
        peaks.append(measured(compose([*options, "data.num_processes=2"], []), outputs).peak_bytes)
    assert peaks[1] < 1.1 * peaks[0]
