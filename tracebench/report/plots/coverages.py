"""Coverage of each case, and what keeps the rest outside of graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.plots.bars import Bar, bar_axes, case_bar, gap
from tracebench.report.plots.drawing import (
    FONT,
    frontend_colours,
    plain,
)
from tracebench.report.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def coverage_bars(records: Sequence[Record]) -> list[Bar]:
    """Return op and FLOP coverage of every case, in the order they are shown."""
    naming = facts.names(records)
    bars = []
    for record in facts.order(records):
        found, word = record.coverage, facts.word(record).name
        values = (found.ops, found.flops) if found else (None, None)
        said = [
            f"{name} {percent(value)} %" if value is not None else f"{name} {facts.missing(record, 'coverage')}"
            for name, value in zip(("op", "FLOP"), values, strict=True)
        ]
        failed = record.status != "done" or word == "refused"
        label = "not measured" if values == (None, None) and not failed else ", ".join(said)
        bars.append(case_bar(record, naming, values, label, failed=failed))
    return bars


def coverage(records: Sequence[Record]) -> Figure | None:
    """Draw the share of ops and of FLOPs that each capture runs inside graphs."""
    bars = coverage_bars(records)
    if not any(value is not None for bar in bars for value in bar.values):
        return None
    colours = frontend_colours(records)
    title = f"Coverage on {facts.machine(records)}"
    subtitle = (
        "How much of a call runs inside captured graphs. Upper, solid bar: share of ops; lower, pale bar: of FLOPs."
    )
    figure, axes, places = bar_axes(bars, title, subtitle, "coverage (%)")
    axes.set_xlim(0, 100)
    for bar, place in zip(bars, places, strict=True):
        if bar.values == (None, None) or (bar.outcome == "refused" and not any(bar.values)):
            gap(axes, place, bar.outcome if bar.failed else bar.label, 0)
        for value, shift, alpha in zip(bar.values, (-0.19, 0.19), (1.0, 0.45), strict=True):
            if value is not None:
                axes.barh(place + shift, 100 * value, height=0.34, color=colours[bar.frontend], alpha=alpha, zorder=2)
        axes.text(
            1.01, place, plain(bar.label), transform=axes.get_yaxis_transform(), va="center_baseline", fontsize=FONT
        )
    return figure


#: What an op can be, inside graphs or outside by reason, and its colour.
PARTS = {
    "inside": "#009E73",
    "graph break": "#D55E00",
    "left to Python": "#E69F00",
    "no graph": "#56B4E9",
    "unknown": "#B8B8B8",
}


@dataclass(frozen=True)
class Shares:
    """One case: the shares of its ops, and of their time where that was measured, in the order of ``PARTS``."""

    bar: Bar
    ops: tuple[float, ...]
    time: tuple[float, ...] | None


def outside_bars(records: Sequence[Record]) -> list[Shares]:
    """Return the cases that ran an op, in the order they are shown."""
    naming = facts.names(records)
    found = []
    for record in facts.order(records):
        cover = record.coverage
        if cover is None or cover.ops is None or not cover.ops_total:
            continue
        ops = _parts(cover.ops, [(op.reason, op.count) for op in cover.outside])
        timed = cover.time is not None and all(op.time_share is not None for op in cover.outside)
        time = _parts(cover.time or 0.0, [(op.reason, op.time_share or 0.0) for op in cover.outside]) if timed else None
        said = f"outside: ops {percent(1 - cover.ops)} %, time " + (f"{percent(1 - time[0])} %" if time else "n/a")
        found.append(Shares(case_bar(record, naming, (cover.ops, cover.time), said), ops, time))
    return found


def _parts(inside: float, outside: list[tuple[str | None, float]]) -> tuple[float, ...]:
    """Return shares that add up to 1: what is inside, and the rest by reason."""
    weights = dict.fromkeys(list(PARTS)[1:], 0.0)
    for reason, weight in outside:
        weights[reason if reason in weights else "unknown"] += weight
    total = math.fsum(weights.values())
    # Time coverage is the median of several calls and the parts are one call's, so they are scaled to fit.
    return (inside, *(weight * (1 - inside) / total if total > 0 else 0.0 for weight in weights.values()))


def outside(records: Sequence[Record]) -> Figure | None:
    """Draw for each case how its ops divide into those inside graphs and those outside, by reason."""
    cases = outside_bars(records)
    if not any(case.ops[0] < 1 for case in cases):
        return None
    from matplotlib.patches import Patch

    title = f"What is outside of graphs on {facts.machine(records)}"
    subtitle = (
        "Upper bar: share of the ops of a call; lower, thinner bar: of their time. Graph break: where the graph broke;"
        " left to Python: disabled, or excluded for it refuses; no graph: in a function of which nothing was captured."
    )
    figure, axes, places = bar_axes([case.bar for case in cases], title, subtitle, "share (%)", below=0.3)
    axes.set_xlim(0, 100)
    shown = {
        name: (index, colour)
        for index, (name, colour) in enumerate(PARTS.items())
        if index == 0 or any(shares[index] for case in cases for shares in (case.ops, case.time or case.ops))
    }
    for case, place in zip(cases, places, strict=True):
        for shares, shift, height in ((case.ops, -0.14, 0.5), (case.time, 0.29, 0.2)):
            if shares is None:
                continue
            start = 0.0
            for index, colour in shown.values():
                value = 100 * shares[index]
                axes.barh(place + shift, value, left=start, height=height, color=colour, zorder=2)
                start += value
        label = plain(case.bar.label)
        axes.text(1.01, place, label, transform=axes.get_yaxis_transform(), va="center_baseline", fontsize=FONT)
    handles = [Patch(color=colour, label=name) for name, (_, colour) in shown.items()]
    figure.legend(handles=handles, loc="lower left", ncols=len(handles), fontsize=FONT, frameon=False, handlelength=1.0)
    return figure
