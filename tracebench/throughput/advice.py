"""What is doubtful about a measurement, in words: each function returns a sentence with what to do next, or None.

Each begins with its kind, one of ``timingwords.KINDS``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tracebench.throughput.statistics import iqr, median

#: Interquartile range over median above which samples are called noisy.
NOISY_LIMIT = 0.10
#: Change from the first to the last third, over the median, below which drift is not worth a word.
DRIFT_LIMIT = 0.05
#: How many standard errors that change must exceed to be told from noise.
DRIFT_ERRORS = 3.0
#: Share of rounds in which a wait for a processor is worth a word.
DISTURBED_LIMIT = 0.10
#: Rounds below which an interval is too wide, and noise and drift cannot be told.
WANTED_ROUNDS = 10


def noisy(name: str, samples_ms: Sequence[float]) -> str | None:
    """Say so if the middle half of ``samples_ms`` spreads over more than ``NOISY_LIMIT`` of their median."""
    if len(samples_ms) < 2:
        return None
    spread = iqr(samples_ms) / median(samples_ms)
    if spread <= NOISY_LIMIT:
        return None
    return (
        f"noisy ({name}): the middle half of the rounds spreads over {spread:.0%} of the median "
        f"(limit {NOISY_LIMIT:.0%}); leave the machine to this run (fewer jobs at once) or raise throughput.seconds"
    )


def drifting(name: str, samples_ms: Sequence[float]) -> str | None:
    """Say so if the medians of the first and last third differ by more than noise explains and than ``DRIFT_LIMIT``.

    Noise is taken from the differences of successive samples, in which slow drift cancels. With normal noise of
    standard deviation s those have the interquartile range 1.349 * sqrt(2) * s, and the median of m samples has the
    standard error 1.2533 * s / sqrt(m).
    """
    third = len(samples_ms) // 3
    if len(samples_ms) < WANTED_ROUNDS:
        return None
    change = median(samples_ms[-third:]) - median(samples_ms[:third])
    sigma = iqr(np.diff(samples_ms).tolist()) / (1.349 * math.sqrt(2))
    standard_error = 1.2533 * sigma * math.sqrt(2 / third)
    relative = change / median(samples_ms)
    if abs(change) <= DRIFT_ERRORS * standard_error or abs(relative) <= DRIFT_LIMIT:
        return None
    way = "slower" if change > 0 else "faster"
    return (
        f"drifting ({name}): the last third of the rounds is {abs(relative):.0%} {way} than the first; the ratio is "
        "not affected, but do not compare absolute times with other runs: let the machine cool or idle, then measure "
        "again"
    )


def too_few_rounds(rounds: int, elapsed_s: float, budget_s: float) -> str | None:
    """Say so if fewer than ``WANTED_ROUNDS`` rounds were measured; ``elapsed_s`` is what all of it took."""
    if rounds >= WANTED_ROUNDS:
        return None
    enough = math.ceil(max(elapsed_s, budget_s) * WANTED_ROUNDS / max(rounds, 1))
    return (
        f"few rounds: {rounds} ({WANTED_ROUNDS} wanted) in {elapsed_s:.3g} s, with throughput.seconds={budget_s:g}: "
        f"calls are slow for that budget and the interval is wide; set throughput.seconds={enough} or more, "
        "or a smaller batch_size"
    )


def recompiled(discarded: int, attempted: int) -> str | None:
    """Say so if rounds were left out because something compiled while they ran."""
    if discarded == 0:
        return None
    what_next = "run with TORCH_LOGS=recompiles to see why, and hold what its guards check (shapes, attributes) fixed"
    if discarded * 2 > attempted:
        return (
            f"not steady: a recompile took place in {discarded} of {attempted} rounds, so the rounds that are left do "
            f"not stand for how the model runs; {what_next}"
        )
    return f"recompiled: in {discarded} of {attempted} rounds, which were left out; {what_next}"


def disturbed(rounds: int, attempted: int, kept: int) -> str | None:
    """Say so if a thread waited for a processor in over ``DISTURBED_LIMIT`` of the rounds, of which ``kept`` count."""
    if rounds <= DISTURBED_LIMIT * attempted:
        return None
    which = f"of which the {kept} calmest count" if kept else "which were left out"
    return (
        f"busy machine: in {rounds} of {attempted} rounds this process waited for a processor, {which}; leave the "
        "machine to this run (fewer jobs at once), then measure again"
    )


def unsettled(name: str, calls: int, elapsed_s: float) -> str:
    """Say that warm-up ended before times were steady."""
    return (
        f"not warmed up ({name}): times had not settled after {calls} calls, {elapsed_s:.3g} s, so early rounds may be "
        "too slow; raise throughput.seconds"
    )
