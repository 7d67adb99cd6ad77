"""How sure a measured tau is: intervals over prompts, differences over the same prompts. Pure functions.

tau of some prompts is a ratio of sums (tokens / forwards), so what is resampled is prompts, and the ratio is computed anew.
Two drafts that were asked the same prompts are resampled together (paired): an easy prompt is easy for both.

Shapes: P prompts, D draws of the bootstrap; counts_P2 holds (verifier forwards, accepted drafted tokens) of each prompt.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

Counts = NDArray[numpy.int64]
Values = NDArray[numpy.float64]

DRAWS = 4000
LEVEL = 0.95
POWER = 0.8
"""`prompts_to_tell`: how often so many prompts would show the difference."""

FEWEST = 5
"""Fewer prompts say nothing of how others would go: no interval."""


class Interval(NamedTuple):
    """Where the true value is, for 95 of 100 such intervals."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def tau(counts_P2: Counts) -> float:
    """Tokens per verifier forward: accepted + 1."""
    forwards, accepted = counts_P2.sum(0)
    return float(1 + accepted / forwards)


@lru_cache(maxsize=2)
def draws(num_prompts: int, *, number: int = DRAWS, seed: int = 0) -> Counts:
    """How often each prompt is in each resample [D, P]; the same for all that were asked these prompts."""
    generator = numpy.random.default_rng(seed)
    return generator.multinomial(num_prompts, numpy.full(num_prompts, 1 / num_prompts), size=number)


def resampled(counts_P2: Counts, drawn_DP: Counts) -> Values:
    """tau of each resample [D]; nan where a resample holds no forward."""
    forwards_D, accepted_D = (drawn_DP @ counts_P2).T
    with numpy.errstate(invalid="ignore"):
        return numpy.asarray(1 + accepted_D / forwards_D)


def interval(values_D: Values, num_prompts: int) -> Interval:
    """The percentile interval, as much wider as few prompts ask for.

    The plain one is too narrow for a dozen prompts (it takes the variance of a population, and the normal quantile for
    Student's); Hesterberg, What Teachers Should Know About the Bootstrap (2015), 5.3, widens its percentiles.
    """
    z = student_quantile((1 + LEVEL) / 2, num_prompts - 1) * math.sqrt(num_prompts / (num_prompts - 1))
    below = NormalDist().cdf(-z)
    low, high = numpy.nanquantile(values_D, [below, 1 - below])
    return Interval(float(low), float(high))


def student_quantile(probability: float, freedom: int) -> float:
    """Student's t, by the Cornish-Fisher expansion; right to 2 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(probability)
    terms = [
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    ]
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def tau_interval(counts_P2: Counts) -> Interval | None:
    """Of one draft's tau; None from fewer than FEWEST prompts."""
    number = len(counts_P2)
    return interval(resampled(counts_P2, draws(number)), number) if number >= FEWEST else None


def difference_interval(one_P2: Counts, other_P2: Counts) -> Interval | None:
    """Of tau of one draft minus tau of the other, which was asked the same prompts in the same order."""
    assert len(one_P2) == len(other_P2)
    number = len(one_P2)
    if number < FEWEST:
        return None
    drawn_DP = draws(number)
    return interval(resampled(one_P2, drawn_DP) - resampled(other_P2, drawn_DP), number)


def influence(counts_P2: Counts) -> Values:
    """By how much each prompt pulls tau away from its value, times P [P]: what its standard error is made of."""
    forwards_P, accepted_P = counts_P2.T
    return numpy.asarray((accepted_P - (tau(counts_P2) - 1) * forwards_P) / forwards_P.mean())


def prompts_to_tell(one_P2: Counts, other_P2: Counts) -> int | None:
    """How many such prompts would show a difference as large as the one seen, 80 times of 100; None: the two are equal."""
    difference = tau(one_P2) - tau(other_P2)
    if not difference:
        return None
    deviation = float((influence(one_P2) - influence(other_P2)).std(ddof=1))
    quantiles = NormalDist().inv_cdf((1 + LEVEL) / 2) + NormalDist().inv_cdf(POWER)
    return max(2, math.ceil((quantiles * deviation / difference) ** 2))
