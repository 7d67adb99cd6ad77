"""The tokens stage: rows, their split, their counts, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.stages import tokens_artifact
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.make import byte_tokenizer

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
OTHER = {"role": "user", "content": "Ho"}
PROMPT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def hidden(text: str) -> str:
    """As many dashes as tokens."""
    return "-" * len(byte_tokenizer()(text)["input_ids"])


def jsonl(file: Path, *conversations: list[dict[str, str]]) -> Path:
    file.write_text("\n".join(json.dumps({"messages": messages}) for messages in conversations))
    return file


def test_prepare_splits_counts_and_cuts(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    long = [OTHER, {"role": "assistant", "content": "a" * 500}]
    file = jsonl(tmp_path / "data.jsonl", [USER, ANSWER], long, [OTHER, ANSWER])
    config = tiny(f"data.path={file}", "data.held_out=1", "data.max_length=100")
    prepare(config)
    tokens = Tokens(tokens_artifact(config).directory)
    assert (tokens.num_rows, tokens.num_train_rows, tokens.lengths[0]) == (3, 2, 100)
    tokenizer = byte_tokenizer()
    assert int(tokens.counts_V[tokenizer.convert_tokens_to_ids("a")]) == 100 - len(hidden(PROMPT))
    assert int(tokens.counts_V[tokenizer.eos_token_id]) == 1  # the held-out row is not counted, nor the cut one's
    assert tokens.held_out_prompts() == [tokenizer(PROMPT)["input_ids"]]
    assert tokens.row(0)[0].dtype is torch.int32


def test_prepare_refuses_rows_without_supervision(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = jsonl(tmp_path / "data.jsonl", [USER, ANSWER], [OTHER, ANSWER])
    config = tiny(f"data.path={file}", "data.held_out=1", "data.max_length=10")
    with pytest.raises(EyasError, match="2 rows without supervised tokens"):
        prepare(config)
    assert not Path(config.outputs).exists()


def test_prepare_leaves_nothing_of_a_broken_file(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = jsonl(tmp_path / "data.jsonl", [USER, ANSWER], [USER, ANSWER])
    file.write_text(file.read_text() + "\n{broken")
    config = tiny(f"data.path={file}", "data.held_out=1")
    with pytest.raises(EyasError, match=r"data\.jsonl:3: not valid JSON"):
        prepare(config)
    assert not Path(config.outputs).exists()


def test_fingerprint_is_of_content_not_of_place(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    here, there = jsonl(tmp_path / "a.jsonl", [USER, ANSWER]), jsonl(tmp_path / "b.jsonl", [USER, ANSWER])
    assert (
        tokens_artifact(tiny(f"data.path={here}")).fingerprint
        == tokens_artifact(tiny(f"data.path={there}")).fingerprint
    )
    jsonl(there, [USER, ANSWER], [USER, ANSWER])
    assert (
        tokens_artifact(tiny(f"data.path={here}")).fingerprint
        != tokens_artifact(tiny(f"data.path={there}")).fingerprint
    )
