"""A sweep over controls: what each setting costs in coverage and what it brings in speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.controls import by_setting
from tracebench.report.plots.drawing import FAINT, FONT, INK, frontend_colours, panels, plain, short
from tracebench.report.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: One for each setting; lines have the colours of front ends.
_MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Point:
    """One case: percent of coverage, and its speedup with the interval."""

    setting: str
    coverage: float
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """The settings of one model under one front end, by coverage."""

    row: str
    column: str
    frontend: str
    points: tuple[Point, ...]


def setting_lines(records: Sequence[Record]) -> tuple[str, list[Line]]:
    """Return what the coverage counts (time where every case has it, else ops) and the lines of the plot."""
    lines = []
    shown = {
        line: timed
        for line, cases in by_setting(facts.order(records)).items()
        if len(timed := [(name, record) for name, record in cases if _timed(record)]) > 1
    }
    covers = [record.coverage for cases in shown.values() for _, record in cases]
    kind = "time" if all(cover is not None and cover.time is not None for cover in covers) else "ops"
    for (row, column), cases in shown.items():
        points = []
        for name, record in cases:
            assert record.coverage is not None
            assert record.throughput is not None
            share = record.coverage.time if kind == "time" else record.coverage.ops
            found = record.throughput.speedup
            if share is not None:
                points.append(Point(name, 100 * share, found.ratio, found.ci_low, found.ci_high))
        if len(points) > 1:
            frontend = clean(cases[0][1].case.get("frontend") or "")
            lines.append(Line(row, column, frontend, tuple(sorted(points, key=lambda point: point.coverage))))
    return kind, lines


def _timed(record: Record) -> bool:
    found = record.throughput.speedup if record.throughput else None
    known = found is not None and None not in (found.ratio, found.ci_low, found.ci_high)
    return known and record.coverage is not None and record.coverage.ops is not None


def controls(records: Sequence[Record]) -> Figure | None:
    """Draw coverage against speedup for each setting of the controls: a panel a model, a line a front end."""
    kind, lines = setting_lines(records)
    if not lines:
        return None
    from matplotlib.lines import Line2D

    colours = frontend_colours(records)
    models = list(dict.fromkeys(line.row for line in lines))
    columns = {line.column: colours[line.frontend] for line in lines}
    settings = list(dict.fromkeys(point.setting for line in lines for point in line.points))
    markers = {name: _MARKERS[index % len(_MARKERS)] for index, name in enumerate(settings)}
    title = f"What controls cost and bring on {facts.machine(records)}"
    subtitle = (
        f"Each point is a case: the share of {'the time of its ops' if kind == 'time' else 'its ops'} that runs inside"
        f" captured graphs, and eager time / captured time with its {facts.interval(records)}. A line joins the"
        " settings of one front end."
    )
    key = [Line2D([], [], color=colour, linewidth=2, label=plain(name)) for name, colour in columns.items()]
    key += [
        Line2D([], [], color=INK, marker=markers[name], linestyle="none", markersize=5, label=plain(short(name, 46)))
        for name in settings
    ]
    figure, all_axes = panels(models, title, subtitle, key)
    for model, axes in zip(models, all_axes, strict=True):
        axes.axhline(1, color=FAINT, linewidth=0.8, zorder=1)
        for line in lines:
            if line.row == model:
                _draw(axes, line, columns[line.column], markers)
        axes.margins(0.07, 0.12)
        axes.set_xlabel(f"{'time' if kind == 'time' else 'op'} coverage (%)", fontsize=FONT, color=INK)
        axes.set_ylabel("speedup (ratio)", fontsize=FONT, color=INK)
    return figure


def _draw(axes: Axes, line: Line, colour: str, markers: dict[str, str]) -> None:
    x = [point.coverage for point in line.points]
    y = [point.speedup for point in line.points]
    axes.plot(x, y, color=colour, linewidth=1, zorder=3)
    for point in line.points:
        error = [[max(0.0, point.speedup - point.low)], [max(0.0, point.high - point.speedup)]]
        axes.errorbar(
            point.coverage, point.speedup, yerr=error, color=colour, marker=markers[point.setting], markersize=6,
            linewidth=1, capsize=2.5, zorder=4,
        )  # fmt: skip
