"""Plots of records. Each has a pure function that prepares what it shows, and one that draws it.

A drawing function returns None where the records have nothing to show. Sizes are worked out in inches from the
number of rows and columns and the lengths of labels, so that text keeps its size from one case to hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.columns import COLUMNS
from tracebench.report.text import clean, percent, plural
from tracebench.status import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe-Ito colours: told apart with every common kind of colour blindness.
FRONTEND_COLOURS = {
    "dynamo": "#0072B2",
    "jit_trace": "#E69F00",
    "fx": "#009E73",
    "hook": "#CC79A7",
    "eager": "#7F7F7F",
}
_OTHER_COLOURS = ("#56B4E9", "#D55E00", "#B8A900", "#000000")
_PROBE_COLOURS = {
    "match": OUTCOMES["sound"].colour,
    "diverge": OUTCOMES["unsound"].colour,
    "raise": OUTCOMES["restricted"].colour,
    "n/a": OUTCOMES["no verdict"].colour,
}
_INK, _FAINT, _GRID = "#222222", "#6b7280", "#d8dbe0"
_MARKER: dict[str, Any] = {"markersize": 5, "markerfacecolor": "none", "markeredgewidth": 1.2}
_LINE = 0.2  # inches from one line of text to the next
_FONT = 9
#: No figure is taller than this in inches: Agg has a limit, and so has a reader.
_TALLEST = 400.0


def frontend_colours(records: Sequence[Record]) -> dict[str, str]:
    """Return a colour for each front end of ``records``, the same for known ones everywhere."""
    found = dict.fromkeys(clean(record.case.get("frontend") or "") for record in records)
    others = sorted(name for name in found if name not in FRONTEND_COLOURS)
    colours = {name: FRONTEND_COLOURS[name] for name in found if name in FRONTEND_COLOURS}
    return colours | {name: _OTHER_COLOURS[index % len(_OTHER_COLOURS)] for index, name in enumerate(others)}


# --- text and figures ------------------------------------------------------------------------------------------------


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib import font_manager, ft2font

    return frozenset(ft2font.FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap())


def _plain(text: str) -> str:
    """Return ``text`` with nothing in it that the font lacks or that would be read as a formula."""
    known = "".join(char if ord(char) in _glyphs() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return known.replace("$", r"\$")


def short(text: str, limit: int) -> str:
    """Return ``text`` with its middle left out if it is longer than ``limit``: names often differ at the end."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - tail :]}"


def _inches(text: str, size: float = _FONT) -> float:
    """Return about how wide ``text`` is drawn; rather too much than too little."""
    return len(text) * size * 0.64 / 72


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, min(height, _TALLEST)), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Return axes at a place given in inches from the top left corner."""
    whole_width, whole_height = figure.get_size_inches()
    scale = whole_height / max(whole_height, top + height)
    bottom = whole_height - (top + height) * scale
    return figure.add_axes(
        (left / whole_width, bottom / whole_height, width / whole_width, height * scale / whole_height)
    )


def _write(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Write ``text`` with its top left corner at a place given in inches."""
    width, height = figure.get_size_inches()
    style = {"va": "top", "ha": "left", "fontsize": _FONT, "color": _INK, **style}
    figure.text(left / width, 1 - top / height, _plain(text), **style)


def _folded(text: str, width: float, size: float = _FONT) -> list[str]:
    """Return ``text`` in lines that fit into ``width`` inches."""
    from tracebench.report.text import wrap

    return wrap(text, max(10, int(width / _inches("x", size))))


def _titles(figure: Figure, title: str, subtitle: str) -> float:
    """Write a title and below it what the figures mean; return where the plot may begin, in inches."""
    width = figure.get_size_inches()[0] - 0.3
    top = 0.12
    for line in _folded(title, width, 12):
        _write(figure, 0.15, top, line, fontsize=12, fontweight="bold")
        top += 0.24
    for line in _folded(subtitle, width):
        _write(figure, 0.15, top, line, color=_FAINT)
        top += _LINE
    return top + 0.12


def _bare(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=_FONT, labelcolor=_INK)


def _heading_height(title: str, subtitle: str, width: float) -> float:
    return 0.24 * len(_folded(title, width - 0.3, 12)) + _LINE * len(_folded(subtitle, width - 0.3)) + 0.24


# --- verdicts --------------------------------------------------------------------------------------------------------


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
    cell_width, cell_height = max(0.95, *(_inches(name) + 0.15 for name in columns)), 0.27
    left = 0.25 + max(map(_inches, rows))
    body_width, body_height = cell_width * len(columns), cell_height * len(rows)
    width = max(left + body_width + 0.2, 6.4)
    appearing = [name for name in OUTCOMES if name in grid.words.values()]
    legend = [(name, _folded(OUTCOMES[name].meaning, width - 1.4)) for name in appearing]
    blank = len(grid.words) < len(rows) * len(columns)
    if blank:
        legend.append(("blank", ["not asked for"]))
    title, subtitle = "Is each capture right?", f"{facts.machine(records)}; {facts.counts(records)}"
    heading = _heading_height(title, subtitle, width)
    height = heading + 0.25 + body_height + 0.25 + sum(_LINE * len(lines) + 0.08 for _, lines in legend) + 0.1
    figure = _figure(width, height)
    _titles(figure, title, subtitle)
    axes = _axes(figure, left, heading + 0.25, body_width, body_height)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    for (row, column), word in grid.words.items():
        _tile(axes, grid.columns.index(column), grid.rows.index(row), word)
    axes.xaxis.tick_top()
    axes.set_xticks([index + 0.5 for index in range(len(columns))], [_plain(name) for name in columns])
    axes.set_yticks([index + 0.5 for index in range(len(rows))], [_plain(name) for name in rows])
    _bare(axes)
    below = _axes(figure, 0.15, heading + 0.25 + body_height + 0.2, width - 0.3, height - heading - body_height - 0.5)
    _legend(below, legend, width - 0.3)
    return figure


def _tile(axes: Axes, column: float, row: float, word: str, colour: str | None = None) -> None:
    from matplotlib.patches import Rectangle

    fill = colour or (OUTCOMES[word].colour if word in OUTCOMES else "#e7e9ed")
    axes.add_patch(Rectangle((column, row), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.5))
    axes.text(column + 0.5, row + 0.5, _plain(word), ha="center", va="center", fontsize=_FONT, color="black")


def _legend(axes: Axes, entries: list[tuple[str, list[str]]], width: float) -> None:
    from matplotlib.patches import Rectangle

    height = sum(_LINE * len(lines) + 0.08 for _, lines in entries)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    top = 0.0
    for word, lines in entries:
        fill = OUTCOMES[word].colour if word in OUTCOMES else "white"
        edge = "white" if word in OUTCOMES else _GRID
        axes.add_patch(Rectangle((0, top), 0.95, _LINE + 0.04, facecolor=fill, edgecolor=edge))
        axes.text(0.475, top + 0.12, word, ha="center", va="center", fontsize=_FONT, color="black")
        for index, line in enumerate(lines):
            axes.text(1.05, top + 0.12 + index * _LINE, line, va="center", fontsize=_FONT, color=_INK)
        top += _LINE * len(lines) + 0.08


def probes(records: Sequence[Record]) -> Figure | None:
    """Draw the probes of a single case, one row each: how it ended and what was found."""
    if len(records) != 1 or not records[0].probes:
        return None
    record = records[0]
    found = list(record.probes or ())
    label = max(_inches(short(clean(probe.name), 40)) for probe in found) + 0.3
    details = [_folded(clean(probe.detail), 4.6)[:2] if probe.detail else [""] for probe in found]
    heights = [max(0.27, _LINE * len(lines) + 0.06) for lines in details]
    width = label + 0.9 + 4.9
    title = f"{facts.names(records).full(record)}: {facts.word(record).name}"
    subtitle = f"{facts.word(record).meaning}; {facts.machine(records)}"
    heading = _heading_height(title, subtitle, width)
    figure = _figure(width, heading + sum(heights) + 0.15)
    _titles(figure, title, subtitle)
    axes = _axes(figure, 0, heading, width, sum(heights))
    axes.set(xlim=(0, width), ylim=(sum(heights), 0))
    axes.axis("off")
    top = 0.0
    from matplotlib.patches import Rectangle

    for probe, lines, height in zip(found, details, heights, strict=True):
        middle = top + height / 2
        fill = _PROBE_COLOURS.get(probe.outcome, "#e7e9ed")
        axes.add_patch(Rectangle((label, top + 0.015), 0.75, height - 0.03, facecolor=fill))
        axes.text(label - 0.1, middle, _plain(short(clean(probe.name), 40)), ha="right", va="center", fontsize=_FONT)
        axes.text(label + 0.375, middle, _plain(probe.outcome), ha="center", va="center", fontsize=_FONT)
        axes.text(label + 0.87, middle, "\n".join(map(_plain, lines)), va="center", fontsize=_FONT - 1, color=_FAINT)
        top += height
    return figure


# --- bars ------------------------------------------------------------------------------------------------------------


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


def _case_bar(record: Record, naming: facts.Names, values: tuple[float | None, ...], label: str, **more: Any) -> Bar:
    frontend = clean(record.case.get("frontend") or "")
    return Bar(naming.row(record), naming.column(record), frontend, facts.word(record).name, values, label, **more)


def speedup_bars(records: Sequence[Record]) -> list[Bar]:
    """Return a bar for every case, also for those without a speedup, in the order they are shown."""
    naming = facts.names(records)
    bars = []
    for record in facts.order(records):
        value, word = facts.speedup(record), facts.word(record).name
        if value is None or record.throughput is None:
            label = word if facts.missing(record, "throughput") == "n/a" else "not measured"
            label = "no speedup" if label in ("sound", "restricted", "unsound", "no verdict") else label
            bars.append(_case_bar(record, naming, (None,), label))
            continue
        found = record.throughput.speedup
        bounds = (found.ci_low, found.ci_high)
        interval = bounds if all(bound is not None and bound > 0 for bound in bounds) else None
        label = COLUMNS["speedup"].cell(record).split(" ")[0]
        label += " n.s." if found.significant is False else ""
        label += "" if word in (*facts.USABLE, "no verdict") else f" ({word})"
        bars.append(_case_bar(record, naming, (value,), label, interval=interval, faint=found.significant is False))
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
    bars = speedup_bars(records)
    if not any(bar.values[0] for bar in bars):
        return None
    ends = [1.0, *(end for bar in bars for end in (bar.values[0], *(bar.interval or ())) if end)]
    reach = math.log(max(ends) / min(ends)) or 1.0
    low = min(min(ends) * math.exp(-0.06 * reach), 0.9)
    high = max(max(ends) * math.exp(0.06 * reach), 1.12)
    title = f"Speedup over eager on {facts.machine(records)}"
    subtitle = (
        "Eager time / captured time, 95 % interval; above 1 is faster. Logarithmic axis."
        " Hatched, n.s.: not significantly different from 1."
    )
    figure, axes, places = _bar_axes(bars, title, subtitle, "speedup (ratio)")
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    _ratio_axis(axes, low, high)
    axes.axvline(1, color=_INK, linewidth=1, zorder=1)
    colours = frontend_colours(records)
    for bar, place in zip(bars, places, strict=True):
        value, colour = bar.values[0], colours[bar.frontend]
        if value is None:
            _gap(axes, place, bar.label, 1.0)
            continue
        style: dict[str, Any] = (
            {"facecolor": "white", "edgecolor": colour, "hatch": "//////"} if bar.faint else {"facecolor": colour}
        )
        axes.barh(place, value - 1, left=1, height=0.72, linewidth=0.8, zorder=2, **style)
        if bar.interval:
            error = [[max(0.0, value - bar.interval[0])], [max(0.0, bar.interval[1] - value)]]
            axes.errorbar(value, place, xerr=error, color=_INK, linewidth=1, capsize=2, zorder=3)
        axes.text(
            1.01, place, _plain(bar.label), transform=axes.get_yaxis_transform(), va="center_baseline", fontsize=_FONT
        )
    return figure


def _ratio_axis(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    places = ticks(low, high)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:g}x" for value in places]))
    axes.xaxis.set_minor_locator(NullLocator())


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
        bars.append(_case_bar(record, naming, values, label, failed=failed))
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
    figure, axes, places = _bar_axes(bars, title, subtitle, "coverage (%)")
    axes.set_xlim(0, 100)
    for bar, place in zip(bars, places, strict=True):
        if bar.values == (None, None) or (bar.outcome == "refused" and not any(bar.values)):
            _gap(axes, place, bar.outcome if bar.failed else bar.label, 0)
        for value, shift, alpha in zip(bar.values, (-0.19, 0.19), (1.0, 0.45), strict=True):
            if value is not None:
                axes.barh(place + shift, 100 * value, height=0.34, color=colours[bar.frontend], alpha=alpha, zorder=2)
        axes.text(
            1.01, place, _plain(bar.label), transform=axes.get_yaxis_transform(), va="center_baseline", fontsize=_FONT
        )
    return figure


def _gap(axes: Axes, place: float, label: str, start: float) -> None:
    """Say in place of a bar why there is none."""
    fill = OUTCOMES[label].colour if label in OUTCOMES else "#e7e9ed"
    box = {"boxstyle": "round,pad=0.15", "facecolor": fill, "edgecolor": "none"}
    axes.annotate(
        _plain(label), (start, place), (6, 0), textcoords="offset points", va="center", fontsize=_FONT - 1, bbox=box
    )


def _bar_axes(bars: Sequence[Bar], title: str, subtitle: str, unit: str) -> tuple[Figure, Axes, list[float]]:
    """Return a figure with a row for each bar under a heading for each group, and the rows' places."""
    groups = _grouped(bars)
    left = 0.3 + max(_inches(short(bar.name, 30)) for bar in bars)
    right = 0.25 + max(_inches(bar.label) for bar in bars)
    row, body_width = 0.2, 4.6
    width = left + body_width + right
    longest = int((width - 0.3) / _inches("x"))
    places, headings, ticklabels, next_row = [], [], [], 0.5
    for group, members in groups:
        headings.append((next_row, short(group, longest)))
        for bar in members:
            next_row += 1
            places.append(next_row)
            ticklabels.append(short(bar.name, 30))
        next_row += 1.35
    rows = next_row - 0.85
    heading = _heading_height(title, subtitle, width)
    figure = _figure(width, heading + rows * row + 0.62)
    _titles(figure, title, subtitle)
    axes = _axes(figure, left, heading, body_width, rows * row)
    axes.set_ylim(rows, 0)
    for place, group in headings:
        axes.annotate(
            _plain(group),
            (0, place),
            (-72 * (left - 0.15), 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            fontsize=_FONT,
            fontweight="bold",
            color=_INK,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )
    axes.set_yticks(places, [_plain(label) for label in ticklabels])
    axes.set_xlabel(unit, fontsize=_FONT, color=_INK)
    _bare(axes)
    axes.grid(axis="x", color=_GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    return figure, axes, places


# --- latency ---------------------------------------------------------------------------------------------------------


def latency_samples(records: Sequence[Record]) -> dict[str, tuple[float, ...]]:
    """Return the rounds of a single case, in milliseconds per call: eager's and the capture's."""
    found = records[0].throughput if len(records) == 1 else None
    if found is None:
        return {}
    timings = {"eager": found.eager, "captured": found.captured}
    samples = {name: timing.samples_ms for name, timing in timings.items() if timing.median_ms is not None}
    return samples if len(samples) == 2 and all(samples.values()) else {}


def latency(records: Sequence[Record]) -> Figure | None:
    """Draw the rounds of a single case in the order they were measured, so that drift and outliers show."""
    from matplotlib.ticker import MaxNLocator

    samples = latency_samples(records)
    timings = records[0].throughput if samples else None
    if timings is None:
        return None
    title = f"{facts.names(records).full(records[0])}: time per call, round by round"
    rounds = plural(max(map(len, samples.values())), "round")
    subtitle = f"{facts.machine(records)}; {rounds}, by {clean(timings.clock)}; line: median"
    heading = _heading_height(title, subtitle, 7.4)
    figure = _figure(7.4, heading + 3.6)
    _titles(figure, title, subtitle)
    axes = _axes(figure, 0.75, heading, 5.1, 2.95)
    frontend = clean(records[0].case.get("frontend") or "")
    colours = {"eager": "#7F7F7F", "captured": frontend_colours(records)[frontend]}
    if frontend == "eager":
        colours["captured"] = _OTHER_COLOURS[0]
    markers = {"eager": "o", "captured": "D"}
    medians = {"eager": timings.eager.median_ms, "captured": timings.captured.median_ms}
    for name, values in samples.items():
        rounds_shown = range(1, len(values) + 1)
        axes.plot(rounds_shown, values, markers[name], color=colours[name], **_MARKER)
        axes.axhline(medians[name], color=colours[name], linewidth=1)
    everything = [value for values in samples.values() for value in values]
    margin = 0.08 * (max(everything) - min(everything)) or 0.05 * max(everything) or 1
    axes.set_ylim(min(everything) - margin, max(everything) + margin)
    for name, place in _label_places(medians, 0.075 * (max(everything) - min(everything) + 2 * margin)).items():
        label = f"{name} {COLUMNS[f'{name}_ms'].cell(records[0])} ms"
        beside = axes.get_yaxis_transform()
        axes.text(1.04, place, label, transform=beside, va="center_baseline", fontsize=_FONT, color=_INK)
        axes.plot([1.02], [place], markers[name], transform=beside, color=colours[name], clip_on=False, **_MARKER)
    axes.set_xlabel("round", fontsize=_FONT, color=_INK)
    axes.set_ylabel("time per call (ms)", fontsize=_FONT, color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _bare(axes)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    return figure


def _label_places(medians: dict[str, float], apart: float) -> dict[str, float]:
    """Return heights for the labels, near the medians but at least ``apart``."""
    (low, below), (high, above) = sorted(medians.items(), key=lambda item: item[1])
    lack = max(0.0, apart - (above - below)) / 2
    return {low: below - lack, high: above + lack}


#: Every plot, by the name of its file.
PLOTS: dict[str, tuple[Callable[[Sequence[Record]], Any], str]] = {
    "verdicts": (verdicts, "Whether each capture behaves as eager does."),
    "probes": (probes, "What each probe of the case found."),
    "speedup": (speedup, "How much faster each capture is than eager, measured in alternating rounds."),
    "coverage": (coverage, "How much of eager's work runs inside captured graphs."),
    "latency": (latency, "Every measured round of the case."),
}


def png(figure: Figure) -> bytes:
    """Return ``figure`` as a PNG that holds nothing but the picture."""
    from io import BytesIO

    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()
