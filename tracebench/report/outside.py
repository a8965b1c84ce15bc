"""What runs outside of graphs, as a small table under the main one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracebench.record import OutsideOp, Record
from tracebench.report import facts
from tracebench.report.text import cells, clean, grid, percent, plural, wrap

#: Rows that are shown of one case.
ROWS = 5


@dataclass(frozen=True)
class _Column:
    heading: str
    right: bool
    cell: Callable[[OutsideOp], str]


def _share(value: float | None) -> str:
    return "n/a" if value is None else percent(min(value, 1.0))


_COLUMNS = (
    _Column("op", False, lambda op: clean(op.op) + (" (backward)" if op.phase == "backward" else "")),
    _Column("module", False, lambda op: "-" if op.module is None else clean(op.module) or "(model)"),
    _Column("line", False, lambda op: clean(op.location or "-")),
    _Column("because of", False, lambda op: clean(op.reason or "-")),
    _Column("times", True, lambda op: str(op.count)),
    _Column("FLOP %", True, lambda op: _share(op.flops_share)),
    _Column("time %", True, lambda op: _share(op.time_share)),
)
#: What goes first where the width does not suffice: what the record's page tells, too.
_LEFT_OUT = ((), ("because of",), ("because of", "module"))


def ranked(record: Record) -> list[OutsideOp]:
    """Return the ops outside of graphs, those that take the most time first, then by FLOPs and number."""
    ops = record.coverage.outside if record.coverage else ()
    return sorted(ops, key=lambda op: (-(op.time_share or 0.0), -(op.flops or 0), -op.count))


def cells_of(op: OutsideOp) -> list[str]:
    """Return the cells of one row, in the order of ``headings``."""
    return [column.cell(op) for column in _COLUMNS]


def headings() -> list[str]:
    """Return the names of the columns."""
    return [column.heading for column in _COLUMNS]


def outside_table(records: Sequence[Record], naming: facts.Names, width: int) -> list[str]:
    """Return for each case with ops outside of graphs its top rows; a front end that captures nothing has none."""
    lines: list[str] = []
    for record in records:
        ops, cover = ranked(record), record.coverage
        if not ops or cover is None or record.case.get("frontend") == "eager":
            continue
        count = sum(op.count for op in ops)
        lines += wrap(f"{naming.full(record)}: {count} of {plural(cover.ops_total or count, 'op')}", width, "  ", "  ")
        lines += _rows(ops[:ROWS], width)
        rest = ops[ROWS:]
        if rest:
            times = [op.time_share for op in rest]
            spent = "" if None in times else f", {percent(min(sum(time or 0.0 for time in times), 1.0))} % of time"
            said = f"and {plural(sum(op.count for op in rest), 'op')} in {plural(len(rest), 'more row')}{spent}"
            lines += wrap(said, width, "    ", "    ")
    return ["outside the graph:", *lines] if lines else []


def _rows(ops: Sequence[OutsideOp], width: int) -> list[str]:
    """Return the rows in columns where they fit, else as text."""
    for left_out in _LEFT_OUT:
        columns = [column for column in _COLUMNS if column.heading not in left_out]
        rows = [[column.heading for column in columns], *([column.cell(op) for column in columns] for op in ops)]
        lines = grid(rows, "    ", [column.right for column in columns])
        if max(map(cells, lines)) <= width:
            return lines
    return [line for op in ops for line in wrap(_text(op), width, "    ", "      ")]


def _text(op: OutsideOp) -> str:
    name, module, line, reason, times, flops, time = cells_of(op)
    shares = [f"{share} % of {what}" for share, what in ((flops, "FLOPs"), (time, "time")) if share != "n/a"]
    return f"{name} x{times} in {module} at {line}, {reason}" + (f": {', '.join(shares)}" if shares else "")
