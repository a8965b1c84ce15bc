"""Plots of records. Each has a pure function that prepares what it shows, and one that draws it.

A drawing function returns None where the records have nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracebench.record import Record
from tracebench.report.plots.batches import batch_curves, batches
from tracebench.report.plots.costs import break_even, compile_time, costs
from tracebench.report.plots.coverages import coverage, coverage_bars, outside, outside_bars
from tracebench.report.plots.drawing import FRONTEND_COLOURS, frontend_colours, short
from tracebench.report.plots.gained import gain_bars, gained
from tracebench.report.plots.roofs import roofline, roofs
from tracebench.report.plots.rounds import latency, latency_samples
from tracebench.report.plots.settings import controls, setting_lines
from tracebench.report.plots.speedups import speedup, speedup_bars, ticks
from tracebench.report.plots.verdicts import probes, verdict_grid, verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FRONTEND_COLOURS",
    "PLOTS",
    "batch_curves",
    "batches",
    "break_even",
    "compile_time",
    "controls",
    "costs",
    "coverage",
    "coverage_bars",
    "frontend_colours",
    "gain_bars",
    "gained",
    "latency",
    "latency_samples",
    "outside",
    "outside_bars",
    "png",
    "probes",
    "roofline",
    "roofs",
    "setting_lines",
    "short",
    "speedup",
    "speedup_bars",
    "ticks",
    "verdict_grid",
    "verdicts",
]

#: Every plot, by the name of its file.
PLOTS: dict[str, tuple[Callable[[Sequence[Record]], Any], str]] = {
    "verdicts": (verdicts, "Whether each capture behaves as eager does."),
    "probes": (probes, "What each probe of the case found."),
    "speedup": (speedup, "How much faster each capture is than eager, measured in alternating rounds."),
    "gains": (gained, "What each front end costs and what a compiler brings on top of it."),
    "compile_time": (compile_time, "What compiling costs, against what it brings."),
    "break_even": (break_even, "After how many calls compiling has paid for itself."),
    "coverage": (coverage, "How much of eager's work runs inside captured graphs."),
    "outside": (outside, "What keeps ops outside of graphs: the share of each reason."),
    "controls": (controls, "What each setting of the controls costs in coverage and brings in speed."),
    "batches": (batches, "How many samples a second eager and each capture do, by batch size."),
    "roofline": (roofline, "How near each case comes to what its device can do."),
    "latency": (latency, "Every measured round of the case."),
}


def png(figure: Figure) -> bytes:
    """Return ``figure`` as a PNG that holds nothing but the picture."""
    from io import BytesIO

    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()
