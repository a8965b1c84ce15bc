"""What all plots share: colours, text that fits, figures and axes measured in inches.

Sizes are worked out from the number of rows and columns and the lengths of labels, so that text keeps its size from one
case to hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tracebench.record import Record
from tracebench.report.text import clean

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
OTHER_COLOURS = ("#56B4E9", "#D55E00", "#B8A900", "#000000")
INK, FAINT, GRID = "#222222", "#6b7280", "#d8dbe0"
MARKER: dict[str, Any] = {"markersize": 5, "markerfacecolor": "none", "markeredgewidth": 1.2}
LINE = 0.2  # inches from one line of text to the next
FONT = 9
#: No figure is taller than this in inches: Agg has a limit, and so has a reader.
_TALLEST = 400.0


def frontend_colours(records: Sequence[Record]) -> dict[str, str]:
    """Return a colour for each front end of ``records``, the same for known ones everywhere."""
    found = dict.fromkeys(clean(record.case.get("frontend") or "") for record in records)
    others = sorted(name for name in found if name not in FRONTEND_COLOURS)
    colours = {name: FRONTEND_COLOURS[name] for name in found if name in FRONTEND_COLOURS}
    return colours | {name: OTHER_COLOURS[index % len(OTHER_COLOURS)] for index, name in enumerate(others)}


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib import font_manager, ft2font

    return frozenset(ft2font.FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap())


def plain(text: str) -> str:
    """Return ``text`` with nothing in it that the font lacks or that would be read as a formula."""
    known = "".join(char if ord(char) in _glyphs() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return known.replace("$", r"\$")


def short(text: str, limit: int) -> str:
    """Return ``text`` with its middle left out if it is longer than ``limit``: names often differ at the end."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - tail :]}"


def inches(text: str, size: float = FONT) -> float:
    """Return about how wide ``text`` is drawn; rather too much than too little."""
    return len(text) * size * 0.64 / 72


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, min(height, _TALLEST)), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Return axes at a place given in inches from the top left corner."""
    whole_width, whole_height = figure.get_size_inches()
    scale = whole_height / max(whole_height, top + height)
    bottom = whole_height - (top + height) * scale
    return figure.add_axes(
        (left / whole_width, bottom / whole_height, width / whole_width, height * scale / whole_height)
    )


def write(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Write ``text`` with its top left corner at a place given in inches."""
    width, height = figure.get_size_inches()
    style = {"va": "top", "ha": "left", "fontsize": FONT, "color": INK, **style}
    figure.text(left / width, 1 - top / height, plain(text), **style)


def folded(text: str, width: float, size: float = FONT) -> list[str]:
    """Return ``text`` in lines that fit into ``width`` inches."""
    from tracebench.report.text import wrap

    return wrap(text, max(10, int(width / inches("x", size))))


def titles(figure: Figure, title: str, subtitle: str) -> float:
    """Write a title and below it what the figures mean; return where the plot may begin, in inches."""
    width = figure.get_size_inches()[0] - 0.3
    top = 0.12
    for line in folded(title, width, 12):
        write(figure, 0.15, top, line, fontsize=12, fontweight="bold")
        top += 0.24
    for line in folded(subtitle, width):
        write(figure, 0.15, top, line, color=FAINT)
        top += LINE
    return top + 0.12


def bare(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=FONT, labelcolor=INK)


def heading_height(title: str, subtitle: str, width: float) -> float:
    return 0.24 * len(folded(title, width - 0.3, 12)) + LINE * len(folded(subtitle, width - 0.3)) + 0.24


def panels(names: Sequence[str], title: str, subtitle: str, key: Sequence[Any]) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes for each of ``names``, one below the other, and the legend ``key`` beside the first."""
    left, body_width = 0.95, 4.6
    width = left + body_width + 0.75 + max(inches(handle.get_label()) for handle in key)
    heading = heading_height(title, subtitle, width)
    panel, below = max(2.4, (0.23 * len(key) + 0.2) / len(names)), 0.62
    figure = new_figure(width, heading + len(names) * (0.25 + panel + below) + 0.1)
    titles(figure, title, subtitle)
    found = []
    for index, name in enumerate(names):
        top = heading + 0.25 + index * (0.25 + panel + below)
        write(figure, 0.15, top - 0.23, short(name, int((width - 0.3) / inches("x"))), fontweight="bold")
        axes = new_axes(figure, left, top, body_width, panel)
        bare(axes)
        axes.grid(color=GRID, linewidth=0.7, zorder=0)
        axes.set_axisbelow(True)
        if index == 0:
            axes.legend(handles=key, loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=FONT, frameon=False)
        found.append(axes)
    return figure, found


#: Ticks of a logarithmic axis within a power of ten, from many to few.
_STEPS = ((1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
_MOST_TICKS = 7


def log_axis(axes: Axes, which: str, values: Sequence[float], places: Sequence[float] = ()) -> None:
    """Make an axis logarithmic, with a margin around positive ``values``, and ticks at ``places`` or plain numbers."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    margin = max((max(values) / min(values)) ** 0.07, 1.05)
    low, high = min(values) / margin, max(values) * margin
    shown = list(places)
    for bases in () if places else _STEPS:
        shown = [base * 10.0**power for power in range(-15, 19) for base in bases if low <= base * 10.0**power <= high]
        if len(shown) <= _MOST_TICKS:
            break
    if not shown:  # the axis spans less than a step: its middle, in three digits
        shown = [float(f"{math.sqrt(low * high):.3g}")]
    shown = shown[:: 1 + (len(shown) - 1) // _MOST_TICKS]
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_locator(FixedLocator(shown))
    axis.set_major_formatter(FixedFormatter([f"{place:g}" if place < 1e5 else f"{place:.0e}" for place in shown]))
    axis.set_minor_locator(NullLocator())
