"""What a tau holds for. Two values are ranked together only where all of it is the same."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from eyas.compare.entry import Entry
from eyas.compare.statistics import Counts
from eyas.draft.handover import measurements
from eyas.evaluation.report import in_words


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One draft's tau in one setting."""

    entry: Entry
    setting: Mapping[str, Any]
    """What must be equal for two values to be ranked together."""
    title: str
    """The same in words."""
    tau: float
    acceptance: Sequence[float]
    """Joint, at positions 1 to k."""
    counts_P2: Counts | None
    """By prompt: verifier forwards and accepted tokens; None where the engine can't tell prompts apart."""
    speedups: Mapping[int, float]
    """By requests at a time."""

    @property
    def key(self) -> str:
        return json.dumps(self.setting, sort_keys=True)


def measured(entry: Entry) -> Iterator[Measured]:
    """What an evaluation measured: one for each k, prompt set and length.

    tau is that of the fewest requests at a time: how many there are changes speed, and tau by chance only.
    """
    lines: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in measurements(entry.evaluation) if entry.evaluation else []:
        lines.setdefault((line["k"], line["prompts"], line.get("length")), []).append(line)
    for same in lines.values():
        line = min(same, key=lambda it: it["concurrency"])
        setting = _setting(entry, line)
        yield Measured(
            entry=entry,
            setting=setting,
            title=_in_words(setting, line, entry.evaluation["setting"]["verifier"]["name"]),
            tau=line["tau"],
            acceptance=line["acceptance"],
            counts_P2=_counts(line),
            speedups={it["concurrency"]: it["speedup"] for it in same},
        )


def simulated(entry: Entry) -> Measured:
    """The teacher-forced estimate of a run that nothing was measured of."""
    config, last = entry.config, entry.last
    unroll_steps = config["training.unroll_steps"]
    held_out = entry.tokens[:12] or f"not recorded ({entry.place})"
    setting = {"unroll_steps": unroll_steps, "tokens": held_out, "verifier": config["verifier.name"]}
    return Measured(
        entry=entry,
        setting=setting,
        title=f"{unroll_steps} unroll steps, held-out text of {config['data.name']}, beside {config['verifier.name']}",
        tau=last["val/tau_sim"],
        acceptance=[last[key] for step in range(unroll_steps) if (key := f"val/acceptance_{step}") in last],
        counts_P2=None,
        speedups={},
    )


def _setting(entry: Entry, line: Mapping[str, Any]) -> dict[str, Any]:
    """The prompts are known by their token ids: so the template, the tokenizer and the lengths are in them."""
    said = entry.evaluation["setting"]
    return {
        **{key: said[key] for key in ("engine", "dtype", "temperature", "max_tokens", "drafting")},
        "k": line["k"],
        "concurrency": line["concurrency"],
        "prompts": hashlib.sha256(" ".join(it["id"] for it in line["per_prompt"]).encode()).hexdigest()[:12],
        "verifier": said["verifier"]["weights"],
        "served": said.get("served"),
    }


def _in_words(setting: Mapping[str, Any], line: Mapping[str, Any], verifier: str) -> str:
    length = f" ({line['length']})" if line.get("length") else ""
    prompts = f"{len(line['per_prompt'])} prompts of {line['prompts']}{length}"
    at_a_time = f", {setting['concurrency']} at a time" if setting["concurrency"] > 1 else ""
    return f"{in_words(setting)}, {prompts}, up to {setting['max_tokens']:,} tokens each{at_a_time}, beside {verifier}"


def _counts(line: Mapping[str, Any]) -> Counts | None:
    prompts = line["per_prompt"]
    if any("forwards" not in prompt for prompt in prompts):
        return None
    return numpy.array([[prompt["forwards"], sum(prompt["accepted"])] for prompt in prompts], dtype=numpy.int64)


def titles_apart(titles: Mapping[str, str]) -> dict[str, str]:
    """By setting's key; settings that differ in what words leave out say in what."""
    apart = {}
    for key, title in titles.items():
        others = [json.loads(other) for other, same in titles.items() if same == title and other != key]
        here = json.loads(key)
        different = [name for name in here if any(here[name] != other.get(name) for other in others)]
        apart[key] = title + "".join(f", {name} {_short(here[name])}" for name in different)
    return apart


def _short(value: Any) -> str:
    return value[:8] if isinstance(value, str) else json.dumps(value)
