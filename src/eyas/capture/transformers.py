"""Capture with the verifier in transformers: batches of similar length, planned per shard, so that they are always the same."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eyas.capture.modules import Modules, find_modules
from eyas.capture.parity import Parity, own_logits, prove
from eyas.capture.tap import Tap, load_verifier, placement
from eyas.config import Config
from eyas.data.store import Document
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.stages import draft_shape, verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.teacher import Teacher

PARITY_POSITIONS = 512
"""Of the first row: a comparison of logits takes some 50 bytes for each token of the vocabulary at each of them."""


@contextmanager
def in_transformers(config: Config, tokens: Tokens, _: Path) -> Iterator["TransformersEngine"]:
    """The verifier of this configuration in this process, with its hooks."""
    checkpoint, facts = locate(config.verifier), verifier_facts(config)
    dtype, device = getattr(torch, config.capture.dtype.name), torch.device(config.trainer.accelerator.name)
    model = load_verifier(checkpoint, config.verifier, dtype, device, config.capture.device_map)
    modules = find_modules(model, config.verifier, facts.num_layers)
    yield TransformersEngine(config, tokens, model, modules)


@dataclass(frozen=True)
class TransformersEngine:
    """The verifier as a module of this process."""

    config: Config
    tokens: Tokens
    model: PreTrainedModel
    modules: Modules

    def prove(self) -> Parity:
        print(f"capture  hooks {', '.join(f'{what}: {path}' for what, path in self.modules.paths.items())}", flush=True)
        if placed := placement(self.model):
            print(f"capture  device_map {self.config.capture.device_map}: {placed}", flush=True)
        checkpoint, facts = locate(self.config.verifier), verifier_facts(self.config)
        dtype = getattr(torch, self.config.capture.dtype.name)
        teacher = Teacher.from_checkpoint(checkpoint, facts, dtype).to(self.model.device)
        row = self.tokens.row(0)[0][:PARITY_POSITIONS]
        _, state_NH, own_NV = own_logits(self.model, self.modules, self.config.verifier, [row])
        return prove(teacher, state_NH, own_NV)

    def shards(self, missing: Mapping[int, range], progress: Progress) -> Iterator[tuple[int, list[Document]]]:
        tap = Tap(self.modules, draft_shape(self.config).layer_ids, self.config.verifier)
        tokens_per_batch = self.config.capture.tokens_per_batch
        for index, rows in missing.items():
            yield index, _documents(self.model, tap, self.tokens, rows, tokens_per_batch, progress)


def plan_batches(rows: Sequence[int], lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Rows of similar length together, so that little is padded; a batch holds at most tokens_per_batch, or one row."""
    batch: list[int] = []
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens_per_batch:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@torch.inference_mode()
def _documents(
    verifier: PreTrainedModel, tap: Tap, tokens: Tokens, rows: range, tokens_per_batch: int, progress: Progress
) -> list[Document]:
    documents: dict[int, Document] = {}
    for batch in plan_batches(rows, tokens.lengths, tokens_per_batch):
        contents = [tokens.row(row) for row in batch]
        ids_BS = torch.nn.utils.rnn.pad_sequence([ids.long() for ids, _ in contents], batch_first=True)
        attention_BS = torch.nn.utils.rnn.pad_sequence([torch.ones_like(ids) for ids, _ in contents], batch_first=True)
        hidden_BSLH, last_BSH = _forward(verifier, tap, ids_BS, attention_BS)
        for slot, (row, (ids, mask)) in enumerate(zip(batch, contents, strict=True)):
            length = len(ids)
            documents[row] = Document(
                ids, mask, hidden_BSLH[slot, :length].cpu().clone(), last_BSH[slot, :length].cpu().clone()
            )
        progress.advance(sum(tokens.lengths[row] for row in batch))
    return [documents[row] for row in rows]


def _forward(verifier: PreTrainedModel, tap: Tap, ids_BS: Tensor, attention_BS: Tensor) -> tuple[Tensor, Tensor]:
    with tap, _full_memory_explained(ids_BS):
        verifier(
            input_ids=ids_BS.to(verifier.device),
            attention_mask=attention_BS.to(verifier.device),
            **tap.arguments(verifier),
        )
        return tap.take()


@contextmanager
def _full_memory_explained(ids_BS: Tensor) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        size = f"{len(ids_BS)} rows of {ids_BS.shape[1]} tokens"
        advice = "lower capture.tokens_per_batch" if len(ids_BS) > 1 else "set capture.device_map=auto"
        raise EyasError(f"the device's memory is full in a forward of the verifier over {size}; {advice}") from None
