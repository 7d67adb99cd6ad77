"""Evaluation in transformers: the draft at work beside its verifier, on the held-out prompts."""

import json
import time
from dataclasses import dataclass
from typing import Any

import torch

from eyas.artifact import write_file
from eyas.capture.modules import find_modules
from eyas.capture.tap import Tap, load_verifier
from eyas.config import Config, to_dict
from eyas.data.tokens import load_tokens
from eyas.draft.export import load_draft
from eyas.errors import EyasError
from eyas.evaluation.chain import CachedVerifier, Decoded, Drafter, decode_plain, decode_speculatively
from eyas.progress import Progress
from eyas.run import PROVENANCE_FILE, Run
from eyas.stages import draft_shape, tokens_artifact, verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import load_tokenizer, stop_token_ids


@dataclass(frozen=True)
class Comparison:
    """One prompt, decoded both ways."""

    plain: Decoded
    speculative: Decoded

    @property
    def first_difference(self) -> int | None:
        if self.plain.tokens == self.speculative.tokens:
            return None
        pairs = zip(self.plain.tokens, self.speculative.tokens, strict=False)
        return next(
            (i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.plain.tokens), len(self.speculative.tokens))
        )


def evaluate(config: Config, run: Run) -> None:
    """Decode held-out prompts with and without the draft; write evaluation.json.

    Raises:
        EyasError: outputs differ although they are computed in float32 with a clear margin: something is wrong.
    """
    checkpoint, facts, k = locate(config.verifier), verifier_facts(config), config.evaluation.k
    dtype, device = getattr(torch, config.evaluation.dtype.name), torch.device(config.trainer.accelerator.name)
    model = load_verifier(checkpoint, config.verifier, dtype, device)
    modules = find_modules(model, config.verifier, facts.num_layers)
    verifier = CachedVerifier(model, Tap(modules, draft_shape(config).layer_ids, config.verifier))
    drafter = Drafter(load_draft(run.draft, dtype, device))
    stop_ids = stop_token_ids(config.verifier, checkpoint, load_tokenizer(config.verifier, checkpoint))
    prompts = load_tokens(tokens_artifact(config).directory).held_out_prompts()[: config.evaluation.num_prompts]

    progress = Progress("evaluate", len(prompts), "prompts")
    comparisons, seconds = [], {"plain": 0.0, "speculative": 0.0}
    for prompt in prompts:
        started = time.perf_counter()
        plain = decode_plain(verifier, prompt, config.evaluation.max_tokens, stop_ids)
        between = time.perf_counter()
        speculative = decode_speculatively(verifier, drafter, prompt, k, config.evaluation.max_tokens, stop_ids)
        seconds["plain"] += between - started
        seconds["speculative"] += time.perf_counter() - between
        comparisons.append(Comparison(plain, speculative))
        progress.advance(1)
    report = summarize(config, comparisons, seconds, provenance=json.loads((run.draft / PROVENANCE_FILE).read_text()))
    flips = [item for item in report["differences"] if item["gap"] > NEAR_TIE[config.evaluation.dtype.name]]
    if flips:
        raise EyasError(
            f"speculative output differs from plain greedy output with a clear margin (prompt {flips[0]['prompt']}, token "
            f"{flips[0]['token']}, gap {flips[0]['gap']:.3g}): the verifier's states or cache are not what they should be"
        )
    write_file(run.evaluation_file, json.dumps({**report, "verdict": verdict(report)}, indent=2) + "\n")


NEAR_TIE = {"float32": 1e-2, "bfloat16": 0.5}
"""Logit gap up to which the two best tokens may trade places between a forward of one token and of k + 1."""


def summarize(
    config: Config, comparisons: list[Comparison], seconds: dict[str, float], provenance: dict[str, Any]
) -> dict[str, Any]:
    """The numbers of an evaluation, with the setting they hold for."""
    k = config.evaluation.k
    accepted = [count for comparison in comparisons for count in comparison.speculative.accepted]
    num_forwards = len(accepted)
    if not num_forwards:
        raise EyasError("every answer ended with its first token, so nothing was drafted: raise evaluation.max_tokens")
    reached = [sum(count >= position for count in accepted) for position in range(k + 1)]
    num_tokens = sum(len(comparison.plain.tokens) for comparison in comparisons)
    differences = [
        {"prompt": prompt, "token": where, "gap": comparison.plain.gaps[min(where, len(comparison.plain.gaps) - 1)]}
        for prompt, comparison in enumerate(comparisons)
        if (where := comparison.first_difference) is not None
    ]
    return {
        "asked": to_dict(config.evaluation),
        "setting": {
            **to_dict(config.evaluation),
            "temperature": 0,
            "drafting": "chain",
            "prompts": f"{config.data.name}, held out",
            "chat": to_dict(config.verifier.chat),
        },
        "tau": 1 + sum(accepted) / num_forwards,
        "acceptance": [reached[position + 1] / num_forwards for position in range(k)],
        "acceptance_cond": [reached[position + 1] / max(reached[position], 1) for position in range(k)],
        "num_prompts": len(comparisons),
        "num_identical": len(comparisons) - len(differences),
        "differences": differences,
        "tokens_per_second": {way: num_tokens / max(taken, 1e-9) for way, taken in seconds.items()},
        "per_prompt": [
            {"tokens": len(comparison.speculative.tokens), "accepted": comparison.speculative.accepted}
            for comparison in comparisons
        ],
        "draft": provenance,
    }


def verdict(report: dict[str, Any]) -> list[str]:
    """The last lines, for people and programs."""
    setting = report["setting"]
    lines = [f"measured tau {report['tau']:.2f} (k={setting['k']}, T=0, {setting['engine']}, {setting['dtype']})"]
    same, of = report["num_identical"], report["num_prompts"]
    if same == of:
        return [*lines, f"output identical to plain greedy decoding ({same}/{of})"]
    gap = max(difference["gap"] for difference in report["differences"])
    return [
        *lines,
        f"output differs from plain greedy decoding in {of - same}/{of} prompts, at near-ties (largest logit gap {gap:.2g})",
    ]
