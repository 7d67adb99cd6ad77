"""Evaluation by vLLM: verifier and draft served together, as users will have them, and the verifier alone."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

from eyas.artifact import write_file
from eyas.config import Config
from eyas.draft.given import PROVENANCE_FILE
from eyas.evaluation.prompts import PromptSet, prompt_sets
from eyas.evaluation.report import acceptance, first_difference, of_prompt, report
from eyas.run import Run
from eyas.serving.canary import check
from eyas.serving.client import Request, complete, send
from eyas.serving.command import draft_args
from eyas.serving.metrics import SpeculationCounts, speculation
from eyas.serving.server import Server, serving
from eyas.stages import canary_file
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import load_tokenizer, stop_token_ids

TOP = 20
"""Tokens whose log-probabilities are asked for where two answers part; the most that vLLM gives by default."""


@dataclass(frozen=True)
class Pass:
    """One prompt set through one server, so many requests at a time."""

    asked: PromptSet
    concurrency: int
    answers: list[list[int]]
    seconds: float
    counts: SpeculationCounts
    of_prompts: list[SpeculationCounts]
    """The same by prompt; empty where several are answered at a time, since the server's counters don't tell them apart."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


def evaluate(config: Config, run: Run) -> None:
    """Serve verifier and draft, then the verifier alone; write evaluation.json.

    Raises:
        EyasError: the draft is ignored, or greedy outputs differ with a clear margin.
    """
    asked, sets, body = config.evaluation, prompt_sets(config), request_body(config)
    passes: dict[int, list[Pass]] = {}
    for k in [asked.k, *asked.more_k]:
        with _server(config, run, k) as server:
            passes[k] = list(_passes(server, sets, asked.concurrency, body))
    speculative = passes[asked.k]
    with _server(config, run, None) as server:
        plain = list(_passes(server, sets, asked.concurrency, body))
        compared = [(a, b) for a, b in zip(plain, speculative, strict=True) if a.concurrency == asked.concurrency[0]]
        differences = [
            difference for a, b in compared for difference in _differences(server, a.asked, a.answers, b.answers)
        ]
    counts = reduce(add, (b.counts for _, b in compared))  # the headline: all prompts, at the first concurrency
    found = report(
        config,
        acceptance(counts.num_drafts, counts.accepted_per_position),
        prompts=", ".join(dict.fromkeys(it.name for it in sets)),
        num_prompts=sum(len(it.prompts) for it in sets),
        differences=differences if asked.temperature == 0 else [],
        tokens_per_second={"plain": _rate([a for a, _ in compared]), "speculative": _rate([b for _, b in compared])},
        measured=[_line(k, a, b) for k, of_k in passes.items() for a, b in zip(plain, of_k, strict=True)],
        conclusion=[conclusion(passes, plain)],
        verifier=locate(config.verifier).identity,
        draft=json.loads((run.draft / PROVENANCE_FILE).read_text()),
    )
    write_file(run.evaluation_file, json.dumps(found, indent=2) + "\n")


def request_body(config: Config) -> dict[str, Any]:
    """How every prompt is answered."""
    checkpoint = locate(config.verifier)
    return {
        "max_tokens": config.evaluation.max_tokens,
        "temperature": config.evaluation.temperature,
        "seed": config.seed,
        "stop_token_ids": stop_token_ids(config.verifier, checkpoint, load_tokenizer(config.verifier, checkpoint)),
        "return_token_ids": True,
    }


@contextmanager
def _server(config: Config, run: Run, k: int | None) -> Iterator[Server]:
    """The verifier, with the draft at k tokens a time or alone.

    Raises:
        EyasError: other weights are served than before (see `serving/canary.py`).
    """
    args = ["--dtype", config.evaluation.dtype.name, *(draft_args(run.draft.resolve(), k) if k else [])]
    print(f"evaluate serves {config.verifier.name} {f'with the draft, k={k}' if k else 'alone'}", flush=True)
    with serving(config.server, config.verifier, locate(config.verifier), log=run.server_log, args=args) as server:
        check(server, canary_file(config))
        yield server


def _passes(
    server: Server, sets: Sequence[PromptSet], concurrencies: Sequence[int], body: dict[str, Any]
) -> Iterator[Pass]:
    """Every prompt set at every concurrency, one after another: the server's counters are read in between."""
    for asked in sets:
        _answers(server, asked.prompts[:1], body)  # the first request of a server pays for what is compiled on the way
        for concurrency in concurrencies:
            limited = replace(server, config=replace(server.config, max_in_flight=concurrency))
            if concurrency == 1 and len(server.endpoints) == 1:
                done = _one_by_one(limited, asked, body)
            else:
                before, started = _counts(server), time.monotonic()
                answers = _answers(limited, asked.prompts, body)
                seconds = time.monotonic() - started
                done = Pass(asked, concurrency, answers, seconds, _counts(server) - before, [])
            print(
                f"evaluate {asked}: {len(done.answers)} prompts, {concurrency} at a time, {done.tokens_per_second:,.1f} tokens/s"
                f"{f', tau {done.counts.tau:.2f}' if done.counts.num_drafts else ''}",
                flush=True,
            )
            yield done


def _one_by_one(server: Server, asked: PromptSet, body: dict[str, Any]) -> Pass:
    """A pass whose counters are read after each answer; `send` asks for the next one only when it goes on."""
    requests = (Request(number, "/v1/completions", {"prompt": ids, **body}) for number, ids in enumerate(asked.prompts))
    answers: list[list[int]] = []
    readings, seconds, resumed = [_counts(server)], 0.0, time.monotonic()
    for answer in send(server, requests):
        seconds += time.monotonic() - resumed
        answers.append(answer.body["choices"][0]["token_ids"])
        readings.append(_counts(server))
        resumed = time.monotonic()  # reading is no part of the answer's time
    of_prompts = [after - before for before, after in pairwise(readings)]
    return Pass(asked, 1, answers, seconds, readings[-1] - readings[0], of_prompts)


def _answers(server: Server, prompts: Sequence[list[int]], body: dict[str, Any]) -> list[list[int]]:
    """Token ids of each answer, in the order of the prompts."""
    return [choice["token_ids"] for choice in complete(server, prompts, **body)]


def _rate(passes: Sequence[Pass]) -> float:
    """Tokens per second of several passes, one after another."""
    return sum(it.num_tokens for it in passes) / sum(it.seconds for it in passes)


def _counts(server: Server) -> SpeculationCounts:
    return reduce(add, map(speculation, server.metrics()))


def _differences(
    server: Server, given: PromptSet, plain: list[list[int]], speculative: list[list[int]]
) -> list[dict[str, Any]]:
    """Where answers part, and by how much the verifier prefers its own token there: asked of the verifier itself."""
    parted = {
        number: where
        for number, (a, b) in enumerate(zip(plain, speculative, strict=True))
        if (where := first_difference(a, b)) is not None
    }
    asked = [[*given.prompts[number], *plain[number][:where]] for number, where in parted.items()]
    settings = {"max_tokens": 1, "temperature": 0, "logprobs": TOP, "return_tokens_as_token_ids": True}
    differences = []
    for (number, where), choice in zip(parted.items(), complete(server, asked, **settings), strict=True):
        said = choice["logprobs"]["top_logprobs"][0]
        logprobs = {int(token.removeprefix("token_id:")): value for token, value in said.items()}
        ours, theirs = (
            logprobs.get(ids[where]) if where < len(ids) else None for ids in (plain[number], speculative[number])
        )
        gap = abs(ours - theirs) if ours is not None and theirs is not None else float("inf")
        differences.append({"prompts": str(given), "prompt": number, "token": where, "gap": gap})
    return differences


def _line(k: int, plain: Pass, speculative: Pass) -> dict[str, Any]:
    """One measurement, for evaluation.json and the tables made of it."""
    counts = speculative.counts
    return {
        "prompts": plain.asked.name,
        "length": plain.asked.length,
        "k": k,
        "concurrency": plain.concurrency,
        "num_prompts": len(plain.asked.prompts),
        **acceptance(counts.num_drafts, counts.accepted_per_position),
        "tokens_per_second": {"plain": plain.tokens_per_second, "speculative": speculative.tokens_per_second},
        "milliseconds_per_token": {
            "plain": 1000 * plain.concurrency / plain.tokens_per_second,
            "speculative": 1000 * plain.concurrency / speculative.tokens_per_second,
        },
        "speedup": speculative.tokens_per_second / plain.tokens_per_second,
        "per_prompt": _per_prompt(speculative),
    }


def _per_prompt(done: Pass) -> list[dict[str, Any]]:
    answered = zip(done.asked.prompts, map(len, done.answers), strict=True)
    if not done.of_prompts:
        return [of_prompt(ids, num_tokens) for ids, num_tokens in answered]
    return [
        of_prompt(ids, num_tokens, counts.num_drafts, counts.accepted_per_position)
        for (ids, num_tokens), counts in zip(answered, done.of_prompts, strict=True)
    ]


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
    many = max(helps)
    figures = ", ".join(f"{mean[best, concurrency]:.2f}x at {concurrency}" for concurrency in sorted({lowest, many}))
    up_to = f"up to {many} requests" if many > 1 else "at 1 request"
    return f"faster with the draft {up_to} at a time ({figures}; {at_best})"
