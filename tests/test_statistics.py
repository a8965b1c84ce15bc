"""What samples say: known answers, invariances, and how often the interval is right on simulated measurements."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebench.record import Speedup
from tracebench.throughput import advice
from tracebench.throughput.measure import break_even_calls
from tracebench.throughput.statistics import (
    half_width,
    iqr,
    median,
    paired_speedup,
    rank_cutoff,
)

FloatArray = npt.NDArray[np.float64]

#: Times of one round (eager, captured) in milliseconds.
rounds_of_times = st.lists(
    st.tuples(st.floats(min_value=1e-3, max_value=1e5), st.floats(min_value=1e-3, max_value=1e5)),
    min_size=3,
    max_size=30,
)


def simulate(kind: str, rounds: int, ratio: float, rng: np.random.Generator, noise: float = 0.02) -> Speedup:
    """Return the speedup found in one simulated measurement: two blocks a round, in an order as ``measure`` has it."""
    blocks = np.arange(2 * rounds)
    log_time = rng.normal(0.0, noise, 2 * rounds)
    if kind == "drift":
        log_time += np.log(1.0 + 0.5 * blocks / len(blocks))
    elif kind == "walk":
        log_time += np.cumsum(rng.normal(0.0, 0.02, 2 * rounds))
    elif kind == "outliers":
        hit = rng.random(2 * rounds) < 0.08
        log_time += np.where(hit, rng.uniform(0.2, 1.2, 2 * rounds), 0.0)
    elif kind == "skewed":
        log_time = rng.exponential(0.05, 2 * rounds)
    time = np.exp(log_time).reshape(rounds, 2)
    first = rng.integers(2, size=(rounds + 1) // 2)
    eager_at = np.stack([first, 1 - first], axis=1).reshape(-1)[:rounds]
    row = np.arange(rounds)
    return paired_speedup((ratio * time[row, eager_at]).tolist(), time[row, 1 - eager_at].tolist())


def test_median_and_iqr() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
    assert math.isnan(median([]))
    assert math.isnan(iqr([]))


@pytest.mark.parametrize(
    ("rounds", "lowest_rank_sum"),
    # Critical values of the two-sided signed-rank test at 0.01, from the standard tables.
    [(8, 0), (9, 1), (10, 3), (12, 7), (15, 15), (20, 37), (25, 68)],
)
def test_rank_cutoff_agrees_with_tables(rounds: int, lowest_rank_sum: int) -> None:
    assert rank_cutoff(rounds) == lowest_rank_sum + 1


def test_no_rank_interval_below_eight_rounds() -> None:
    assert [rank_cutoff(n) for n in range(1, 8)] == [0] * 7


def test_known_interval() -> None:
    """Computed by hand: for eight rounds, the smallest and the largest of 36 pairwise means bound the interval."""
    logs = [0.10, 0.12, 0.15, 0.19, 0.24, 0.30, 0.37, 0.45]
    walsh = sorted((a + b) / 2 for a, b in combinations_with_replacement(logs, 2))
    found = paired_speedup(np.exp(logs).tolist(), [1.0] * 8)
    assert math.log(found.ci_low) == pytest.approx(walsh[0])
    assert math.log(found.ci_high) == pytest.approx(walsh[-1])
    assert math.log(found.ratio) == pytest.approx((walsh[17] + walsh[18]) / 2)
    assert found.significant


def test_exact_ratio_without_noise() -> None:
    found = paired_speedup([4.0] * 10, [2.0] * 10)
    assert (found.ratio, found.ci_low, found.ci_high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.significant


def test_rounding_of_equal_times_is_not_a_difference() -> None:
    assert paired_speedup([0.1 + 0.2] * 10, [0.3] * 10) == Speedup(1.0, 1.0, 1.0, False, 0.99)


def test_few_rounds() -> None:
    nothing = paired_speedup([], [])
    assert math.isnan(nothing.ratio)
    assert not nothing.significant
    one = paired_speedup([3.0], [1.0])
    assert one.ratio == pytest.approx(3.0)
    assert math.isnan(one.ci_low)
    assert not one.significant
    # Three rounds that agree to 1 % are evidence of a factor of three; two rounds that differ are not.
    assert paired_speedup([3.0, 3.02, 2.99], [1.0] * 3).significant
    assert not paired_speedup([3.0, 1.2], [1.0, 1.0]).significant


@pytest.mark.parametrize(
    ("eager", "captured"), [([1.0], [1.0, 2.0]), ([0.0, 1.0], [1.0, 1.0]), ([1.0, math.nan], [1.0, 1.0])]
)
def test_rejects_what_is_not_paired_times(eager: list[float], captured: list[float]) -> None:
    with pytest.raises(ValueError, match=r"one sample of each|too coarse"):
        paired_speedup(eager, captured)


@given(rounds_of_times, st.floats(min_value=1e-3, max_value=1e3))
def test_unit_of_time_does_not_matter(rounds: list[tuple[float, float]], scale: float) -> None:
    eager, captured = map(list, zip(*rounds, strict=True))
    plain = paired_speedup(eager, captured)
    scaled = paired_speedup([scale * t for t in eager], [scale * t for t in captured])
    assert (scaled.ratio, scaled.ci_low, scaled.ci_high) == pytest.approx(
        (plain.ratio, plain.ci_low, plain.ci_high), rel=1e-9
    )


@given(rounds_of_times)
def test_swapping_inverts(rounds: list[tuple[float, float]]) -> None:
    eager, captured = map(list, zip(*rounds, strict=True))
    there, back = paired_speedup(eager, captured), paired_speedup(captured, eager)
    assert (back.ratio, back.ci_low, back.ci_high) == pytest.approx(
        (1 / there.ratio, 1 / there.ci_high, 1 / there.ci_low), rel=1e-9
    )
    assert back.significant == there.significant


@given(rounds_of_times)
def test_interval_holds_ratio_and_decides_significance(rounds: list[tuple[float, float]]) -> None:
    eager, captured = map(list, zip(*rounds, strict=True))
    found = paired_speedup(eager, captured)
    assert found.ci_low <= found.ratio <= found.ci_high
    assert found.significant == (not found.ci_low <= 1.0 <= found.ci_high)
    assert found == paired_speedup(eager, captured)


@pytest.mark.parametrize("rounds", [8, 12, 20, 40])
@pytest.mark.parametrize("kind", ["independent", "drift", "walk", "outliers", "skewed"])
def test_coverage(kind: str, rounds: int) -> None:
    """Equal callables are told apart in about 1 % of measurements; an interval holds the true ratio in about 99 %."""
    rng = np.random.default_rng(20)
    experiments = 800
    equal = sum(not simulate(kind, rounds, 1.0, rng).significant for _ in range(experiments))
    found = [simulate(kind, rounds, 1.7, rng) for _ in range(experiments)]
    held = sum(f.ci_low <= 1.7 <= f.ci_high for f in found)
    # 0.99 less 2.6 standard errors of a share of 800.
    assert equal / experiments >= 0.98
    assert held / experiments >= 0.98


@pytest.mark.parametrize("kind", ["independent", "drift"])
def test_a_slowdown_of_five_percent_is_found(kind: str) -> None:
    rng = np.random.default_rng(21)
    found = [simulate(kind, 20, 1 / 1.05, rng) for _ in range(400)]
    assert sum(f.significant and f.ratio < 1.0 for f in found) / 400 >= 0.95


@pytest.mark.parametrize("noise", [0.006, 0.0075, 0.01])
def test_stopping_early_keeps_the_coverage(noise: float) -> None:
    """Looking at 20, 30, ... rounds whether the interval is tight must not make it wrong more often."""
    rng = np.random.default_rng(22)
    held = 0
    for _ in range(500):
        eager: list[float] = []
        captured: list[float] = []
        while True:
            eager += np.exp(rng.normal(0.0, noise, 10)).tolist()
            captured += np.exp(rng.normal(0.0, noise, 10)).tolist()
            if len(eager) < 20:
                continue
            found = paired_speedup(eager, captured)
            if half_width(found) <= 0.005 or len(eager) == 200:
                break
        held += not found.significant
    assert held / 500 >= 0.97


def test_break_even() -> None:
    faster = Speedup(ratio=2.0, ci_low=1.9, ci_high=2.1, significant=True)
    assert break_even_calls(10.0, faster, eager_ms=20.0, captured_ms=10.0) == 1000
    assert break_even_calls(10.001, faster, eager_ms=20.0, captured_ms=10.0) == 1001
    assert break_even_calls(0.3, faster, eager_ms=0.2, captured_ms=0.1) == 3000
    assert break_even_calls(0.0, faster, eager_ms=20.0, captured_ms=10.0) == 0


@pytest.mark.parametrize(
    "speedup",
    [
        Speedup(ratio=1.1, ci_low=0.9, ci_high=1.3, significant=False),
        Speedup(ratio=0.5, ci_low=0.4, ci_high=0.6, significant=True),
        Speedup(ratio=math.nan, ci_low=math.nan, ci_high=math.nan, significant=False),
    ],
)
def test_what_is_not_faster_never_breaks_even(speedup: Speedup) -> None:
    assert break_even_calls(10.0, speedup, eager_ms=20.0, captured_ms=10.0) is None


def test_break_even_needs_a_saving_and_a_cost() -> None:
    faster = Speedup(ratio=1.01, ci_low=1.005, ci_high=1.02, significant=True)
    assert break_even_calls(10.0, faster, eager_ms=10.0, captured_ms=10.0) is None
    assert break_even_calls(math.nan, faster, eager_ms=20.0, captured_ms=10.0) is None


def normal_times(rounds: int, noise: float, seed: int = 0) -> FloatArray:
    return 10.0 * np.exp(np.random.default_rng(seed).normal(0.0, noise, rounds))


def test_noisy() -> None:
    assert advice.noisy("eager", normal_times(40, 0.02).tolist()) is None
    warning = advice.noisy("eager", normal_times(40, 0.3).tolist())
    assert warning is not None
    assert "throughput.seconds" in warning
    assert advice.noisy("eager", [1.0]) is None


def test_drifting_tells_direction() -> None:
    ramp = 1.0 + 0.5 * np.arange(30) / 30
    slower = advice.drifting("eager", (normal_times(30, 0.02) * ramp).tolist())
    faster = advice.drifting("eager", (normal_times(30, 0.02) / ramp).tolist())
    assert slower is not None
    assert "slower than the first" in slower
    assert faster is not None
    assert "faster than the first" in faster


@pytest.mark.parametrize("rounds", [10, 20, 40])
def test_noise_is_seldom_called_drift(rounds: int) -> None:
    alarms = sum(advice.drifting("eager", normal_times(rounds, 0.1, seed).tolist()) is not None for seed in range(400))
    assert alarms / 400 <= 0.05


def test_too_few_rounds_names_a_budget() -> None:
    assert advice.too_few_rounds(10, 5.0, 5.0) is None
    warning = advice.too_few_rounds(6, 120.0, 5.0)
    assert warning is not None
    assert "throughput.seconds=200" in warning


def test_recompiled() -> None:
    assert advice.recompiled(0, 20) is None
    some, most = advice.recompiled(2, 20), advice.recompiled(15, 20)
    assert some is not None
    assert "2 of 20 rounds, which were left out" in some
    assert most is not None
    assert most.startswith("not steady")
