"""Capture with the verifier in transformers: the states stage.

Rows are dealt to shards, and within a shard to batches of similar length, before anything is run: a capture that was
killed goes on after its last whole shard and ends with the same bytes.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eyas.artifact import building, complete, sha256_of, write_file
from eyas.capture.modules import Modules, find_modules
from eyas.capture.parity import Parity, alternatives, compare, confusable, own_logits
from eyas.capture.tap import Tap, load_verifier
from eyas.config import Config, to_dict
from eyas.data.store import Document, plan_shards, shard_name, write_shard
from eyas.data.tokens import Tokens, load_tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.stages import draft_shape, parity_file, states_artifact, tokens_artifact, verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.schema import VerifierConfig
from eyas.verifier.teacher import Teacher


def capture(config: Config) -> None:
    """Write the states artifact of the tokens artifact, unless it exists, and prove how the verifier is read."""
    artifact, proof = states_artifact(config), parity_file(config)
    tokens = load_tokens(tokens_artifact(config).directory)
    with building(artifact) as partial:
        if partial is not None:
            _write_shards(config, tokens, partial)
            shards = plan_shards(tokens.lengths, config.capture.tokens_per_shard)
            entries = [_entry(partial, index, rows, tokens) for index, rows in enumerate(shards)]
            complete(artifact, partial, {"tokens": sum(tokens.lengths), "shards": entries})
    if not proof.exists():  # the states were there, but nobody has read them this way
        write_file(proof, _proved(config, tokens)[2])


def _write_shards(config: Config, tokens: Tokens, partial: Path) -> None:
    """Capture every shard that is not there yet."""
    shards = plan_shards(tokens.lengths, config.capture.tokens_per_shard)
    missing = [index for index in range(len(shards)) if not (partial / shard_name(index)).exists()]
    num_missing = sum(tokens.lengths[row] for index in missing for row in shards[index])
    done = sum(tokens.lengths) - num_missing
    if done:
        print(f"capture  resumes after {done:,} of {sum(tokens.lengths):,} tokens", flush=True)
    if not missing:
        return
    verifier, tap, parity = _proved(config, tokens)
    write_file(partial / parity_file(config).name, parity)
    progress = Progress("capture", sum(tokens.lengths), "tokens", done=done)
    for index in missing:
        documents = _documents(verifier, tap, tokens, shards[index], config.capture.tokens_per_batch, progress)
        write_shard(partial / shard_name(index), documents)


def _proved(config: Config, tokens: Tokens) -> tuple[PreTrainedModel, Tap, str]:
    """The verifier with its hooks, and the proof (JSON) that the teacher's logits are its own.

    Raises:
        EyasError: they are not.
    """
    checkpoint, facts = locate(config.verifier), verifier_facts(config)
    dtype, device = getattr(torch, config.capture.dtype.name), torch.device(config.trainer.accelerator.name)
    verifier = load_verifier(checkpoint, config.verifier, dtype, device)
    modules = find_modules(verifier, config.verifier, facts.num_layers)
    print(f"capture  hooks {', '.join(f'{what}: {path}' for what, path in modules.paths.items())}", flush=True)
    teacher = Teacher.from_checkpoint(checkpoint, facts, dtype).to(device)
    parity = check_parity(verifier, modules, config.verifier, teacher, tokens.row(0)[0])
    print(f"capture  parity {parity}", flush=True)
    proof = {**vars(parity), "arithmetic": to_dict(facts.arithmetic)}
    return verifier, Tap(modules, draft_shape(config).layer_ids, config.verifier), json.dumps(proof, indent=2) + "\n"


def check_parity(
    model: PreTrainedModel, modules: Modules, verifier: VerifierConfig, teacher: Teacher, row: Tensor
) -> Parity:
    """The teacher makes the verifier's own logits out of the captured last state.

    Raises:
        EyasError: it doesn't: a wrong hook, norm or head, which no loss curve would show.
    """
    _, state_NH, own_NV = own_logits(model, modules, verifier, [row])
    own_NV, dtype = own_NV[:, : len(teacher.head)], teacher.head.dtype
    parity = compare(teacher(state_NH), own_NV, dtype)
    nearer = [it.name for it in confusable(alternatives(teacher, state_NH, own_NV), parity)]
    if nearer or not parity.holds(dtype):
        hint = f" (nearer: {', '.join(nearer)})" if nearer else ""
        raise EyasError(
            f"the teacher's logits are not the verifier's own: {parity}{hint}; "
            "verifier.norm, verifier.post_head, verifier.keys or verifier.transformers is not what this model does, "
            "eyas doctor shows more"
        )
    return parity


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
    with tap:
        verifier(
            input_ids=ids_BS.to(verifier.device),
            attention_mask=attention_BS.to(verifier.device),
            **tap.arguments(verifier),
        )
        return tap.take()


def _entry(directory: Path, index: int, rows: range, tokens: Tokens) -> dict[str, object]:
    name = shard_name(index)
    return {
        "file": name,
        "sha256": sha256_of(directory / name),
        "first_row": rows.start,
        "lengths": [tokens.lengths[row] for row in rows],
    }
