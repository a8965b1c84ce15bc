"""The rounds of a single case, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.columns import COLUMNS
from tracebench.report.plots.drawing import (
    FONT,
    GRID,
    INK,
    MARKER,
    OTHER_COLOURS,
    bare,
    frontend_colours,
    heading_height,
    new_axes,
    new_figure,
    titles,
)
from tracebench.report.text import clean, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    heading = heading_height(title, subtitle, 7.4)
    figure = new_figure(7.4, heading + 3.6)
    titles(figure, title, subtitle)
    axes = new_axes(figure, 0.75, heading, 5.1, 2.95)
    frontend = clean(records[0].case.get("frontend") or "")
    colours = {"eager": "#7F7F7F", "captured": frontend_colours(records)[frontend]}
    if frontend == "eager":
        colours["captured"] = OTHER_COLOURS[0]
    markers = {"eager": "o", "captured": "D"}
    medians = {"eager": timings.eager.median_ms, "captured": timings.captured.median_ms}
    for name, values in samples.items():
        rounds_shown = range(1, len(values) + 1)
        axes.plot(rounds_shown, values, markers[name], color=colours[name], **MARKER)
        axes.axhline(medians[name], color=colours[name], linewidth=1)
    everything = [value for values in samples.values() for value in values]
    margin = 0.08 * (max(everything) - min(everything)) or 0.05 * max(everything) or 1
    axes.set_ylim(min(everything) - margin, max(everything) + margin)
    for name, place in _label_places(medians, 0.075 * (max(everything) - min(everything) + 2 * margin)).items():
        label = f"{name} {COLUMNS[f'{name}_ms'].cell(records[0])} ms"
        beside = axes.get_yaxis_transform()
        axes.text(1.04, place, label, transform=beside, va="center_baseline", fontsize=FONT, color=INK)
        axes.plot([1.02], [place], markers[name], transform=beside, color=colours[name], clip_on=False, **MARKER)
    axes.set_xlabel("round", fontsize=FONT, color=INK)
    axes.set_ylabel("time per call (ms)", fontsize=FONT, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bare(axes)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    return figure


def _label_places(medians: dict[str, float], apart: float) -> dict[str, float]:
    """Return heights for the labels, near the medians but at least ``apart``."""
    (low, below), (high, above) = sorted(medians.items(), key=lambda item: item[1])
    lack = max(0.0, apart - (above - below)) / 2
    return {low: below - lack, high: above + lack}
