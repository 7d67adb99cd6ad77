"""Intervals against a loop that resamples one prompt after another, and against what they promise."""

import numpy
import pytest

from eyas.compare.statistics import (
    Counts,
    difference_interval,
    draws,
    influence,
    interval,
    prompts_to_tell,
    resampled,
    student_quantile,
    tau,
    tau_interval,
)


def some_counts(seed: int, share: float, num_prompts: int) -> Counts:
    """Prompts that differ in length and in how easy they are (as easy for every share)."""
    chance = numpy.random.default_rng(seed)
    forwards_P = chance.integers(5, 40, num_prompts)
    return numpy.stack([forwards_P, chance.binomial(3 * forwards_P, share + chance.uniform(-0.1, 0.1, num_prompts))], 1)


def test_tau_is_a_ratio_of_sums_and_no_mean_of_ratios() -> None:
    assert tau(numpy.array([[10, 5], [90, 135]])) == pytest.approx(1 + 140 / 100)


def test_a_resample_is_what_a_loop_over_prompts_makes() -> None:
    counts_P2 = some_counts(1, 0.2, 9)
    drawn_DP = draws(9, number=50)
    for drawn_P, found in zip(drawn_DP, resampled(counts_P2, drawn_DP), strict=True):
        assert drawn_P.sum() == 9
        forwards = accepted = 0
        for prompt, times in enumerate(drawn_P):
            for _ in range(times):
                forwards += counts_P2[prompt][0]
                accepted += counts_P2[prompt][1]
        assert found == pytest.approx(1 + accepted / forwards)


def test_an_interval_of_many_prompts_is_that_of_the_normal_approximation() -> None:
    counts_P2 = some_counts(2, 0.2, 400)
    error = influence(counts_P2).std(ddof=1) / 400**0.5
    found = tau_interval(counts_P2)
    assert found is not None
    assert found.low == pytest.approx(tau(counts_P2) - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(tau(counts_P2) + 1.96 * error, abs=0.15 * error)


def test_about_95_of_100_intervals_of_a_dozen_prompts_hold_the_truth() -> None:
    truth = tau(some_counts(3, 0.2, 200_000))
    found = [tau_interval(some_counts(seed, 0.2, 12)) for seed in range(1000, 1300)]
    share = sum(it is not None and it.low <= truth <= it.high for it in found) / len(found)
    assert 0.92 <= share <= 0.985


def test_students_quantiles_are_those_of_a_table() -> None:
    for freedom, expected in ((4, 2.776), (7, 2.365), (11, 2.201), (30, 2.042), (1000, 1.962)):
        assert student_quantile(0.975, freedom) == pytest.approx(expected, rel=0.005)


def test_a_pair_shows_a_difference_that_two_intervals_hide() -> None:
    one_P2 = some_counts(4, 0.25, 12)
    other_P2 = one_P2 - [0, 1]  # one token less at every prompt, whose own taus lie far apart
    apart = [tau_interval(it) for it in (one_P2, other_P2)]
    assert apart[0] is not None
    assert apart[1] is not None
    assert apart[0].low < apart[1].high
    paired = difference_interval(one_P2, other_P2)
    assert paired is not None
    assert paired.excludes_zero
    assert paired.low < tau(one_P2) - tau(other_P2) < paired.high


def test_few_prompts_have_no_interval_and_equal_drafts_no_difference() -> None:
    assert tau_interval(some_counts(5, 0.2, 4)) is None
    same_P2 = some_counts(5, 0.2, 20)
    assert difference_interval(same_P2, same_P2) == (0, 0)
    assert prompts_to_tell(same_P2, same_P2) is None


def test_so_many_prompts_do_tell_about_80_times_of_100() -> None:
    def pair(seed: int, number: int) -> tuple[Counts, Counts]:
        """The second gains a token at 3 % of the forwards and loses one at 2 %, by chance."""
        one_P2 = some_counts(seed, 0.2, number)
        more_P = numpy.random.default_rng(seed + 1).binomial(one_P2[:, 0], 0.03)
        less_P = numpy.random.default_rng(seed + 2).binomial(one_P2[:, 0], 0.02)
        return one_P2, one_P2 + numpy.stack([0 * more_P, more_P - less_P], 1)

    needed = prompts_to_tell(*pair(7, 20_000))
    assert needed is not None
    told = [difference_interval(*pair(seed, needed)) for seed in range(100, 300)]
    assert 0.7 <= sum(it is not None and it.excludes_zero for it in told) / len(told) <= 0.9


def test_a_resample_without_a_forward_is_left_out() -> None:
    found = interval(numpy.array([1.0, numpy.nan, 3.0, 2.0]), 100)
    assert 1 <= found.low <= found.high <= 3
