"""Where chains start, and what that makes of tau."""

from typing import Any

import pytest

from eyas.evaluation.starts import WHY, of_starts, starts_table, walk

EASY_THEN_HARD = [3, 3, 3, 3, 3, 2, 1, 0, 0, 0, 0]


def naive_walk(right: list[int]) -> list[int]:
    """Decoding, a token at a time: a token that was drafted and right is crossed, the next one starts a chain."""
    visited, to_cross = [], 0
    for count in right:
        if to_cross:
            to_cross -= 1
        else:
            visited.append(count)
            to_cross = count
    return visited


@pytest.mark.parametrize(
    "right", [[], [0], [3], [0, 0, 0], [1, 0, 1, 0, 2], EASY_THEN_HARD, [2, 0, 3, 1, 1, 0, 0, 3, 2]]
)
def test_a_walk_visits_where_the_chain_before_it_ended(right: list[int]) -> None:
    assert walk(right) == naive_walk(right)


def test_chains_start_where_it_is_hard() -> None:
    found = of_starts([EASY_THEN_HARD, [1, 0]], k=3)
    every, walked = [*EASY_THEN_HARD, 1, 0], [3, 3, 0, 0, 0, 1]
    for name, right in (("every_position", every), ("walked", walked)):
        assert found[name]["positions"] == len(right)
        assert found[name]["tau"] == pytest.approx(1 + sum(right) / len(right))
        naive = [sum(count >= position for count in right) / len(right) for position in (1, 2, 3)]
        assert found[name]["acceptance"] == pytest.approx(naive)
    assert found["walked"]["tau"] < found["every_position"]["tau"]


def evaluation(answers: list[list[int]]) -> dict[str, Any]:
    starts = of_starts(answers, 3)
    return {**starts["walked"], "why": {"starts": starts}, "setting": {"k": 3, "dtype": "bfloat16"}}


TRAINED = {f"val/acceptance_{step}": share for step, share in enumerate((0.9, 0.8, 0.7, 0.6))}


def test_the_table_goes_from_tau_sim_to_tau() -> None:
    validated = {key: TRAINED[key] for key in list(TRAINED)[:3]}
    table = starts_table(evaluation([EASY_THEN_HARD]), validated | {"step": 10})
    assert table[2:] == [
        "| in training, at every position of all held-out answers: tau_sim | 3.40 | 90.0%  80.0%  70.0% |",
        "| at each of the 11 positions of these answers | 2.64 | 63.6%  54.5%  45.5% |",
        "| at the 5 of them where chains start: the measured tau | 2.20 | 40.0%  40.0%  40.0% |",
        "",
        WHY,
    ]


@pytest.mark.parametrize(("steps", "tau"), [(2, "2.70"), (4, "3.40")])
def test_tau_sim_counts_no_more_steps_than_are_drafted(steps: int, tau: str) -> None:
    table = starts_table(evaluation([EASY_THEN_HARD]), {key: TRAINED[key] for key in list(TRAINED)[:steps]})
    assert f"tau_sim over {min(steps, 3)} unroll steps | {tau} |" in table[2]


def test_what_is_not_known_or_not_so_is_not_said() -> None:
    table = starts_table(evaluation([[0, 0], [0]]), {})
    assert len(table) == 4, "no training, and no position harder than another"
    differing = {**evaluation([EASY_THEN_HARD]), "tau": 2.25, "acceptance": [0.5, 0.4, 0.35]}
    assert starts_table(differing, {})[-3] == (
        "A walk over the positions gives 2.200, decoding gave 2.250: more than some near-ties in bfloat16 would be a fault."
    )
