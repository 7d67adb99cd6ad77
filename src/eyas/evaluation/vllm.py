"""Evaluation by vLLM: verifier and draft served together, as users will have them, and the verifier alone."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from eyas.artifact import write_file
from eyas.config import Config
from eyas.evaluation.prompts import prompt_sets
from eyas.evaluation.report import acceptance, first_difference, report
from eyas.run import PROVENANCE_FILE, Run
from eyas.serving.client import complete
from eyas.serving.command import draft_args
from eyas.serving.metrics import SpeculationCounts, speculation
from eyas.serving.server import Server, serving
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import load_tokenizer, stop_token_ids

TOP = 20
"""Tokens whose log-probabilities are asked for where two answers part; the most that vLLM gives by default."""


@dataclass(frozen=True)
class Pass:
    """One prompt set through one server, so many requests at a time."""

    prompts: str
    concurrency: int
    answers: list[list[int]]
    seconds: float
    counts: SpeculationCounts

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.answers)) / self.seconds


def evaluate(config: Config, run: Run) -> None:
    """Serve verifier and draft, then the verifier alone; write evaluation.json.

    Raises:
        EyasError: the draft is ignored, or greedy outputs differ with a clear margin.
    """
    asked, sets = config.evaluation, prompt_sets(config)
    passes: dict[int, list[Pass]] = {}
    for k in [asked.k, *asked.more_k]:
        with _server(config, run, k) as server:
            passes[k] = list(_passes(config, server, sets))
    speculative = passes[asked.k]
    with _server(config, run, None) as server:
        plain = list(_passes(config, server, sets))
        compared = [(a, b) for a, b in zip(plain, speculative, strict=True) if a.concurrency == asked.concurrency[0]]
        differences = [
            difference
            for a, b in compared
            for difference in _differences(server, sets[a.prompts], a.answers, b.answers)
        ]
    first = speculative[0]
    found = report(
        config,
        acceptance(first.counts.num_drafts, first.counts.accepted_per_position),
        prompts=", ".join(sets),
        num_prompts=sum(map(len, sets.values())),
        differences=differences if asked.temperature == 0 else [],
        tokens_per_second={"plain": plain[0].tokens_per_second, "speculative": first.tokens_per_second},
        measured=[_line(k, a, b) for k, of_k in passes.items() for a, b in zip(plain, of_k, strict=True)],
        conclusion=[conclusion(passes, plain)],
        draft=json.loads((run.draft / PROVENANCE_FILE).read_text()),
    )
    write_file(run.evaluation_file, json.dumps(found, indent=2) + "\n")


@contextmanager
def _server(config: Config, run: Run, k: int | None) -> Iterator[Server]:
    """The verifier, with the draft at k tokens a time or alone."""
    args = ["--dtype", config.evaluation.dtype.name, *(draft_args(run.draft.resolve(), k) if k else [])]
    print(f"evaluate serves {config.verifier.name} {f'with the draft, k={k}' if k else 'alone'}", flush=True)
    with serving(config.server, config.verifier, locate(config.verifier), log=run.server_log, args=args) as server:
        yield server


def _passes(config: Config, server: Server, sets: dict[str, list[list[int]]]) -> Iterator[Pass]:
    """Every prompt set at every concurrency, one after another: the server's counters are read in between."""
    asked = config.evaluation
    stop_ids = stop_token_ids(
        config.verifier, locate(config.verifier), load_tokenizer(config.verifier, locate(config.verifier))
    )
    body = {
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "seed": config.seed,
        "stop_token_ids": stop_ids,
        "return_token_ids": True,
    }
    for name, prompts in sets.items():
        _answers(server, prompts[:1], body)  # the first request of a server pays for what is compiled on the way
        for concurrency in asked.concurrency:
            limited = replace(server, config=replace(server.config, max_in_flight=concurrency))
            before, started = _counts(server), time.monotonic()
            answers = _answers(limited, prompts, body)
            done = Pass(name, concurrency, answers, time.monotonic() - started, _counts(server) - before)
            print(
                f"evaluate {name}: {len(prompts)} prompts, {concurrency} at a time, {done.tokens_per_second:,.1f} tokens/s"
                f"{f', tau {done.counts.tau:.2f}' if done.counts.num_drafts else ''}",
                flush=True,
            )
            yield done


def _answers(server: Server, prompts: Sequence[list[int]], body: dict[str, Any]) -> list[list[int]]:
    """Token ids of each answer, in the order of the prompts."""
    return [choice["token_ids"] for choice in complete(server, prompts, **body)]


def _counts(server: Server) -> SpeculationCounts:
    return reduce(add, map(speculation, server.metrics()))


def _differences(
    server: Server, prompts: Sequence[list[int]], plain: list[list[int]], speculative: list[list[int]]
) -> list[dict[str, Any]]:
    """Where answers part, and by how much the verifier prefers its own token there: asked of the verifier itself."""
    parted = {
        number: where
        for number, (a, b) in enumerate(zip(plain, speculative, strict=True))
        if (where := first_difference(a, b)) is not None
    }
    asked = [[*prompts[number], *plain[number][:where]] for number, where in parted.items()]
    settings = {"max_tokens": 1, "temperature": 0, "logprobs": TOP, "return_tokens_as_token_ids": True}
    differences = []
    for (number, where), choice in zip(parted.items(), complete(server, asked, **settings), strict=True):
        said = choice["logprobs"]["top_logprobs"][0]
        logprobs = {int(token.removeprefix("token_id:")): value for token, value in said.items()}
        ours, theirs = (
            logprobs.get(ids[where]) if where < len(ids) else None for ids in (plain[number], speculative[number])
        )
        gap = abs(ours - theirs) if ours is not None and theirs is not None else float("inf")
        differences.append({"prompt": number, "token": where, "gap": gap})
    return differences


def _line(k: int, plain: Pass, speculative: Pass) -> dict[str, Any]:
    """One measurement, for evaluation.json and the tables made of it."""
    counts = speculative.counts
    return {
        "prompts": plain.prompts,
        "k": k,
        "concurrency": plain.concurrency,
        **acceptance(counts.num_drafts, counts.accepted_per_position),
        "tokens_per_second": {"plain": plain.tokens_per_second, "speculative": speculative.tokens_per_second},
        "milliseconds_per_token": {
            "plain": 1000 * plain.concurrency / plain.tokens_per_second,
            "speculative": 1000 * plain.concurrency / speculative.tokens_per_second,
        },
        "speedup": speculative.tokens_per_second / plain.tokens_per_second,
    }


def conclusion(passes: dict[int, list[Pass]], plain: list[Pass]) -> str:
    """Whether the draft helps, up to how many requests at a time, and with which k."""
    speedups: dict[tuple[int, int], list[float]] = {}
    for k, of_k in passes.items():
        for alone, drafted in zip(plain, of_k, strict=True):
            speedup = drafted.tokens_per_second / alone.tokens_per_second
            speedups.setdefault((k, alone.concurrency), []).append(speedup)
    mean = {setting: sum(values) / len(values) for setting, values in speedups.items()}
    lowest = min(concurrency for _, concurrency in mean)
    best = max(passes, key=lambda k: mean[k, lowest])
    helps = [concurrency for k, concurrency in sorted(mean) if k == best and mean[k, concurrency] > 1]
    at_best = f"k={best}" + (", the best of " + ", ".join(map(str, sorted(passes))) if len(passes) > 1 else "")
    if not helps:
        return (
            f"no faster with the draft at any concurrency measured ({mean[best, lowest]:.2f}x at {lowest}, {at_best})"
        )
    return (
        f"faster with the draft up to {max(helps)} requests at a time ({mean[best, lowest]:.2f}x at {lowest}, "
        f"{mean[best, max(helps)]:.2f}x at {max(helps)}; {at_best})"
    )
