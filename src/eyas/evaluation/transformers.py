"""Evaluation in transformers: the draft at work beside its verifier, on the held-out prompts."""

import json
import time
from dataclasses import dataclass
from typing import Any

import torch

from eyas.artifact import write_file
from eyas.capture.modules import find_modules
from eyas.capture.tap import Tap, load_verifier
from eyas.config import Config
from eyas.data.tokens import Tokens
from eyas.draft.export import load_draft
from eyas.draft.given import PROVENANCE_FILE
from eyas.evaluation.chain import (
    CachedVerifier,
    Decoded,
    Drafter,
    decode_plain,
    decode_speculatively,
    right_at_every_start,
)
from eyas.evaluation.prompts import PromptSet, prompt_sets
from eyas.evaluation.report import acceptance, by_position, first_difference, of_prompt, report
from eyas.evaluation.starts import of_starts
from eyas.evaluation.why import class_of, explain
from eyas.progress import Progress
from eyas.run import Run
from eyas.stages import tokens_artifact, verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import load_tokenizer, stop_token_ids


@dataclass(frozen=True)
class Comparison:
    """One prompt, decoded both ways."""

    plain: Decoded
    speculative: Decoded
    right: list[int]
    """How many drafted tokens are right at every place where a chain could start."""

    @property
    def first_difference(self) -> int | None:
        return first_difference(self.plain.tokens, self.speculative.tokens)


def evaluate(config: Config, run: Run) -> None:
    """Decode held-out prompts with and without the draft; write evaluation.json.

    Raises:
        EyasError: outputs differ although they are computed in float32 with a clear margin: something is wrong.
    """
    checkpoint, facts, k = locate(config.verifier), verifier_facts(config), config.evaluation.k
    dtype, device = getattr(torch, config.evaluation.dtype.name), torch.device(config.trainer.accelerator.name)
    model = load_verifier(checkpoint, config.verifier, dtype, device, config.capture.device_map)
    modules = find_modules(model, config.verifier, facts.num_layers)
    draft = load_draft(run.draft, dtype, device)
    verifier = CachedVerifier(model, Tap(modules, draft.target_layer_ids, config.verifier))
    drafter = Drafter(draft)
    tokenizer = load_tokenizer(config.verifier, checkpoint)
    stop_ids = stop_token_ids(config.verifier, checkpoint, tokenizer)
    [asked] = prompt_sets(config)

    progress = Progress("evaluate", len(asked.prompts), "prompts")
    comparisons, seconds = [], {"plain": 0.0, "speculative": 0.0}
    for prompt in asked.prompts:
        started = time.perf_counter()
        plain = decode_plain(verifier, prompt, config.evaluation.max_tokens, stop_ids)
        seconds["plain"] += time.perf_counter() - started
        right = right_at_every_start(verifier, draft, prompt, plain, k)
        plain.hidden.clear()  # megabytes of each prompt
        started = time.perf_counter()
        speculative = decode_speculatively(verifier, drafter, prompt, k, config.evaluation.max_tokens, stop_ids)
        seconds["speculative"] += time.perf_counter() - started
        comparisons.append(Comparison(plain, speculative, right))
        progress.advance(1)
    provenance = json.loads((run.draft / PROVENANCE_FILE).read_text())
    found = summarize(config, asked, comparisons, seconds, verifier=checkpoint.identity, draft=provenance)
    found["why"] = explain(
        [it for comparison in comparisons for it in comparison.speculative.tried],
        lambda token: class_of(str(tokenizer.decode([token])), token in tokenizer.all_special_ids),
        {*draft.draft_ids_D.tolist()},
        training_counts(config),
    )
    found["why"]["starts"] = of_starts([comparison.right for comparison in comparisons], k)
    write_file(run.evaluation_file, json.dumps(found, indent=2) + "\n")


def summarize(
    config: Config,
    asked: PromptSet,
    comparisons: list[Comparison],
    seconds: dict[str, float],
    *,
    verifier: str,
    draft: dict[str, Any],
) -> dict[str, Any]:
    """The numbers of an evaluation; `verifier` and `draft` say what was measured.

    Raises:
        EyasError: nothing was drafted, or outputs differ with a clear margin.
    """
    accepted = [count for comparison in comparisons for count in comparison.speculative.accepted]
    num_tokens = sum(len(comparison.plain.tokens) for comparison in comparisons)
    return report(
        config,
        acceptance(len(accepted), by_position(accepted, config.evaluation.k)),
        prompts=asked.name,
        num_prompts=len(comparisons),
        differences=[
            {"prompt": prompt, "token": where, "gap": comparison.plain.gaps[min(where, len(comparison.plain.gaps) - 1)]}
            for prompt, comparison in enumerate(comparisons)
            if (where := comparison.first_difference) is not None
        ],
        tokens_per_second={way: num_tokens / max(taken, 1e-9) for way, taken in seconds.items()},
        per_prompt=[
            of_prompt(ids, len(it.tokens), len(it.accepted), by_position(it.accepted, config.evaluation.k))
            for ids, it in zip(asked.prompts, (comparison.speculative for comparison in comparisons), strict=True)
        ],
        verifier=verifier,
        draft=draft,
    )


def training_counts(config: Config) -> list[int] | None:
    """How often the training answers have each token; None where nothing was prepared (a draft that is only measured)."""
    artifact = None if config.evaluation.prompts else tokens_artifact(config)
    return None if artifact is None or not artifact.exists() else Tokens(artifact.directory).counts_V.tolist()
