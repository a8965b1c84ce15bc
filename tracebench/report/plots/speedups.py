"""Speedup of each case with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.columns import COLUMNS
from tracebench.report.plots.bars import Bar, bar_axes, case_bar, gap
from tracebench.report.plots.drawing import (
    FONT,
    INK,
    frontend_colours,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def speedup_bars(records: Sequence[Record]) -> list[Bar]:
    """Return a bar for every case, also for those without a speedup, in the order they are shown."""
    naming = facts.names(records)
    bars = []
    for record in facts.order(records):
        value, word = facts.speedup(record), facts.word(record).name
        if value is None or record.throughput is None:
            label = word if facts.missing(record, "throughput") == "n/a" else "not measured"
            label = "no speedup" if label in ("sound", "restricted", "unsound", "no verdict") else label
            bars.append(case_bar(record, naming, (None,), label))
            continue
        found = record.throughput.speedup
        bounds = (found.ci_low, found.ci_high)
        interval = bounds if all(bound is not None and bound > 0 for bound in bounds) else None
        label = COLUMNS["speedup"].cell(record).split(" ")[0]
        label += " n.s." if found.significant is False else ""
        label += "" if word in (*facts.USABLE, "no verdict") else f" ({word})"
        bars.append(case_bar(record, naming, (value,), label, interval=interval, faint=found.significant is False))
    return bars


def ticks(low: float, high: float) -> list[float]:
    """Return round ratios between ``low`` and ``high``, 1 among them, for a logarithmic axis."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5):
        found = [1 + index * step for index in range(-99, 400) if low <= 1 + index * step <= high]
        if len(found) <= 8 and high / low < 4:
            return [round(value, 4) for value in found]
    for bases in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        found = [base * 10.0**power for power in range(-12, 13) for base in bases]
        if not any(value == 0.5 for value in found):
            found = [value for value in found if math.log10(value).is_integer()]
        found = sorted(value for value in found if low <= value <= high)
        if len(found) <= 10:
            return found
    return [1.0]


def speedup(records: Sequence[Record]) -> Figure | None:
    """Draw the speedup of each case with its interval, and a labelled gap where there is none."""
    title = f"Speedup over eager on {facts.machine(records)}"
    subtitle = (
        f"Eager time / captured time, {facts.interval(records)}; above 1 is faster. Logarithmic axis."
        " Hatched, n.s.: not significantly different from 1."
    )
    return ratios(speedup_bars(records), frontend_colours(records), title, subtitle, "speedup (ratio)")


def ratios(bars: Sequence[Bar], colours: Mapping[str, str], title: str, subtitle: str, unit: str) -> Figure | None:
    """Draw ratios from 1 on with their intervals, in the colour of each bar's front end; None if there are none."""
    if not any(bar.values[0] for bar in bars):
        return None
    ends = [1.0, *(end for bar in bars for end in (bar.values[0], *(bar.interval or ())) if end)]
    reach = math.log(max(ends) / min(ends)) or 1.0
    low = min(min(ends) * math.exp(-0.06 * reach), 0.9)
    high = max(max(ends) * math.exp(0.06 * reach), 1.12)
    figure, axes, places = bar_axes(bars, title, subtitle, unit)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ratio_axis(axes.xaxis, low, high)
    axes.axvline(1, color=INK, linewidth=1, zorder=1)
    for bar, place in zip(bars, places, strict=True):
        value, colour = bar.values[0], colours[bar.frontend]
        if value is None:
            gap(axes, place, bar.label, 1.0)
            continue
        style: dict[str, Any] = (
            {"facecolor": "white", "edgecolor": colour, "hatch": "//////"} if bar.faint else {"facecolor": colour}
        )
        axes.barh(place, value - 1, left=1, height=0.72, linewidth=0.8, zorder=2, **style)
        if bar.interval:
            error = [[max(0.0, value - bar.interval[0])], [max(0.0, bar.interval[1] - value)]]
            axes.errorbar(value, place, xerr=error, color=INK, linewidth=1, capsize=2, zorder=3)
        axes.text(
            1.01, place, plain(bar.label), transform=axes.get_yaxis_transform(), va="center_baseline", fontsize=FONT
        )
    return figure


def ratio_axis(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis of ratios from ``low`` to ``high``."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    places = ticks(low, high)
    axis.set_major_locator(FixedLocator(places))
    axis.set_major_formatter(FixedFormatter([f"{value:g}x" for value in places]))
    axis.set_minor_locator(NullLocator())
