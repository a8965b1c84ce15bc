"""A sweep over controls: what each setting costs in coverage and what it brings in speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.controls import by_setting
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
from tracebench.report.text import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Markers of models, so that their lines are told apart where colours are those of front ends.
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
    """Draw coverage against speedup for each setting of the controls, connected by model and front end."""
    kind, lines = setting_lines(records)
    if not lines:
        return None
    colours = frontend_colours(records)
    models = list(dict.fromkeys(line.row for line in lines))
    title = f"What controls cost and bring on {facts.machine(records)}"
    subtitle = (
        f"Each point is a case: the share of {'the time of its ops' if kind == 'time' else 'its ops'} that runs inside"
        " captured graphs, and eager time / captured time with its 95 % interval. A line joins the settings of one"
        " model under one front end."
    )
    # Each setting has a number, so that names cannot cover one another.
    settings = list(dict.fromkeys(point.setting for line in lines for point in line.points))
    names = [f"{line.column} on {short(line.row, 40)}" for line in lines]
    numbered = [f"{index}  {short(name, 46)}" for index, name in enumerate(settings, 1)]
    right = max(1.6, 0.6 + max(map(inches, [*names, *numbered])))
    width, body = 0.8 + 5.0 + right, max(3.4, 0.22 * (len(names) + len(numbered)) + 0.9)
    heading = heading_height(title, subtitle, width)
    figure = new_figure(width, heading + body + 0.65)
    titles(figure, title, subtitle)
    axes = new_axes(figure, 0.8, heading, 5.0, body)
    axes.axhline(1, color=FAINT, linewidth=0.8, zorder=1)
    drawn = []
    for line in lines:
        colour, marker = colours[line.frontend], _MARKERS[models.index(line.row) % len(_MARKERS)]
        x = [point.coverage for point in line.points]
        y = [point.speedup for point in line.points]
        error = [
            [max(0.0, point.speedup - point.low) for point in line.points],
            [max(0.0, point.high - point.speedup) for point in line.points],
        ]
        drawn.append(
            axes.errorbar(
                x, y, yerr=error, color=colour, marker=marker, markersize=5, linewidth=1, capsize=2.5, zorder=3
            )
        )
        for point in line.points:
            axes.annotate(
                str(settings.index(point.setting) + 1), (point.coverage, point.speedup), (5, 4),
                textcoords="offset points", fontsize=FONT - 1, color=colour, zorder=4,
            )  # fmt: skip
    bare(axes)
    axes.grid(color=GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.margins(0.07, 0.12)
    axes.set_xlabel(f"{'time' if kind == 'time' else 'op'} coverage (%)", fontsize=FONT, color=INK)
    axes.set_ylabel("speedup (ratio)", fontsize=FONT, color=INK)
    place = (1.03, 1.0)
    legend = axes.legend(drawn, list(map(plain, names)), loc="upper left", bbox_to_anchor=place, fontsize=FONT)
    legend.set_frame_on(False)
    told = "\n".join(["controls:", *map(plain, numbered)])
    axes.text(1.05, 0.0, told, transform=axes.transAxes, va="bottom", fontsize=FONT, color=INK, linespacing=1.5)
    return figure
