"""What the front end costs and what a compiler brings, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.gains import Factor, gains, naming
from tracebench.report.plots.bars import Bar
from tracebench.report.plots.drawing import frontend_colours
from tracebench.report.plots.speedups import ratios
from tracebench.report.text import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gain_bars(records: Sequence[Record]) -> list[Bar]:
    """Return for each front end of a model a bar for its cost, and one for the gain of each executor beside replay."""
    found = gains(records)
    names = naming(found)
    bars = []
    before = None
    for gain in found:
        column = names.column(gain.replay)
        if before is not gain.replay:
            bars.append(_bar(gain.replay, names, f"{column}: cost", gain.cost))
            before = gain.replay
        bars.append(_bar(gain.record, names, f"{column}: {facts.executor(gain.record.case)}", gain.gain, gain.replay))
    return bars


def _bar(record: Record, names: facts.Names, name: str, factor: Factor | None, replay: Record | None = None) -> Bar:
    group, frontend = names.row(replay or record), clean(record.case.get("frontend") or "")
    word = facts.word(record).name
    if factor is None:
        label = word if word not in (*facts.USABLE, "no verdict") else "not measured"
        return Bar(group, name, frontend, word, (None,), label)
    label = f"{str(factor).split(' ')[0]}" + (" n.s." if factor.significant is False else "")
    label += "" if word in (*facts.USABLE, "no verdict") else f" ({word})"
    interval = None if factor.low is None or factor.high is None else (factor.low, factor.high)
    faint = factor.significant is False
    return Bar(group, name, frontend, word, (factor.value,), label, interval=interval, faint=faint)


def gained(records: Sequence[Record]) -> Figure | None:
    """Draw front-end cost and compiler gain; None where no case ran under replay and under another executor."""
    bars = gain_bars(records)
    title = f"Front-end cost and compiler gain on {facts.machine(records)}"
    subtitle = (
        "Cost: time of the graphs as captured / eager time; above 1 is slower. The others: speedup with that executor /"
        f" speedup with replay; above 1 is faster. {facts.interval(records)}, logarithmic axis. Hatched, n.s.: not"
        " significantly different from 1."
    )
    return ratios(bars, frontend_colours(records), title, subtitle, "ratio")
