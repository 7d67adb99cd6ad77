"""The canary: log-probabilities of three fixed prompts, by which a server is recognised, whatever name it goes by.

A server with other weights, a merged adapter or another quantisation answers to the same name, with another
distribution. The first stage that serves a verifier records, every later one compares (`check`).
"""

import json
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

from eyas.artifact import write_file
from eyas.errors import EyasError
from eyas.serving.client import Request, send
from eyas.serving.server import Server

PROMPTS = (
    "The lighthouse keeper had counted ships for thirty-one years, and every evening he wrote their names into a book "
    "bound in grey cloth. On the last day of October, a vessel came in that was already in the book: the same name, the "
    "same captain, and the same torn sail, entered in his own hand nine years before.",
    "def merge(left: list[int], right: list[int]) -> list[int]:\n    merged = []\n    i = j = 0\n"
    "    while i < len(left) and j < len(right):\n        if left[i] <= right[j]:\n            merged.append(left[i])\n"
    "            i += 1\n        else:\n            merged.append(right[j])\n            j += 1\n"
    "    return merged + left[i:] + right[j:]\n",
    "Question: A train leaves at 14:25 and travels 318 km at 106 km/h. When does it arrive?\nAnswer: 318 / 106 = 3 hours, "
    "so it arrives at 17:25.\nFrage: Wie viele Primzahlen liegen zwischen 20 und 40?\nAntwort: 23, 29, 31 und 37, also vier.",
)

TOLERANCE = 0.045
"""Mean absolute difference, in nats per token, up to which two servers are the same.

Measured on SmolLM2-135M, 278 tokens. The same weights: 0.000 in vLLM on a CPU, whatever else was in the batch and however
the prompts were cut into chunks; 0.016 to 0.038 between bfloat16 and float32, or between two attention kernels. Others:
0.053 with an update of rank 8 merged into queries and values (1 % of their norm), 0.066 in int8 (a scale per row), 0.14
in fp8. So only a quantisation that changes no more than rounding to bfloat16 does would pass.
"""


@dataclass(frozen=True)
class Canary:
    """What a server said: token ids of each prompt, and the log-probability of each token but the first."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def record(server: Server) -> list[Canary]:
    """The canary of each endpoint."""
    return [_record(replace(server, endpoints=[endpoint])) for endpoint in server.endpoints]


def difference(recorded: Canary, found: Canary) -> float:
    """Mean absolute difference of the log-probabilities, in nats per token; infinite where the token ids differ."""
    if recorded.tokens != found.tokens:
        return float("inf")
    pairs = zip(chain(*recorded.logprobs), chain(*found.logprobs), strict=True)
    differences = [abs(one - other) for one, other in pairs]
    return sum(differences) / len(differences)


def read(file: Path) -> Canary:
    """What `check` recorded."""
    return Canary(**json.loads(file.read_text()))


def check(server: Server, file: Path) -> None:
    """Compare every endpoint with what `file` recorded; where there is no file, the first endpoint is recorded.

    Raises:
        EyasError: an endpoint serves something else.
    """
    canaries = record(server)
    is_first = not file.exists()
    recorded = canaries[0] if is_first else read(file)
    for endpoint, found in zip(server.endpoints, canaries, strict=True):
        distance = difference(recorded, found)
        if distance <= TOLERANCE:
            continue
        place = f"the first endpoint, {server.endpoints[0]}" if is_first else f"was recorded in {file}"
        if recorded.tokens != found.tokens:
            what = "it splits the canary's prompts into other tokens: another tokenizer"
        else:
            what = (
                f"its log-probabilities of the canary's prompts differ by {distance:.3f} nats per token, where "
                f"{TOLERANCE} is the most that the same weights may: other weights, an adapter or another quantisation"
            )
        raise EyasError(
            f"{endpoint} serves as {server.model} something else than {place} ({what}); serve what was "
            "recorded, or, if the verifier has changed on purpose, delete that file and what was made with the old one"
        )
    if is_first:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, json.dumps(asdict(recorded)) + "\n")


def _record(server: Server) -> Canary:
    body = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    requests = [Request(i, "/v1/completions", {"prompt": prompt, **body}) for i, prompt in enumerate(PROMPTS)]
    tokens: list[list[int]] = [[] for _ in PROMPTS]
    logprobs: list[list[float]] = [[] for _ in PROMPTS]
    for answer in send(server, requests):
        # One {token id: {logprob: ...}} for each token of the prompt; null for the first, which nothing predicts.
        for entry in answer.body["choices"][0]["prompt_logprobs"]:
            for token, said in (entry or {}).items():
                tokens[answer.key].append(int(token))
                logprobs[answer.key].append(float(said["logprob"]))
    return Canary(tokens, logprobs)
