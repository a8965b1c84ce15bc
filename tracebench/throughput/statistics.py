"""What samples say: pure functions over lists of times, without torch.

The speedup is estimated from the paired log ratios ``d = log(eager / captured)``, one a round, by the
Hodges-Lehmann estimator: the median of all pairwise means of ``d`` (Walsh averages). Its interval is the one that
belongs to the Wilcoxon signed-rank test: the k-th smallest and k-th largest Walsh average (Hodges and Lehmann,
"Estimates of location based on rank tests", 1963; Hollander, Wolfe and Chicken, "Nonparametric Statistical
Methods", 3rd ed., sections 3.1 to 3.3).

Why not a bootstrap of the ratio of medians:

- The two blocks of a round share the machine's state, so the ratio within a round is free of drift, while the
  ratio of the two overall medians is not: with a drift of 50 % its interval is two to three times as wide as this one.
- The bootstrap of a median, also of the paired ratios, can cover less than it claims for few rounds: with 95 % asked
  for, down to 0.91 in simulations with 6 to 20 rounds where this one covers 0.945 or more at a similar width.
- If both callables are the same and the order within a round is drawn at random, every ``d`` is as likely to be
  negative as positive, whatever the noise looks like. The signed-rank test rests on nothing else, so "significant" is
  wrong for at most 1 % of comparisons of equals, without a normality assumption.

Hence the ratio is close to, but not exactly, the quotient of the two reported medians.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracebench.record import Speedup

#: 99 %: equals are called different in one comparison of a hundred, also in a table of twenty cases seldom. With 95 %
#: every such table would have a wrong line.
CONFIDENCE = 0.99
#: The smallest number of rounds for which such a signed-rank interval exists: 2 * 0.5**8 < 0.01 < 2 * 0.5**7.
FEWEST_FOR_RANKS = 8
#: Two-sided 99 % quantiles of Student's t by number of rounds, for fewer rounds than the rank interval needs.
_STUDENT_T = {3: 9.925, 4: 5.841, 5: 4.604, 6: 4.032, 7: 3.707}
#: Digits of a log ratio that are kept. No timer resolves 1e-12 of a time; what is beyond is rounding in the division,
#: which must not make two equal times "significantly" different.
_LOG_DIGITS = 12


def median(samples: Sequence[float]) -> float:
    """Return the median, in the unit of ``samples``; NaN if there are none."""
    return float(np.median(samples)) if len(samples) else math.nan


def iqr(samples: Sequence[float]) -> float:
    """Return the interquartile range, in the unit of ``samples``; NaN if there are none."""
    if not len(samples):
        return math.nan
    low, high = np.percentile(samples, [25, 75])
    return float(high - low)


@functools.cache
def rank_cutoff(n: int) -> int:
    """Return k such that the k-th smallest and k-th largest Walsh average of ``n`` differences bound a 99 % interval.

    Exact for ties-free differences: k is the largest number with P(W < k) <= 0.005, W being the signed-rank statistic
    whose distribution is built up rank by rank (each rank counts with probability 1/2). 0 if there is no such interval.
    """
    probability = np.zeros(n * (n + 1) // 2 + 1)
    probability[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[:-rank]
        probability = (probability + shifted) / 2
    return int(np.searchsorted(np.cumsum(probability), (1 - CONFIDENCE) / 2, side="right"))


def _walsh_averages(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    first, second = np.triu_indices(len(values))
    return np.sort((values[first] + values[second]) / 2)


def paired_speedup(eager: Sequence[float], captured: Sequence[float]) -> Speedup:
    """Return eager time divided by captured time with a 99 % interval; samples of one position are of one round.

    The method is the module's: Hodges-Lehmann estimate of the paired log ratios and its signed-rank interval.
    With 3 to 7 rounds, for which that interval does not exist, the interval is Student's t on the log ratios,
    stretched if need be to hold the estimate. With one or two rounds there is no interval, with none no ratio: NaN.

    Raises:
        ValueError: the lengths differ, or a time is not a positive number.
    """
    if len(eager) != len(captured):
        raise ValueError(f"a round has one sample of each: got {len(eager)} of eager and {len(captured)} of captured")
    n = len(eager)
    if n == 0:
        return Speedup(ratio=math.nan, ci_low=math.nan, ci_high=math.nan, significant=False, confidence=CONFIDENCE)
    times = np.array([eager, captured], dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("a time is zero, negative or not a number: the timer is too coarse for the block it timed")
    logs = np.round(np.log(times[0] / times[1]), _LOG_DIGITS)
    walsh = _walsh_averages(logs)
    centre = float(np.median(walsh))
    if n >= FEWEST_FOR_RANKS:
        cutoff = rank_cutoff(n)
        low, high = float(walsh[cutoff - 1]), float(walsh[-cutoff])
    elif n in _STUDENT_T:
        reach = _STUDENT_T[n] * float(np.std(logs, ddof=1)) / math.sqrt(n)
        mean = float(np.mean(logs))
        low, high = min(mean - reach, centre), max(mean + reach, centre)
    else:
        low = high = math.nan
    ratio, ci_low, ci_high = math.exp(centre), math.exp(low), math.exp(high)
    significant = ci_low > 1.0 or ci_high < 1.0
    return Speedup(ratio, ci_low, ci_high, significant, CONFIDENCE)


def half_width(speedup: Speedup) -> float:
    """Return half the interval's width as a fraction of the ratio (0.01: known to about 1 %); NaN without one."""
    return (speedup.ci_high - speedup.ci_low) / (2 * speedup.ratio)
