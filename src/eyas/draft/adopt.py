"""`python -m eyas.draft.adopt DIRECTORY`: a draft that no run made, checked against the verifier and written to `draft/`.

What is measured is always speculators' format, in which vLLM and our own chain read the same layer ids and numbers. The
tensors, the vocabulary and the layer's numbers stay the draft's own; an embedding that it leaves out is the verifier's.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import nn
from transformers import LlamaConfig

from eyas.artifact import provenance, publish, remove, write_file
from eyas.config import Config, load_config
from eyas.draft.export import compare, save
from eyas.draft.given import PROVENANCE_FILE, content, find_draft, provenance_of, trained_for
from eyas.draft.model import DECODING_ATTENTION, Draft
from eyas.draft.stored import StoredDraft, read_stored
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.run import Run
from eyas.stages import verifier_facts
from eyas.verifier.facts import VerifierFacts
from eyas.verifier.locate import locate
from eyas.verifier.tensors import read_tensor


def adopt(config: Config, run: Run) -> None:
    """Write `draft.init` to the run's `draft/`.

    Raises:
        EyasError: it is no EAGLE-3 draft, or can't work beside this verifier.
    """
    where = str(config.draft.init)
    directory, stored = find_draft(where, where), read_stored(where, where)
    facts = verifier_facts(config)
    layer_ids = check_fit(stored, facts, config.verifier.name)
    draft = as_draft(config, stored, facts, layer_ids)
    partial = run.draft.with_suffix(".partial")
    remove(partial)
    save(draft, partial)
    compare(draft, partial)
    write_file(partial / PROVENANCE_FILE, json.dumps(record(config, directory, stored), indent=2) + "\n")
    publish(partial, run.draft)
    kind = "raw Eagle3 format" if stored.is_raw else "speculators format"
    print(
        f"adopt    {where}  {kind}, layer ids {layer_ids}, {len(draft.draft_ids_D):,} tokens; -> {run.draft}",
        flush=True,
    )


def check_fit(stored: StoredDraft, facts: VerifierFacts, verifier: str) -> list[int]:
    """Whether this draft can work beside this verifier; the layers that it reads.

    Raises:
        EyasError: it can't; what differs is named.
    """
    hidden_size, width = stored.tensors["fc.weight"].shape
    if hidden_size != facts.hidden_size:
        raise EyasError(
            f"{stored.where} reads states of {hidden_size} numbers, {verifier} has hidden_size {facts.hidden_size}: it was made "
            "for another model; name its verifier"
        )
    if stored.verifier_vocab_size != facts.vocab_size:
        raise EyasError(
            f"{stored.where} knows a vocabulary of {stored.verifier_vocab_size:,} tokens (t2d, vocab_size), {verifier} has "
            f"{facts.vocab_size:,}: it was made for another model; name its verifier"
        )
    head = stored.tensors.get("lm_head.weight")
    if head is not None and len(head) != len(stored.draft_ids_D):
        raise EyasError(
            f"{stored.where}: its head has {len(head):,} rows and its vocabulary {len(stored.draft_ids_D):,} tokens; expected "
            "d2t and t2d of the head's length: without them nobody knows which tokens it drafts"
        )
    _ = stored.sliding_window  # refuses layers that attend differently
    num_captured, layer_ids = width // hidden_size, stored.layer_ids
    if layer_ids is None and num_captured == len(facts.default_layer_ids):
        return facts.default_layer_ids
    if layer_ids is None or len(layer_ids) != num_captured:
        key = "eagle_config.eagle_aux_hidden_state_layer_ids" if stored.is_raw else "eagle_aux_hidden_state_layer_ids"
        raise EyasError(
            f"{stored.where} reads {num_captured} captured layers and its config names {layer_ids or 'none'}; set {key} there"
            f"{', one lower than the layer that is entered' if stored.is_raw else ''}"
        )
    if not all(0 <= id < facts.num_layers for id in layer_ids):
        raise EyasError(
            f"{stored.where} reads the states entering layers {layer_ids}, and {verifier} has {facts.num_layers} layers, 0 to "
            f"{facts.num_layers - 1}: it was made for another model; name its verifier"
        )
    return layer_ids


def as_draft(config: Config, stored: StoredDraft, facts: VerifierFacts, layer_ids: list[int]) -> Draft:
    """The same draft as our own model, in the type it is stored in.

    Raises:
        EyasError: tensors missing, left over, or of another shape.
    """
    checkpoint = locate(config.verifier)
    draft = Draft(speculators_config(config, stored, facts, layer_ids), stored.draft_ids_D)
    tensors = dict(stored.tensors)
    if "embed_tokens.weight" not in tensors:
        tensors["embed_tokens.weight"] = read_tensor(checkpoint, facts.embedding)
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = read_tensor(checkpoint, facts.head)[stored.draft_ids_D]
    try:
        missing, unexpected = draft.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # sizes; the first line only says that there are some
        raise EyasError(
            f"{stored.where}: {str(error).splitlines()[-1].strip()} (its config against its tensors)"
        ) from None
    missing = [name for name in missing if name not in ("d2t", "t2d")]
    if missing or unexpected:
        raise EyasError(f"{stored.where}: tensors missing {missing or 'none'}, left over {unexpected or 'none'}")
    cast(nn.Module, draft).to(stored.tensors["fc.weight"].dtype)
    return draft


def speculators_config(
    config: Config, stored: StoredDraft, facts: VerifierFacts, layer_ids: list[int]
) -> Eagle3SpeculatorConfig:
    """Its config.json; what speculators' format says stays, what the raw format says is put where speculators' has it."""
    if not stored.is_raw:
        made = cast(Eagle3SpeculatorConfig, Eagle3SpeculatorConfig.from_dict(stored.config))
        made.eagle_aux_hidden_state_layer_ids = layer_ids
    else:
        checkpoint = locate(config.verifier)
        layer = {**stored.config, "vocab_size": facts.vocab_size, "tie_word_embeddings": False, "num_hidden_layers": 1}
        foreign = {"architectures", "eagle_config", "draft_vocab_size", "torch_dtype", "dtype", *stored.flags}
        made = Eagle3SpeculatorConfig(
            architectures=["Eagle3DraftModel"],
            transformer_layer_config=LlamaConfig.from_dict({key: layer[key] for key in layer.keys() - foreign}),
            draft_vocab_size=len(stored.draft_ids_D),
            eagle_aux_hidden_state_layer_ids=layer_ids,
            **stored.flags,
            speculators_config=SpeculatorsConfig(
                algorithm="eagle3",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=config.evaluation.k)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=checkpoint.hub or str(checkpoint.directory), architectures=[]),
            ),
        )
    made.transformer_layer_config._attn_implementation = DECODING_ATTENTION
    return made


def record(config: Config, directory: Path, stored: StoredDraft) -> dict[str, Any]:
    """Its eyas.json: where it comes from, and what it is measured beside."""
    origin, checkpoint = provenance_of(directory), locate(config.verifier)
    return {
        "draft": stored.where,
        "format": "raw" if stored.is_raw else "speculators",
        "content": content(directory, stored.where),
        "run": origin.get("run"),
        "step": origin.get("step"),
        "cost": origin.get("cost", {}),
        "trained_for": trained_for(config, directory),
        "verifier": {
            "name": config.verifier.name,
            "path": config.verifier.path,
            "hub": checkpoint.hub,
            "weights": checkpoint.identity,
        },
        **provenance(),
    }


def main(directory: Path) -> None:
    run = Run(directory)
    with torch.inference_mode():
        adopt(load_config(run.config_file), run)


if __name__ == "__main__":
    child_main(main)
