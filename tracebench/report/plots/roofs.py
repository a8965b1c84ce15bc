"""Cases under the roof of their device: FLOP/s attained against FLOPs a byte."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.plots.drawing import (
    FONT,
    FRONTEND_COLOURS,
    INK,
    frontend_colours,
    log_axis,
    panels,
    plain,
    short,
)
from tracebench.report.text import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: One for each model; points have the colours of front ends.
_MARKERS = "osD^vPX*<>hp"


@dataclass(frozen=True)
class Attained:
    """One case: FLOPs a byte, and the GFLOP/s of eager and of the capture."""

    model: str
    frontend: str
    column: str
    intensity: float
    eager_gflops: float
    captured_gflops: float


@dataclass(frozen=True)
class Roof:
    """A device in one dtype: its peaks, the median of what the cases measured, and the cases."""

    name: str
    peak_gflops: float
    peak_gb_s: float
    cases: tuple[Attained, ...]

    def at(self, intensity: float) -> float:
        """Return the GFLOP/s that can be had with ``intensity`` FLOPs a byte."""
        return min(self.peak_gflops, intensity * self.peak_gb_s)


def roofs(records: Sequence[Record]) -> list[Roof]:
    """Return a roof for each device and dtype that a case has its place under."""
    naming = facts.names(records)
    found: dict[str, list[tuple[float, float, Attained]]] = {}
    for record in facts.order(records):
        under = record.throughput.roofline if record.throughput else None
        if under is None or not (under.intensity and under.eager_gflops and under.captured_gflops):
            continue
        assert under.peak_gflops is not None
        assert under.peak_gb_s is not None
        case = Attained(
            naming.row(record), clean(record.case.get("frontend") or ""), naming.column(record),
            under.intensity, under.eager_gflops, under.captured_gflops,
        )  # fmt: skip
        name = f"{facts.machine([record])}, {clean(record.case.get('dtype'))}"
        found.setdefault(name, []).append((under.peak_gflops, under.peak_gb_s, case))
    return [
        Roof(
            name,
            statistics.median(peak for peak, _, _ in cases),
            statistics.median(bandwidth for _, bandwidth, _ in cases),
            tuple(case for _, _, case in cases),
        )
        for name, cases in found.items()
    ]


def roofline(records: Sequence[Record]) -> Figure | None:
    """Draw each case under the roof of its device: a panel a device and dtype."""
    found = roofs(records)
    if not found:
        return None
    from matplotlib.lines import Line2D

    colours = frontend_colours(records)
    cases = [case for roof in found for case in roof.cases]
    columns = {case.column: colours[case.frontend] for case in cases}
    models = list(dict.fromkeys(case.model for case in cases))
    markers = {name: _MARKERS[index % len(_MARKERS)] for index, name in enumerate(models)}
    title = "Roofline"
    subtitle = (
        "GFLOP/s that each capture attains (filled) and eager beside it (hollow), against FLOPs for each byte that a"
        " call must move. The line is the roof that the measured peaks of FLOP/s and of memory make."
    )
    key = [Line2D([], [], color=colour, linewidth=2, label=plain(name)) for name, colour in columns.items()]
    key += [
        Line2D([], [], color=INK, marker=markers[name], linestyle="none", markersize=5, label=plain(short(name, 46)))
        for name in models
    ]
    figure, all_axes = panels([roof.name for roof in found], title, subtitle, key)
    for roof, axes in zip(found, all_axes, strict=True):
        ridge = roof.peak_gflops / roof.peak_gb_s
        intensities = [ridge, *(case.intensity for case in roof.cases)]
        ends = [min(intensities) / 2, ridge, max(intensities) * 2]
        heights = [roof.at(intensity) for intensity in ends]
        axes.plot(ends, heights, color=INK, linewidth=1.2, zorder=2)
        for case in roof.cases:
            style: dict[str, Any] = {"marker": markers[case.model], "markersize": 6, "linestyle": "none"}
            axes.plot(
                [case.intensity], [case.eager_gflops], markerfacecolor="none", zorder=3,
                markeredgecolor=FRONTEND_COLOURS["eager"], **style,
            )  # fmt: skip
            axes.plot([case.intensity], [case.captured_gflops], color=columns[case.column], zorder=4, **style)
        attained = [value for case in roof.cases for value in (case.eager_gflops, case.captured_gflops)]
        log_axis(axes, "x", ends)
        log_axis(axes, "y", [*heights, *attained])
        axes.set_xlabel("intensity (FLOP/byte)", fontsize=FONT, color=INK)
        axes.set_ylabel("GFLOP/s", fontsize=FONT, color=INK)
    return figure
