"""A sweep over batch sizes: samples a second of eager and of each capture."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.plots.drawing import FONT, FRONTEND_COLOURS, INK, frontend_colours, log_axis, panels
from tracebench.report.text import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EAGER = "eager"


@dataclass(frozen=True)
class Rate:
    """Samples a second at one batch size: the median round, and the middle half of the rounds."""

    batch: int
    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """One front end (or eager) on one model, by batch size."""

    row: str
    column: str
    frontend: str
    rates: tuple[Rate, ...]


def batch_curves(records: Sequence[Record]) -> list[Curve]:
    """Return a curve for each front end, and one for eager, of every case that was timed at two batch sizes or more.

    Eager's rounds are those beside all captures of the same size.
    """
    naming = facts.names(records)
    naming = dataclasses.replace(naming, axes=tuple(axis for axis in naming.axes if axis != "batch_size"))
    rounds: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for record in facts.order(records):
        size, timed = record.case.get("batch_size"), record.throughput
        if not isinstance(size, int) or size < 1 or timed is None:
            continue
        frontend = clean(record.case.get("frontend") or "")
        timings = [(EAGER, EAGER, timed.eager.samples_ms)]
        if frontend != EAGER:
            timings.append((naming.column(record), frontend, timed.captured.samples_ms))
        for column, name, samples in timings:
            at = rounds.setdefault((naming.row(record), column, name), {})
            at.setdefault(size, []).extend(value for value in samples if value)
    curves = [
        Curve(*names, tuple(_rate(size, samples) for size, samples in sorted(by_size.items()) if samples))
        for names, by_size in rounds.items()
    ]
    return [curve for curve in curves if len(curve.rates) > 1]


def _rate(size: int, samples_ms: Iterable[float]) -> Rate:
    samples = list(samples_ms)
    quartiles = statistics.quantiles(samples, method="inclusive") if len(samples) > 1 else samples * 3
    fast, middle, slow = (size * 1000.0 / value for value in quartiles)
    return Rate(size, middle, slow, fast)


def batches(records: Sequence[Record]) -> Figure | None:
    """Draw samples a second against batch size: a panel a case, a line a front end."""
    curves = batch_curves(records)
    if not curves:
        return None
    from matplotlib.lines import Line2D

    colours = {**frontend_colours(records), EAGER: FRONTEND_COLOURS[EAGER]}
    columns = {curve.column: colours[curve.frontend] for curve in curves}
    rows = list(dict.fromkeys(curve.row for curve in curves))
    title = f"Throughput by batch size on {facts.machine(records)}"
    subtitle = (
        "Median round of eager and of each capture; bars: the middle half of the rounds. Logarithmic axes; where a"
        " line is flat, a larger batch gains nothing."
    )
    key = [
        Line2D([], [], color=colour, marker="o", markersize=4, linewidth=1.2, label=name)
        for name, colour in columns.items()
    ]
    figure, all_axes = panels(rows, title, subtitle, key)
    for row, axes in zip(rows, all_axes, strict=True):
        shown = [curve for curve in curves if curve.row == row]
        for curve in shown:
            x = [rate.batch for rate in curve.rates]
            y = [rate.middle for rate in curve.rates]
            error = [
                [rate.middle - rate.low for rate in curve.rates],
                [rate.high - rate.middle for rate in curve.rates],
            ]
            axes.errorbar(
                x, y, yerr=error, color=columns[curve.column], marker="o", markersize=4, linewidth=1.2, capsize=2.5,
                linestyle="--" if curve.column == EAGER else "-", zorder=3,
            )  # fmt: skip
        sizes = sorted({rate.batch for curve in shown for rate in curve.rates})
        log_axis(axes, "x", sizes, sizes)
        log_axis(axes, "y", [end for curve in shown for rate in curve.rates for end in (rate.low, rate.high)])
        axes.set_xlabel("batch size (samples)", fontsize=FONT, color=INK)
        axes.set_ylabel("samples/s", fontsize=FONT, color=INK)
    return figure
