"""Conversations -> `input_ids` and `loss_mask` (see `eyas.data.render`), and the token counts: the tokens stage.

Run as `python -m eyas.data.tokens CONFIG`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.artifact import building, complete, read_manifest
from eyas.config import Config, load_config
from eyas.data.conversations import Conversation, read_conversations
from eyas.data.render import Row, render
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.stages import tokens_artifact
from eyas.verifier.facts import resolve
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import load_tokenizer, stop_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE = "tokens.safetensors"


@dataclass(frozen=True)
class Tokens:
    """The tokens stage's output: rows concatenated, training rows first, held-out rows after them."""

    input_ids: Tensor
    loss_mask: Tensor
    offsets: Tensor
    """Row r is [offsets[r], offsets[r + 1])."""
    counts_V: Tensor
    """How often the verifier wrote each token in the training rows: the draft vocabulary is chosen from these."""
    num_train_rows: int

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> list[int]:
        lengths: list[int] = self.offsets.diff().tolist()
        return lengths

    def row(self, index: int) -> tuple[Tensor, Tensor]:
        """(input_ids, loss_mask) of a row."""
        start, end = self.offsets[index : index + 2].tolist()
        return self.input_ids[start:end], self.loss_mask[start:end]

    def held_out_prompts(self) -> list[list[int]]:
        """The held-out rows up to the verifier's first answer."""
        prompts: list[list[int]] = []
        for index in range(self.num_train_rows, self.num_rows):
            input_ids, loss_mask = self.row(index)
            prompts.append(input_ids[: int(loss_mask.int().argmax())].tolist())
        return prompts


def prepare(config: Config) -> None:
    """Write the tokens artifact, unless it exists.

    Raises:
        EyasError: unusable conversations; nothing is left behind.
    """
    artifact = tokens_artifact(config)
    with building(artifact) as partial:
        if partial is None:
            return
        checkpoint = locate(config.verifier)
        vocab_size = resolve(config.verifier, checkpoint).vocab_size
        tokenizer = load_tokenizer(config.verifier, checkpoint)
        counts: Counter[str] = Counter(conversations=0, cut_rows=0, unsupervised_rows=0)
        train, held_out = _split(
            _rows(config, tokenizer, stop_token_ids(config.verifier, checkpoint, tokenizer), counts),
            config.data.num_held_out,
        )
        for name, rows in (("train", train), ("held_out", held_out)):
            if not rows:
                raise EyasError(
                    f"data.path={config.data.path} leaves no {name} rows: {counts['conversations']} conversations, "
                    f"data.num_held_out={config.data.num_held_out}, {counts['unsupervised_rows']} rows without supervised tokens"
                )
            counts[f"{name}_rows"] = len(rows)
            counts[f"{name}_tokens"] = sum(len(row.input_ids) for row in rows)
            counts[f"{name}_supervised_tokens"] = sum(sum(row.loss_mask) for row in rows)
        written = torch.tensor(
            [token for row in train for token, mask in zip(row.input_ids, row.loss_mask, strict=True) if mask]
        )
        if int(written.max()) >= vocab_size:
            raise EyasError(
                f"the tokenizer makes id {int(written.max())}, the verifier's embedding has {vocab_size} rows: they don't belong together"
            )
        rows = train + held_out
        tensors = {
            "input_ids": torch.tensor([token for row in rows for token in row.input_ids], dtype=torch.int32),
            "loss_mask": torch.tensor([mask for row in rows for mask in row.loss_mask], dtype=torch.bool),
            "offsets": torch.tensor([0, *(len(row.input_ids) for row in rows)]).cumsum(0),
            "counts": torch.bincount(written, minlength=vocab_size),
        }
        save_file(tensors, partial / FILE)
        complete(artifact, partial, dict(counts))


def load_tokens(directory: Path) -> Tokens:
    """Read a complete tokens artifact."""
    tensors = load_file(directory / FILE)
    num_train_rows = read_manifest(directory)["counts"]["train_rows"]
    return Tokens(tensors["input_ids"], tensors["loss_mask"], tensors["offsets"], tensors["counts"], num_train_rows)


def _rows(
    config: Config, tokenizer: "PreTrainedTokenizerBase", stop_ids: Sequence[int], counts: Counter[str]
) -> Iterator[tuple[int, Row]]:
    """(conversation number, row) of every row with at least one supervised token, cut to data.max_length."""
    for number, conversation in enumerate(read_conversations(config.data, counts)):
        if not isinstance(conversation, Conversation):
            raise EyasError(f"{conversation.where}: rows of text or tokens are not rendered yet; give conversations")
        counts["conversations"] += 1
        for row in render(tokenizer, conversation, config.verifier.chat.kwargs, stop_ids):
            kept = Row(row.input_ids[: config.data.max_length], row.loss_mask[: config.data.max_length])
            counts["cut_rows"] += len(kept.input_ids) < len(row.input_ids)
            if sum(kept.loss_mask) >= 2:  # the first answer token is input only: it takes two to have a target
                yield number, kept
            else:
                counts["unsupervised_rows"] += 1


def _split(rows: Iterator[tuple[int, Row]], num_held_out: int) -> tuple[list[Row], list[Row]]:
    train: list[Row] = []
    held_out: list[Row] = []
    for number, row in rows:
        (held_out if number < num_held_out else train).append(row)
    return train, held_out


def main(config_file: Path) -> None:
    prepare(load_config(config_file))


if __name__ == "__main__":
    child_main(main)
