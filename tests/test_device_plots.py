"""Plots of sweeps over batch sizes, and of rooflines."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tracebench.record import Record, Roofline, Timing
from tracebench.report import plots
from tracebench.throughput.roofline import under_roof

from . import records as make
from .test_report import assert_inside


def timed(model: str, frontend: str, batch: int, samples_ms: tuple[float, ...], eager_ms: float, **case: Any) -> Record:
    record = make.record(model, frontend, batch_size=batch, **case)
    assert record.throughput is not None
    captured = Timing(samples_ms[0], 0.0, samples_ms)
    eager = Timing(eager_ms, 0.0, (eager_ms,) * 3)
    return dataclasses.replace(
        record, throughput=dataclasses.replace(record.throughput, eager=eager, captured=captured)
    )


def sweep(models: int = 1) -> list[Record]:
    return [
        timed(f"model{index}", frontend, batch, (3.0 * batch, 4.0 * batch, 5.0 * batch), 8.0 * batch)
        for index in range(models)
        for batch in (16, 1, 4)
        for frontend in ("dynamo", "fx")
    ]


def test_a_curve_is_samples_a_second_of_the_median_round_and_of_the_middle_half() -> None:
    eager, dynamo, fx = sorted(plots.batch_curves(sweep()), key=lambda curve: curve.column != "eager")
    assert [(curve.row, curve.column) for curve in (eager, dynamo, fx)] == [
        ("model0", "eager"), ("model0", "dynamo"), ("model0", "fx"),
    ]  # fmt: skip
    assert [rate.batch for rate in dynamo.rates] == [1, 4, 16]
    assert all(rate.middle == pytest.approx(250.0) for rate in dynamo.rates)
    assert all((rate.low, rate.high) == pytest.approx((1000 / 4.5, 1000 / 3.5)) for rate in fx.rates)
    assert all(rate.low == rate.high == pytest.approx(125.0) for rate in eager.rates)


def test_cases_of_one_batch_size_or_without_times_have_no_curve() -> None:
    records = sweep()
    assert plots.batch_curves([record for record in records if record.case["batch_size"] == 4]) == []
    assert plots.batches([make.record(ending="crashed", batch_size=size) for size in (1, 2)]) is None
    other = [record for record in records if record.case["frontend"] == "fx" or record.case["batch_size"] == 4]
    assert {curve.column for curve in plots.batch_curves(other)} == {"eager", "fx"}


def test_variants_of_a_case_are_curves_of_their_own() -> None:
    halves = [timed("model0", "fx", batch, (2.0,), 4.0, dtype="bfloat16") for batch in (1, 4)]
    rows = {curve.row for curve in plots.batch_curves([*sweep(), *halves])}
    assert rows == {"model0, float32", "model0, bfloat16"}


def under(intensity: float, eager_ms: float, captured_ms: float, model: str = "a", frontend: str = "fx") -> Record:
    record = make.record(model, frontend)
    assert record.throughput is not None
    roof = under_roof(Roofline(int(intensity * 10**6), 10**6), 1000.0, 100.0, eager_ms, captured_ms)
    return dataclasses.replace(record, throughput=dataclasses.replace(record.throughput, roofline=roof))


def test_a_case_is_placed_under_the_roof_of_its_device() -> None:
    [roof] = plots.roofs([under(50.0, 1.0, 0.5), under(2.0, 0.1, 0.1, "b"), make.record("none")])
    assert (roof.peak_gflops, roof.peak_gb_s) == (1000.0, 100.0)
    assert (roof.at(50.0), roof.at(2.0)) == (1000.0, 200.0)
    assert [(case.model, case.intensity) for case in roof.cases] == [("a", 50.0), ("b", 2.0)]
    assert [(case.eager_gflops, case.captured_gflops) for case in roof.cases] == [(50.0, 100.0), (20.0, 20.0)]
    assert plots.roofline([make.record("none")]) is None


@pytest.mark.parametrize("models", [1, 12])
def test_the_plots_draw(models: int) -> None:
    rooflines = [
        under(3.0**index, 0.5, 0.2, f"model{index}", name) for index in range(models) for name in ("fx", "hook")
    ]
    for figure in (plots.batches(sweep(models)), plots.roofline(rooflines)):
        assert figure is not None
        assert plots.png(figure).startswith(b"\x89PNG")
        assert_inside(figure)
