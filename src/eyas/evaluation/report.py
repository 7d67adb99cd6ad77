"""What an evaluation says: the same numbers whichever engine decoded, each with the setting that it holds for."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.config import Config, to_dict
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine

NEAR_TIE = {"float32": 1e-2, "bfloat16": 0.5}
"""Logit gap up to which the two best tokens may trade places between a forward of one token and of k + 1."""


def acceptance(num_forwards: int, accepted: Sequence[int]) -> dict[str, Any]:
    """tau and acceptance by position.

    Args:
        num_forwards: Verifier forwards that checked drafted tokens.
        accepted: At how many of them position 1, 2, ... was accepted (hence all before it).

    Raises:
        EyasError: nothing was drafted.
    """
    if not num_forwards:
        raise EyasError(
            "nothing was drafted: every answer ended with its first token (raise evaluation.max_tokens), or the server "
            "ignores the draft"
        )
    return {
        "tau": 1 + sum(accepted) / num_forwards,
        "acceptance": [count / num_forwards for count in accepted],
        "acceptance_cond": [
            count / max(before, 1) for before, count in zip([num_forwards, *accepted], accepted, strict=False)
        ],
    }


def by_position(accepted: Sequence[int], k: int) -> list[int]:
    """At how many forwards position 1, 2, ... k was accepted, from how many tokens each forward accepted."""
    return [sum(count > position for count in accepted) for position in range(k)]


def of_prompt(
    ids: Sequence[int], num_tokens: int, num_forwards: int | None = None, accepted: Sequence[int] = ()
) -> dict[str, Any]:
    """What is kept of one prompt: which it was, and what tau is made of, so that an interval over prompts can be computed.

    Args:
        ids: The prompt.
        num_tokens: Tokens of the answer.
        num_forwards: Verifier forwards that checked drafted tokens; None where they can't be told apart by prompt.
        accepted: At how many of them position 1, 2, ... was accepted.
    """
    which = {"id": hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:12], "tokens": num_tokens}
    return which if num_forwards is None else {**which, "forwards": num_forwards, "accepted": list(accepted)}


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """Where two answers part; None where they are the same."""
    if plain == speculative:
        return None
    pairs = zip(plain, speculative, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(speculative)))


def report(
    config: Config,
    accepted: dict[str, Any],
    *,
    prompts: str,
    num_prompts: int,
    differences: list[dict[str, Any]],
    tokens_per_second: dict[str, float],
    verifier: str,
    draft: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """evaluation.json.

    Args:
        accepted: What `acceptance` returned for the first k, prompt set (all its lengths) and concurrency.
        prompts: What was asked, in words.
        differences: {prompt, token, gap} of each answer that differs from plain decoding; the gap is between the logits of
            the two tokens at the first one that differs.
        tokens_per_second: `plain` and `speculative`.
        verifier: Which weights it was measured beside.
        draft: Where the draft comes from.

    Raises:
        EyasError: outputs differ with a clear margin: something is wrong.
    """
    near = NEAR_TIE[config.evaluation.dtype.name]
    flips = [item for item in differences if item["gap"] > near]
    if flips:
        raise EyasError(
            f"speculative output differs from plain greedy output with a clear margin (prompt {flips[0]['prompt']}, token "
            f"{flips[0]['token']}, gap {flips[0]['gap']:.3g}, where {near} is a near-tie in {config.evaluation.dtype.name}): the "
            "verifier's states or its cache are not what they should be"
        )
    asked = to_dict(config.evaluation)
    setting = {
        **asked,
        "drafting": "chain",
        "prompts": prompts,
        "chat": to_dict(config.verifier.chat),
        "verifier": {"name": config.verifier.name, "weights": verifier},
    }
    if config.evaluation.engine is Engine.vllm:
        arguments = [*config.verifier.vllm.args, *config.server.args]
        setting["served"] = {"args": arguments, "kv_cache_dtype": config.server.kv_cache_dtype}
    found = {
        "asked": asked,
        "setting": setting,
        **accepted,
        "num_prompts": num_prompts,
        "num_identical": num_prompts - len(differences),
        "differences": differences,
        "tokens_per_second": tokens_per_second,
        **more,
        "draft": draft,
    }
    return {**found, "verdict": verdict(found)}


def in_words(setting: Mapping[str, Any]) -> str:
    """What a tau holds for, but for the prompts."""
    return f"k={setting['k']}, T={setting['temperature']:g}, {setting['engine']}, {setting['dtype']}"


def verdict(found: dict[str, Any]) -> list[str]:
    """The last lines, for people and programs."""
    setting = found["setting"]
    lines = [f"measured tau {found['tau']:.2f} ({in_words(setting)})", *found.get("conclusion", [])]
    same, of = found["num_identical"], found["num_prompts"]
    if setting["temperature"] > 0:
        return lines  # two samples need not agree
    if same == of:
        return [*lines, f"output identical to plain greedy decoding ({same}/{of})"]
    gap = max(difference["gap"] for difference in found["differences"])
    return [
        *lines,
        f"output differs from plain greedy decoding in {of - same}/{of} prompts, at near-ties (largest logit gap {gap:.2g})",
    ]
