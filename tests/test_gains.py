"""Front-end cost and compiler gain, on records whose right values are known by construction."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests import records as make
from tracebench.record import Record, Speedup
from tracebench.report import facts, plots, webpage
from tracebench.report.columns import frame
from tracebench.report.gains import Gain, gains
from tracebench.report.table import render_table
from tracebench.throughput.statistics import CONFIDENCE, paired_speedup


def timed(executor: str, speedup: Speedup | float, eager: float = 12.5, **more: Any) -> Record:
    """Return a record with that speedup; a mere number has an interval from 0.9 to 1.1 times it."""
    if not isinstance(speedup, Speedup):
        speedup = Speedup(speedup, 0.9 * speedup, 1.1 * speedup, significant=True)
    record = make.record(executor=executor, **more)
    return dataclasses.replace(
        record, throughput=dataclasses.replace(make.throughput(speedup.ratio, eager=eager), speedup=speedup)
    )


def only(records: list[Record]) -> Gain:
    (found,) = gains(records)
    return found


def test_cost_times_gain_is_the_speedup() -> None:
    found = only([timed("replay", 0.8), timed("inductor", 1.2)])
    assert found.cost is not None
    assert found.gain is not None
    assert (found.cost.value, found.gain.value) == (pytest.approx(1.25), pytest.approx(1.5))
    assert found.gain.value / found.cost.value == pytest.approx(1.2)
    # The ends change places: the slowest replay is the highest cost.
    assert (found.cost.low, found.cost.high) == (pytest.approx(1 / 0.88), pytest.approx(1 / 0.72))


def test_distances_add_up_in_quadrature() -> None:
    # In logarithms: replay 0 with -0.03 and +0.04, the compiler 1 with -0.3 and +0.4.
    replay = Speedup(1.0, math.exp(-0.03), math.exp(0.04), significant=False)
    inductor = Speedup(math.e, math.exp(0.7), math.exp(1.4), significant=True)
    gain = only([timed("replay", replay), timed("inductor", inductor)]).gain
    assert gain is not None
    assert gain.low == pytest.approx(math.exp(1 - math.hypot(0.3, 0.04)))
    assert gain.high == pytest.approx(math.exp(1 + math.hypot(0.4, 0.03)))
    assert gain.significant


def test_a_gain_that_may_be_none_is_not_significant() -> None:
    gain = only([timed("replay", 1.0), timed("native", 1.1)]).gain
    assert gain is not None
    assert gain.significant is False
    assert str(gain).endswith("n.s.")


@pytest.mark.parametrize("truth", [1.0, 1.3])
def test_intervals_hold_the_truth_as_often_as_they_claim(truth: float) -> None:
    rng = np.random.default_rng(0)
    held = trials = 0
    for _ in range(300):
        runs = [
            paired_speedup(list(rng.lognormal(0, 0.05, 20)), list(rng.lognormal(-math.log(ratio), 0.02, 20)))
            for ratio in (0.9, 0.9 * truth)
        ]
        gain = only([timed("replay", runs[0]), timed("inductor", runs[1])]).gain
        assert gain is not None
        assert gain.low is not None
        assert gain.high is not None
        held += gain.low <= truth <= gain.high
        trials += 1
    # What they claim of 300, less three standard errors.
    assert held >= CONFIDENCE * trials - 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) * trials)


def test_only_cases_that_differ_in_nothing_else_are_compared() -> None:
    replay = timed("replay", 1.0)
    others: list[dict[str, Any]] = [
        {"frontend": "fx"},
        {"batch_size": 9},
        {"dtype": "bfloat16"},
        {"mode": "training"},
        {"controls": {"disable": ["a"]}},
        {"environment": {**make.ENVIRONMENT, "torch": "2.13.0"}},
        {"environment": {**make.ENVIRONMENT, "device_name": "another"}},
    ]
    assert gains([replay, *(timed("inductor", 1.2, **other) for other in others)]) == []
    assert gains([timed("replay", 1.0, frontend="eager"), timed("inductor", 1.2, frontend="eager")]) == []
    assert gains([timed("inductor", 1.2), timed("native", 1.2)]) == []


def test_settings_of_an_executor_make_it_another() -> None:
    told = [{}, {"mode": "max-autotune"}]
    tuned = [timed("inductor", 1.2 + i) for i, _ in enumerate(told)]
    tuned = [
        dataclasses.replace(record, case={**record.case, "executor_settings": settings})
        for record, settings in zip(tuned, told, strict=True)
    ]
    graphed = timed("replay", 2.0)
    graphed.case["executor_settings"] = {"cuda_graphs": True}
    found = gains([timed("replay", 1.0), *tuned, graphed])
    assert [facts.executor(gain.record.case) for gain in found] == [
        "inductor",
        "inductor(mode=max-autotune)",
        "replay(cuda_graphs=True)",
    ]
    assert [gain.gain and gain.gain.value for gain in found] == [pytest.approx(1.2), pytest.approx(2.2), 2.0]


def test_missing_stays_missing() -> None:
    records = [timed("replay", 0.8), make.record(executor="inductor", ending="refused")]
    found = only(records)
    assert found.cost is not None
    assert found.gain is None
    table = frame(records)
    assert table["front_end_cost"].tolist() == [pytest.approx(1.25)] * 2
    assert table[["compiler_gain", "compiler_gain_low", "compiler_gain_high"]].isna().all().all()
    assert "1.2x [1.1, 1.4]  n/a (refused)  n/a (refused)" in render_table(records)
    crashed = [make.record(ending="crashed"), timed("inductor", 1.2)]
    assert "n/a (crashed)   n/a (crashed)  1.2x [1.1, 1.3]" in render_table(crashed)
    (cost, gain) = plots.gain_bars(crashed)
    assert (cost.values, cost.label, gain.values, gain.label) == ((None,), "crashed", (None,), "not measured")


def test_one_round_has_a_gain_without_an_interval() -> None:
    once = Speedup(1.2, math.nan, math.nan, significant=False)
    gain = only([timed("replay", 1.0), timed("inductor", once)]).gain
    assert gain is not None
    assert (gain.value, gain.low, gain.high, gain.significant) == (1.2, None, None, None)
    assert str(gain) == "1.20x"


def test_a_gain_between_unlike_machines_is_in_doubt() -> None:
    quiet = render_table([timed("replay", 1.0), timed("inductor", 1.2, eager=13.0)])
    assert "doubt" not in quiet
    busy = render_table([timed("replay", 1.0), timed("inductor", 1.2, eager=25.0)])
    assert "      gain in doubt: eager itself took 2.00 times as long as beside replay\n(gain in doubt: run" in busy


def test_every_part_of_the_report_has_them() -> None:
    records = [timed(executor, ratio) for executor, ratio in (("replay", 0.8), ("inductor", 1.2), ("native", 1.0))]
    table = render_table(facts.order(records))
    for row in ("inductor  1.2x [1.1, 1.4]  1.5x [1.3, 1.7]", "native    1.2x [1.1, 1.4]  1.2x [1.1, 1.4]"):
        assert row in table
    assert "<td>1.5x [1.3, 1.7]</td>" in webpage.page(records, "t")
    assert "compiler_gain" in webpage.page(records, "t")
    assert frame(records)["compiler_gain"].tolist() == pytest.approx([math.nan, 1.5, 1.25], nan_ok=True)
    bars = plots.gain_bars(records)
    assert [(bar.name, bar.values[0]) for bar in bars] == [
        ("dynamo: cost", pytest.approx(1.25)),
        ("dynamo: inductor", pytest.approx(1.5)),
        ("dynamo: native", pytest.approx(1.25)),
    ]
    assert plots.gained(records) is not None
    assert plots.gained(records[:1]) is None
