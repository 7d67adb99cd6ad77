"""Why drafts fail: kinds of tokens, and what was accepted of each."""

import math

import pytest
import torch

from eyas.evaluation.chain import entropies
from eyas.evaluation.why import Tried, between, class_of, explain, why_table

TRIED = [
    Tried(position=0, token=5, accepted=True, entropy=0.05),
    Tried(position=1, token=6, accepted=False, entropy=1.5),
    Tried(position=0, token=6, accepted=False, entropy=3.0),
    Tried(position=0, token=7, accepted=True, entropy=0.05),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" the", "start of a word"),
        ("ing", "inside a word"),
        ("\n\n", "whitespace"),
        (" 42", "digits"),
        ("});", "symbols"),
        ("<|im_end|>", "end or markup"),
    ],
)
def test_a_token_has_one_class(text: str, expected: str) -> None:
    assert class_of(text, special=text.startswith("<|")) == expected


def test_shares_are_of_what_was_tried() -> None:
    why = explain(TRIED, lambda token: "digits" if token == 6 else "symbols", {5, 7}, [0, 0, 0, 0, 0, 40, 0, 5000])
    assert why["tried"] == 4
    assert why["outside_vocabulary"] == 1.0
    assert why["by_class"] == {
        "digits": {"share": 0.5, "accepted": 0.0},
        "symbols": {"share": 0.5, "accepted": 1.0},
    }
    assert why["by_entropy"]["below 0.1"] == {"share": 0.5, "accepted": 1.0}
    assert why["by_entropy"]["2 or more"] == {"share": 0.25, "accepted": 0.0}
    assert {*why["by_count"]} == {"never", "10 to 100", "1000 or more"}
    assert "by_count" not in explain(TRIED, lambda _: "symbols", {5}, None)


def test_the_table_has_intervals_from_below() -> None:
    why = explain(TRIED, lambda token: "symbols", {5, 7}, [0, 0, 0, 0, 0, 40, 0, 5000])
    table = why_table(why)
    entropy = [line.split("|")[1].strip() for line in table if "entropy" in line]
    assert entropy == ["entropy below 0.1", "entropy 1 to 2", "entropy 2 or more"]
    assert table[-1] == (
        "4 drafted tokens were tried; 100% of the tokens that were refused are outside the draft's vocabulary."
    )


def test_bounds_belong_to_the_interval_above() -> None:
    assert [between(it, (1, 10)) for it in (0, 1, 9, 10)] == ["below 1", "1 to 10", "1 to 10", "10 or more"]


def test_entropy_in_nats() -> None:
    certain, even = torch.tensor([100.0, 0, 0, 0]), torch.zeros(4)
    assert entropies(torch.stack([certain, even])) == pytest.approx([0.0, math.log(4)], abs=1e-6)
