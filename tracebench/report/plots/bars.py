"""What bar plots share: a bar for each case, grouped by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.plots.drawing import (
    FONT,
    GRID,
    INK,
    bare,
    heading_height,
    inches,
    new_axes,
    new_figure,
    plain,
    short,
    titles,
)
from tracebench.report.text import clean
from tracebench.status import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Bar:
    """One case in a bar plot: the group (model and variant) and front end it belongs to, and what to draw."""

    group: str
    name: str
    frontend: str
    outcome: str
    #: What is drawn; None leaves a gap in which ``label`` says why.
    values: tuple[float | None, ...]
    label: str
    interval: tuple[float, float] | None = None
    #: Whether the case ended before there was anything to measure.
    failed: bool = False
    #: Whether the value is to be told from no effect at all; drawn hatched if not.
    faint: bool = False


def _grouped(bars: Sequence[Bar]) -> list[tuple[str, list[Bar]]]:
    groups: dict[str, list[Bar]] = {}
    for bar in bars:
        groups.setdefault(bar.group, []).append(bar)
    return list(groups.items())


def case_bar(record: Record, naming: facts.Names, values: tuple[float | None, ...], label: str, **more: Any) -> Bar:
    frontend = clean(record.case.get("frontend") or "")
    return Bar(naming.row(record), naming.column(record), frontend, facts.word(record).name, values, label, **more)


def gap(axes: Axes, place: float, label: str, start: float) -> None:
    """Say in place of a bar why there is none."""
    fill = OUTCOMES[label].colour if label in OUTCOMES else "#e7e9ed"
    box = {"boxstyle": "round,pad=0.15", "facecolor": fill, "edgecolor": "none"}
    axes.annotate(
        plain(label), (start, place), (6, 0), textcoords="offset points", va="center", fontsize=FONT - 1, bbox=box
    )


def bar_axes(
    bars: Sequence[Bar], title: str, subtitle: str, unit: str, below: float = 0.0
) -> tuple[Figure, Axes, list[float]]:
    """Return a figure with a row for each bar under a heading for each group, and the rows' places.

    ``below`` are inches left free below the axis.
    """
    groups = _grouped(bars)
    left = 0.3 + max(inches(short(bar.name, 30)) for bar in bars)
    right = 0.25 + max(inches(bar.label) for bar in bars)
    row, body_width = 0.2, 4.6
    width = left + body_width + right
    longest = int((width - 0.3) / inches("x"))
    places, headings, ticklabels, next_row = [], [], [], 0.5
    for group, members in groups:
        headings.append((next_row, short(group, longest)))
        for bar in members:
            next_row += 1
            places.append(next_row)
            ticklabels.append(short(bar.name, 30))
        next_row += 1.35
    rows = next_row - 0.85
    heading = heading_height(title, subtitle, width)
    figure = new_figure(width, heading + rows * row + 0.62 + below)
    titles(figure, title, subtitle)
    axes = new_axes(figure, left, heading, body_width, rows * row)
    axes.set_ylim(rows, 0)
    for place, group in headings:
        axes.annotate(
            plain(group),
            (0, place),
            (-72 * (left - 0.15), 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            fontsize=FONT,
            fontweight="bold",
            color=INK,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )
    axes.set_yticks(places, [plain(label) for label in ticklabels])
    axes.set_xlabel(unit, fontsize=FONT, color=INK)
    bare(axes)
    axes.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    return figure, axes, places
