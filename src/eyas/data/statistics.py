"""What the tokens stage made, in figures and in examples: for its manifest, and for people."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from eyas.artifact import write_file
from eyas.config import Config
from eyas.data.render import Row
from eyas.data.report import EXAMPLES, REPORT, Example
from eyas.data.report_html import html
from eyas.data.rows import split_by_mask
from eyas.data.schema import DataConfig
from eyas.data.store import shard_name
from eyas.data.tokens import COUNTS, TokenShard, read_token_shard
from eyas.errors import EyasError
from eyas.stages import answered_data, verifier_facts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SIDES = {"train": False, "held_out": True}


def summarise(
    config: Config, directory: Path, num_shards: int, counts: Counter[str], tokenizer: "PreTrainedTokenizerBase"
) -> dict[str, Any]:
    """Write the token counts, the examples and the report beside the shards; returns the manifest's counts.

    Args:
        counts: What reading counted; what rendering counted is in the shards.

    Raises:
        EyasError: a side of the split without rows, or a source without a supervised token.
    """
    data = answered_data(config)
    counts_V = np.zeros(verifier_facts(config).vocab_size, np.int64)
    upto = _bounds(data.max_length)
    train_rows_by_length = np.zeros(len(upto), np.int64)
    for index in range(num_shards):
        shard = read_token_shard(directory / shard_name(index))
        # `conversations` was counted when they were dealt
        counts.update({key: number for key, number in shard.counts.items() if key != "conversations"})
        lengths = np.diff(shard.offsets)
        for side, held_out in _SIDES.items():
            of_side = np.repeat(shard.held_out == held_out, lengths)
            counts[f"{side}_rows"] += int((shard.held_out == held_out).sum())
            counts[f"{side}_tokens"] += int(of_side.sum())
            counts[f"{side}_supervised_tokens"] += int(shard.loss_mask[of_side].sum())
        train_rows_by_length += np.bincount(np.searchsorted(upto, lengths[~shard.held_out]), minlength=len(upto))
        written = shard.input_ids[shard.loss_mask & np.repeat(~shard.held_out, lengths)]
        counts_V += np.bincount(written, minlength=len(counts_V))
    _check(data, counts)
    save_file({"counts": counts_V}, directory / COUNTS)
    summary = {
        **dict(sorted(counts.items())),
        "shards": num_shards,
        "max_length": data.max_length,
        "lengths": {"upto": upto, "rows": train_rows_by_length.tolist()},
        "coverage": _coverage(counts_V),
    }
    examples = _examples(directory, num_shards, counts["train_rows"], tokenizer)
    write_file(directory / EXAMPLES, json.dumps([vars(example) for example in examples], indent=2) + "\n")
    write_file(directory / REPORT, html(summary, examples))
    return summary


def _check(data: DataConfig, counts: Counter[str]) -> None:
    where = f"data.path={data.path}" if data.path else "data.mixture"
    aside = f"{counts['set_aside']} set aside (data.set_aside), " if counts["set_aside"] else ""
    lost = f"{aside}{counts['unsupervised_rows']} rows without supervised tokens"
    for name in data.sources:
        if not counts[f"supervised_{name}"]:
            raise EyasError(
                f"{where}: {name} has not one supervised token, from {counts[f'conversations_{name}']} conversations ({lost}); "
                "expected answers of the verifier: look at data.max_length and at what the answers hold"
            )
    for side in _SIDES:
        if not counts[f"{side}_rows"]:
            raise EyasError(
                f"{where} leaves no {side} rows: {counts['conversations']} conversations, data.held_out={data.held_out:g}, {lost}; "
                "change data.held_out (a share below 1, or a number of questions), or give more data; conversations that open "
                "alike are always on the same side"
            )


def _bounds(max_length: int) -> list[int]:
    """Powers of two, and max_length at the end."""
    return [2**power for power in range(5, max_length.bit_length()) if 2**power < max_length] + [max_length]


def _coverage(counts_V: "np.typing.NDArray[np.int64]") -> dict[str, float]:
    """Draft vocabulary size -> the share of the supervised tokens that it can express, up to all of them."""
    shares = np.cumsum(np.sort(counts_V)[::-1]) / counts_V.sum()
    num_written = int((counts_V > 0).sum())
    sizes = [2**power for power in range(8, 20) if 2**power < num_written] + [num_written]
    return {str(size): round(float(shares[size - 1]), 6) for size in sizes}


def _examples(
    directory: Path, num_shards: int, num_train_rows: int, tokenizer: "PreTrainedTokenizerBase"
) -> list[Example]:
    """The first, a middle and the last training row."""
    wanted = sorted({0, num_train_rows // 2, num_train_rows - 1})
    found: list[Example] = []
    first = 0
    for index in range(num_shards):
        shard = read_token_shard(directory / shard_name(index))
        rows = np.flatnonzero(~shard.held_out)
        here = [number for number in wanted if first <= number < first + len(rows)]
        found += [_example(shard, int(rows[it - first]), f"training row {it + 1:,}", tokenizer) for it in here]
        first += len(rows)
    return found


def _example(shard: TokenShard, row: int, where: str, tokenizer: "PreTrainedTokenizerBase") -> Example:
    start, end = shard.offsets[row : row + 2]
    whole = Row(shard.input_ids[start:end].tolist(), shard.loss_mask[start:end].tolist())
    spans = [(str(tokenizer.decode(ids)), supervised) for ids, supervised in split_by_mask(whole)]
    return Example(where, len(whole.input_ids), sum(whole.loss_mask), False, spans)
