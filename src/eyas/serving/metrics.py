"""What a vLLM server counts, read from its `/metrics` page (Prometheus text)."""

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class SpeculationCounts:
    """Speculative decoding since the server started, over all engines; subtract two readings for what lies between."""

    num_drafts: int
    """Verifier forwards that had drafted tokens to check."""
    num_accepted_tokens: int
    accepted_per_position: tuple[int, ...]

    @property
    def tau(self) -> float:
        """Tokens per verifier forward: accepted + 1; nan before the first draft."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else float("nan")

    def __sub__(self, earlier: "SpeculationCounts") -> "SpeculationCounts":
        before = (*earlier.accepted_per_position, *[0] * len(self.accepted_per_position))
        return SpeculationCounts(
            self.num_drafts - earlier.num_drafts,
            self.num_accepted_tokens - earlier.num_accepted_tokens,
            tuple(count - old for count, old in zip(self.accepted_per_position, before, strict=False)),
        )

    def __add__(self, other: "SpeculationCounts") -> "SpeculationCounts":
        """Over two endpoints, which draft equally many tokens."""
        longest = max(self.accepted_per_position, other.accepted_per_position, key=len)
        padded = [(*counts.accepted_per_position, *[0] * len(longest))[: len(longest)] for counts in (self, other)]
        return SpeculationCounts(
            self.num_drafts + other.num_drafts,
            self.num_accepted_tokens + other.num_accepted_tokens,
            tuple(sum(pair) for pair in zip(*padded, strict=True)),
        )


def samples(page: str) -> list[Sample]:
    """Every sample of a Prometheus page."""
    matches = (_SAMPLE.match(line) for line in page.splitlines())
    return [
        Sample(match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"]))
        for match in matches
        if match
    ]


def total(page: str, name: str) -> float:
    """A counter's sum over all engines and labels; 0 where the server doesn't have it."""
    return sum(sample.value for sample in samples(page) if sample.name == name)


def speculation(page: str) -> SpeculationCounts:
    """The counters of speculative decoding; all 0 where the server doesn't draft."""
    accepted: dict[int, int] = {}
    for sample in samples(page):
        if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
            position = int(sample.labels["position"])
            accepted[position] = accepted.get(position, 0) + int(sample.value)
    return SpeculationCounts(
        int(total(page, "vllm:spec_decode_num_drafts_total")),
        int(total(page, "vllm:spec_decode_num_accepted_tokens_total")),
        tuple(accepted[position] for position in sorted(accepted)),
    )
