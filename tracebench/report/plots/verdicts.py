"""Verdicts of many cases as a table of coloured words; probes of a single one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.plots.drawing import (
    FAINT,
    FONT,
    GRID,
    INK,
    LINE,
    bare,
    folded,
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

_PROBE_COLOURS = {
    "match": OUTCOMES["sound"].colour,
    "diverge": OUTCOMES["unsound"].colour,
    "raise": OUTCOMES["restricted"].colour,
    "n/a": OUTCOMES["no verdict"].colour,
}


@dataclass(frozen=True)
class Grid:
    """Outcome words by row (model and variant) and column (front end). A pair that was not asked for is absent."""

    rows: list[str]
    columns: list[str]
    words: dict[tuple[str, str], str]


def verdict_grid(records: Sequence[Record]) -> Grid:
    """Return the outcomes of ``records``; cases that would share a cell get rows of their own."""
    records = facts.order(records)
    naming = facts.names(records)
    rows: dict[str, None] = {}
    columns: dict[str, None] = {}
    words: dict[tuple[str, str], str] = {}
    for record in records:
        row, column, count = naming.row(record), naming.column(record), 1
        name = row
        while (name, column) in words:
            count += 1
            name = f"{row} #{count}"
        rows[name] = columns[column] = None
        words[name, column] = facts.word(record).name
    ranked = sorted(columns, key=lambda name: _rank(name.split("(")[0]))
    return Grid(list(rows), ranked, words)


def _rank(frontend: str) -> tuple[int, str]:
    known = facts.FRONTENDS
    return (known.index(frontend) if frontend in known else len(known), frontend)


def verdicts(records: Sequence[Record]) -> Figure | None:
    """Draw a table of coloured words, model by front end, with their meanings below. A single case has no table."""
    if len(records) < 2:
        return None
    grid = verdict_grid(records)
    rows = [short(row, 46) for row in grid.rows]
    columns = [short(column, 28) for column in grid.columns]
    cell_width, cell_height = max(0.95, *(inches(name) + 0.15 for name in columns)), 0.27
    left = 0.25 + max(map(inches, rows))
    body_width, body_height = cell_width * len(columns), cell_height * len(rows)
    width = max(left + body_width + 0.2, 6.4)
    appearing = [name for name in OUTCOMES if name in grid.words.values()]
    legend = [(name, folded(OUTCOMES[name].meaning, width - 1.4)) for name in appearing]
    blank = len(grid.words) < len(rows) * len(columns)
    if blank:
        legend.append(("blank", ["not asked for"]))
    title, subtitle = "Is each capture right?", f"{facts.machine(records)}; {facts.counts(records)}"
    heading = heading_height(title, subtitle, width)
    height = heading + 0.25 + body_height + 0.25 + sum(LINE * len(lines) + 0.08 for _, lines in legend) + 0.1
    figure = new_figure(width, height)
    titles(figure, title, subtitle)
    axes = new_axes(figure, left, heading + 0.25, body_width, body_height)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    for (row, column), word in grid.words.items():
        _tile(axes, grid.columns.index(column), grid.rows.index(row), word)
    axes.xaxis.tick_top()
    axes.set_xticks([index + 0.5 for index in range(len(columns))], [plain(name) for name in columns])
    axes.set_yticks([index + 0.5 for index in range(len(rows))], [plain(name) for name in rows])
    bare(axes)
    below = new_axes(
        figure, 0.15, heading + 0.25 + body_height + 0.2, width - 0.3, height - heading - body_height - 0.5
    )
    _legend(below, legend, width - 0.3)
    return figure


def _tile(axes: Axes, column: float, row: float, word: str, colour: str | None = None) -> None:
    from matplotlib.patches import Rectangle

    fill = colour or (OUTCOMES[word].colour if word in OUTCOMES else "#e7e9ed")
    axes.add_patch(Rectangle((column, row), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.5))
    axes.text(column + 0.5, row + 0.5, plain(word), ha="center", va="center", fontsize=FONT, color="black")


def _legend(axes: Axes, entries: list[tuple[str, list[str]]], width: float) -> None:
    from matplotlib.patches import Rectangle

    height = sum(LINE * len(lines) + 0.08 for _, lines in entries)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    top = 0.0
    for word, lines in entries:
        fill = OUTCOMES[word].colour if word in OUTCOMES else "white"
        edge = "white" if word in OUTCOMES else GRID
        axes.add_patch(Rectangle((0, top), 0.95, LINE + 0.04, facecolor=fill, edgecolor=edge))
        axes.text(0.475, top + 0.12, word, ha="center", va="center", fontsize=FONT, color="black")
        for index, line in enumerate(lines):
            axes.text(1.05, top + 0.12 + index * LINE, line, va="center", fontsize=FONT, color=INK)
        top += LINE * len(lines) + 0.08


def probes(records: Sequence[Record]) -> Figure | None:
    """Draw the probes of a single case, one row each: how it ended and what was found."""
    if len(records) != 1 or not records[0].probes:
        return None
    record = records[0]
    found = list(record.probes or ())
    label = max(inches(short(clean(probe.name), 40)) for probe in found) + 0.3
    details = [folded(clean(probe.detail), 4.6)[:2] if probe.detail else [""] for probe in found]
    heights = [max(0.27, LINE * len(lines) + 0.06) for lines in details]
    width = label + 0.9 + 4.9
    title = f"{facts.names(records).full(record)}: {facts.word(record).name}"
    subtitle = f"{facts.word(record).meaning}; {facts.machine(records)}"
    heading = heading_height(title, subtitle, width)
    figure = new_figure(width, heading + sum(heights) + 0.15)
    titles(figure, title, subtitle)
    axes = new_axes(figure, 0, heading, width, sum(heights))
    axes.set(xlim=(0, width), ylim=(sum(heights), 0))
    axes.axis("off")
    top = 0.0
    from matplotlib.patches import Rectangle

    for probe, lines, height in zip(found, details, heights, strict=True):
        middle = top + height / 2
        fill = _PROBE_COLOURS.get(probe.outcome, "#e7e9ed")
        axes.add_patch(Rectangle((label, top + 0.015), 0.75, height - 0.03, facecolor=fill))
        axes.text(label - 0.1, middle, plain(short(clean(probe.name), 40)), ha="right", va="center", fontsize=FONT)
        axes.text(label + 0.375, middle, plain(probe.outcome), ha="center", va="center", fontsize=FONT)
        axes.text(label + 0.87, middle, "\n".join(map(plain, lines)), va="center", fontsize=FONT - 1, color=FAINT)
        top += height
    return figure
