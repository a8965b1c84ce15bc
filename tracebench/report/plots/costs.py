"""What compiling costs and when it pays back: compile time against speedup, and calls against time saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.plots.drawing import (
    FAINT,
    FONT,
    GRID,
    INK,
    bare,
    frontend_colours,
    heading_height,
    inches,
    new_axes,
    new_figure,
    plain,
    short,
    titles,
)
from tracebench.report.plots.speedups import ratio_axis
from tracebench.report.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX*<>"
_LONGEST = 40


@dataclass(frozen=True)
class Cost:
    """One case: seconds of compiling with a cold cache, its speedup with the interval, and where it is paid back."""

    row: str
    column: str
    frontend: str
    cold_s: float
    ratio: float
    low: float
    high: float
    significant: bool
    #: Calls after which it has paid back; None where it never does, or is not significant.
    calls: int | None
    eager_ms: float
    captured_ms: float


def costs(records: Sequence[Record]) -> list[Cost]:
    """Return the cases with a cold compile time and a speedup with its interval, in the order they are shown."""
    naming = facts.names(records)
    found = []
    for record in facts.order(records):
        timed = record.throughput
        if timed is None or timed.compile_s.cold is None or facts.speedup(record) is None:
            continue
        speed = timed.speedup
        if None in (speed.ci_low, speed.ci_high):
            continue
        found.append(
            Cost(
                naming.row(record),
                naming.column(record),
                clean(record.case.get("frontend") or ""),
                timed.compile_s.cold,
                speed.ratio,
                speed.ci_low,
                speed.ci_high,
                speed.significant,
                timed.break_even_calls,
                timed.eager.median_ms,
                timed.captured.median_ms,
            )
        )
    return found


def compile_time(records: Sequence[Record]) -> Figure | None:
    """Draw compile time against speedup, a point a case: colour is the front end, shape the model."""
    found = costs(records)
    if not found:
        return None
    title = f"What compiling costs and brings on {facts.machine(records)}"
    subtitle = (
        "Across: seconds of capturing and compiling with a cold cache, in a process of its own. Up: eager time /"
        f" captured time, {facts.interval(records)}; hollow where not significantly different from 1."
    )
    figure, axes, markers = _axes(records, found, title, subtitle)
    colours = frontend_colours(records)
    axes.axhline(1, color=FAINT, linewidth=0.8, zorder=1)
    for cost in found:
        error = [[max(0.0, cost.ratio - cost.low)], [max(0.0, cost.high - cost.ratio)]]
        colour = colours[cost.frontend]
        axes.errorbar(
            cost.cold_s, cost.ratio, yerr=error, color=colour, marker=markers[cost.row], markersize=6, linewidth=1,
            capsize=2.5, markerfacecolor=colour if cost.significant else "white", zorder=4,
        )  # fmt: skip
    seconds = [cost.cold_s for cost in found]
    _seconds_axis(axes, min(seconds) * 0.7, max(seconds) * 1.4)
    low = min(0.9, min(cost.low for cost in found) * 0.95)
    high = max(1.12, max(cost.high for cost in found) * 1.05)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ratio_axis(axes.yaxis, low, high)
    axes.set_xlabel("compile time, cold (s)", fontsize=FONT, color=INK)
    axes.set_ylabel("speedup (ratio)", fontsize=FONT, color=INK)
    return figure


def break_even(records: Sequence[Record]) -> Figure | None:
    """Draw for each case how its total time compares with eager's after so many calls; it pays back at 1."""
    found = costs(records)
    if not found:
        return None
    title = f"After how many calls compiling has paid back on {facts.machine(records)}"
    subtitle = (
        "Up: (cold compile time + calls x captured time) / (calls x eager time). A line crosses 1, marked, where the"
        " capture has paid for itself; dashed where the speedup is not significant, which has no such point."
    )
    figure, axes, markers = _axes(records, found, title, subtitle)
    colours = frontend_colours(records)
    axes.axhline(1, color=INK, linewidth=1, zorder=1)
    low, high = span(found)
    for cost in found:
        x, y = total_time(cost, low, high)
        style = "-" if cost.significant else "--"
        axes.plot(x, y, style, color=colours[cost.frontend], linewidth=1, zorder=3)
        end = (cost.calls, 1.0) if cost.calls else (x[-1], y[-1])
        axes.plot(*end, markers[cost.row], color=colours[cost.frontend], markersize=6, zorder=4)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(0, 2.5)
    axes.set_xlabel("calls", fontsize=FONT, color=INK)
    axes.set_ylabel("total time / eager's", fontsize=FONT, color=INK)
    return figure


def span(found: Sequence[Cost]) -> tuple[float, float]:
    """Return from how many to how many calls the lines run: a tenth to a hundred times what costs come to."""
    worth = [max(1.0, cost.cold_s * 1e3 / cost.eager_ms) for cost in found]
    ends = [*worth, *(float(cost.calls) for cost in found if cost.calls)]
    return max(1.0, min(ends) / 10), max(ends) * 30


def total_time(cost: Cost, low: float, high: float, points: int = 120) -> tuple[list[float], list[float]]:
    """Return numbers of calls and total time, compiling included, over eager's."""
    x = [low * (high / low) ** (index / (points - 1)) for index in range(points)]
    return x, [(cost.cold_s * 1e3 + calls * cost.captured_ms) / (calls * cost.eager_ms) for calls in x]


def _axes(
    records: Sequence[Record], found: Sequence[Cost], title: str, subtitle: str
) -> tuple[Figure, Axes, dict[str, str]]:
    """Return a figure with a key of models (markers) and front ends (colours)."""
    from matplotlib.lines import Line2D

    colours = frontend_colours(records)
    rows = list(dict.fromkeys(cost.row for cost in found))
    markers = {row: _MARKERS[index % len(_MARKERS)] for index, row in enumerate(rows)}
    columns = {cost.column: colours[cost.frontend] for cost in found}
    key: list[Any] = [Line2D([], [], color=colour, linewidth=2, label=plain(name)) for name, colour in columns.items()]
    key += [
        Line2D(
            [], [], color=INK, marker=markers[row], linestyle="none", markersize=5, label=plain(short(row, _LONGEST))
        )
        for row in rows
    ]
    left, body = 0.8, 5.0
    width = left + body + 0.75 + max(inches(short(name, _LONGEST)) for name in [*columns, *rows])
    heading = heading_height(title, subtitle, width)
    height = max(3.2, 0.23 * len(key) + 0.2)
    figure = new_figure(width, heading + 0.15 + height + 0.65)
    titles(figure, title, subtitle)
    axes = new_axes(figure, left, heading + 0.15, body, height)
    bare(axes)
    axes.grid(color=GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.legend(handles=key, loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=FONT, frameon=False)
    return figure, axes, markers


def _seconds_axis(axes: Axes, low: float, high: float) -> None:
    """Make the axis across logarithmic, with round numbers of seconds."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(low, high)
    places = [base * 10.0**power for power in range(-6, 7) for base in (1, 1.5, 2, 3, 5, 7)]
    places = [place for place in places if low <= place <= high]
    if len(places) > 8:
        places = [place for place in places if f"{place:.0e}"[0] in "125" and f"{place:e}"[2] == "0"]
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{place:g}" for place in places]))
    axes.xaxis.set_minor_locator(NullLocator())
