"""What a capture costs before it is faster, and in memory: a small table under the main one, for compiled cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.columns import COLUMNS
from tracebench.report.text import aligned, cells, clip

#: Column of ``COLUMNS`` -> its heading in two lines.
_SHOWN = {
    "capture_s": ("capture", "s"),
    "compile_cold_s": ("compile", "cold s"),
    "compile_warm_s": ("", "warm s"),
    "first_call_ms": ("first", "call ms"),
    "break_even_calls": ("pays back", "after calls"),
    "peak_memory_mb_eager": ("peak MB", "eager"),
    "peak_memory_mb_captured": ("", "captured"),
}
#: What goes first where the width does not suffice.
_LEFT_OUT = (
    (),
    ("peak_memory_mb_eager", "peak_memory_mb_captured"),
    ("first_call_ms",),
    ("capture_s",),
    ("compile_warm_s",),
)
#: A name may be cut to so many cells rather than another column go.
_SHORTEST_NAME = 32


def costs_table(records: Sequence[Record], naming: facts.Names, width: int) -> list[str]:
    """Return the table of the cases whose compile time was taken; nothing where there is none, or no room."""
    compiled = [record for record in records if record.throughput and record.throughput.compile_s.cold is not None]
    if not compiled:
        return []
    names = [naming.full(record) for record in compiled]
    shown = list(_SHOWN)
    for left_out in _LEFT_OUT:
        shown = [name for name in shown if name not in left_out]
        room = width - max(map(cells, _lines(compiled, [""] * len(names), shown)))
        if room >= min(_SHORTEST_NAME, max(map(cells, names))):
            return ["costs:", *_lines(compiled, [clip(name, room) for name in names], shown)]
    return []


def _lines(records: Sequence[Record], names: Sequence[str], shown: Sequence[str]) -> list[str]:
    columns = [[*_SHOWN[name], *(_cell(name, record) for record in records)] for name in shown]
    return aligned(list(zip(["", "", *names], *columns, strict=True)))


def _cell(name: str, record: Record) -> str:
    value = COLUMNS[name].get(record)
    if value is None and name == "break_even_calls" and record.throughput is not None:
        found = record.throughput.speedup
        return "n.s." if not found.significant else "never" if found.ratio < 1 else "n/a"
    digits: Callable[[float], str] = "{:.1f}".format if name != "break_even_calls" else "{:,.0f}".format
    return COLUMNS[name].cell(record) if value is None else digits(value)
