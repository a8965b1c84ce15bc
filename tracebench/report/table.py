"""The table on the terminal: one row a case, then why a case is not sound, what to know, means and counts.

No line is longer than the width asked for. Columns are left out, and named, before a figure is cut short.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.columns import COLUMNS
from tracebench.report.controls import controls_table
from tracebench.report.costs import costs_table
from tracebench.report.gains import gains_table
from tracebench.report.outside import outside_table
from tracebench.report.tally import tally_table
from tracebench.report.text import cells, clean, pad, plural, some, wrap
from tracebench.status import OUTCOMES
from tracebench.timingwords import KINDS, kind_of

MIN_WIDTH = 40
MAX_WIDTH = 100


@dataclass(frozen=True)
class _Shown:
    """A column of the terminal table: its heading in up to two lines and how its cells are made."""

    name: str
    heading: tuple[str, str]
    right: bool
    cell: Callable[[Record, facts.Names], str]


def _figure(name: str, top: str, bottom: str, right: bool = True) -> _Shown:
    return _Shown(name, (top, bottom), right, lambda record, naming: COLUMNS[name].cell(record))


def _graphs(record: Record) -> str:
    graphs, breaks = COLUMNS["graphs"].cell(record), COLUMNS["graph_breaks"].cell(record)
    return graphs if graphs == breaks and record.capture is None else f"{graphs} ({breaks})"


_COLUMNS = (
    _Shown("model", ("", "model"), False, lambda record, naming: naming.row(record)),
    _Shown("frontend", ("", "front end"), False, lambda record, naming: naming.column(record)),
    _Shown("outcome", ("", "verdict"), False, lambda record, naming: facts.word(record).name),
    _figure("op_coverage", "op", "%"),
    _figure("flop_coverage", "FLOP", "%"),
    _figure("time_coverage", "time", "%"),
    _Shown("graphs", ("graphs", "(breaks)"), True, lambda record, naming: _graphs(record)),
    _figure("speedup", "speedup", "[interval]", right=False),
    _figure("eager_ms", "eager", "ms"),
    _figure("captured_ms", "captured", "ms"),
)
#: What is left out, step by step, where the width does not suffice.
_LEFT_OUT = (
    (),
    ("time_coverage",),
    ("eager_ms", "captured_ms"),
    ("graphs",),
    ("flop_coverage",),
    ("op_coverage",),
    ("speedup",),
)
#: Columns whose cells may wrap, and the width they should keep.
_WRAPPED = {"model": 14, "frontend": 10, "outcome": 10}


def terminal_width() -> int:
    """Return the width to print at: the terminal's, but no more than 100."""
    return min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)


def use_colour(stream: TextIO) -> bool:
    """Return whether to colour what is printed to ``stream``: a terminal, and NO_COLOR unset or empty."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render_table(records: Sequence[Record], width: int = MAX_WIDTH, colour: bool = False) -> str:
    """Return what is printed for ``records``. No line takes more than ``width`` (at least 40) terminal cells."""
    if not records:
        return "no records"
    width = max(width, MIN_WIDTH)
    naming = facts.names(records)
    blocks = [
        wrap(_heading(records), width),
        _grid(records, naming, width, colour),
        gains_table(records, width),
        costs_table(records, naming, width),
        controls_table(records, naming, width),
        outside_table(records, naming, width),
        _why(records, naming, width),
        _tree(records, width),
        _list("notes", _notes(records, naming), width),
        _list(*_timing(records, naming), width),
        _list("unexpected", facts.surprises(records, naming), width),
        tally_table(records, width),
        _list("agreement with what the model files expect", facts.agreement(records), width),
        _list("geometric mean speedup", facts.means(records), width),
        wrap(facts.counts(records), width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _heading(records: Sequence[Record]) -> str:
    """Return the line that says what all rows have in common."""
    torch = sorted({found for record in records if (found := facts.environment(record, "torch"))})
    parts = [facts.machine(records), *(f"torch {version}" for version in torch)]
    for axis, said in (("executor", "executor {}"), ("dtype", "{}"), ("mode", "{}"), ("batch_size", "batch {}")):
        value = facts.shared(records, axis)
        if value is not None:
            parts.append(said.format(value))
    return " | ".join(parts)


def _grid(records: Sequence[Record], naming: facts.Names, width: int, colour: bool) -> list[str]:
    rows = [{column.name: column.cell(record, naming) for column in _COLUMNS} for record in records]
    interval = facts.interval(records)
    headings = {
        column.name: tuple(line.replace("interval", interval) for line in column.heading) for column in _COLUMNS
    }
    natural = {
        column.name: max(*map(cells, headings[column.name]), *(cells(row[column.name]) for row in rows))
        for column in _COLUMNS
        # A column that nobody asked for tells nothing, nor does one that no case could be measured for.
        if any(row[column.name] != "-" for row in rows)
        and (column.name != "time_coverage" or any(row[column.name] not in ("-", "n/a") for row in rows))
    }
    shown, widths, gap = _fit(natural, width)
    lines = [
        gap.join(pad(headings[column.name][line], widths[column.name], column.right) for column in shown)
        for line in (0, 1)
    ]
    lines = [line.rstrip() for line in lines if line.strip()]
    lines.append(gap.join("-" * widths[column.name] for column in shown))
    for record, row in zip(records, rows, strict=True):
        lines += _row(record, row, shown, widths, gap, colour)
    said = {value for row in rows for name, value in row.items() if name in natural and name not in _WRAPPED}
    out = [
        " ".join(filter(None, column.heading)).replace("[interval]", "").strip()
        for column in _COLUMNS
        if column.name in natural and column not in shown
    ]
    for line in _legend(said, out):
        lines += wrap(line, width)
    return lines


def _fit(natural: dict[str, int], width: int) -> tuple[list[_Shown], dict[str, int], str]:
    """Return the columns that fit, their widths and the gap between them."""
    left_out: set[str] = set()
    for step in _LEFT_OUT:
        left_out.update(step)
        shown = [column for column in _COLUMNS if column.name in natural and column.name not in left_out]
        rigid = sum(natural[column.name] for column in shown if column.name not in _WRAPPED)
        wanted = {name: min(natural[name], least) for name, least in _WRAPPED.items()}
        for gap in ("  ", " "):
            spare = width - rigid - len(gap) * (len(shown) - 1) - sum(wanted.values())
            enough = spare >= 0 if gap == " " else spare >= sum(natural[name] - wanted[name] for name in wanted)
            if enough:
                break
        if enough:
            break
    widths = dict(natural)
    for name in ("outcome", "frontend", "model"):
        more = min(spare, natural[name] - wanted[name])
        widths[name] = wanted[name] + more
        spare -= more
    return shown, widths, gap


def _row(
    record: Record, row: dict[str, str], shown: list[_Shown], widths: dict[str, int], gap: str, colour: bool
) -> list[str]:
    """Return the lines of one case; a long name goes on below."""
    wrapped = {
        column.name: wrap(row[column.name], widths[column.name]) if column.name in _WRAPPED else [row[column.name]]
        for column in shown
    }
    lines = []
    for index in range(max(map(len, wrapped.values()))):
        parts = []
        for column in shown:
            found = wrapped[column.name]
            part = found[index] if index < len(found) else ""
            padded = pad(part, widths[column.name], column.right)
            if colour and part and column.name == "outcome":
                padded = padded.replace(part, paint(part, facts.word(record).colour), 1)
            parts.append(padded)
        lines.append(gap.join(parts).rstrip())
    return lines


def paint(text: str, colour: str) -> str:
    """Return ``text`` in black on the nearest of a terminal's 256 colours to the hex RGB ``colour``."""
    levels = (0, 95, 135, 175, 215, 255)
    values = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    red, green, blue = (min(range(6), key=lambda index: abs(levels[index] - value)) for value in values)
    return f"\x1b[30;48;5;{16 + 36 * red + 6 * green + blue}m{text}\x1b[0m"


def _legend(said: set[str], left_out: list[str]) -> list[str]:
    """Return what the marks in the table mean, for those that appear."""
    marks = [
        ("-", "- not asked for"),
        ("n/a", "n/a not applicable"),
    ]
    parts = [text for mark, text in marks if mark in said]
    if any(value.endswith("n.s.") for value in said):
        parts.append("n.s. not significantly different from 1")
    lines = [f"({'; '.join(parts)})"] if parts else []
    if left_out:
        lines.append(f"(left out at this width: {', '.join(left_out)}; summary.csv has them)")
    return lines


def _list(title: str, items: Sequence[str], width: int) -> list[str]:
    """Return a titled list, each item wrapped under itself; nothing if there are no items."""
    if not items:
        return []
    return [f"{title}:", *(line for item in items for line in wrap(item, width, "  ", "      "))]


def _why(records: Sequence[Record], naming: facts.Names, width: int) -> list[str]:
    lines = []
    for record in records:
        for index, reason in enumerate(facts.reasons(record)):
            # Files below the folder where one stands are named from there.
            said = reason.replace(f"{Path.cwd()}{os.sep}", "")
            if index == 0:
                lines += wrap(f"{naming.full(record)}: {said}", width, "  ", "      ")
            else:
                lines += wrap(said, width, "    - ", "      ")
    return ["why:", *lines] if lines else []


def _tree(records: Sequence[Record], width: int) -> list[str]:
    """Return how the tapes of a case that stands alone branch."""
    lines = facts.tree(records[0]) if len(records) == 1 else ()
    if not lines:
        return []
    found = ["tapes, by the answers of their checks:"]
    for line in lines:
        text = line.lstrip(" ").replace(f"{Path.cwd()}{os.sep}", "")
        indent = " " * min(2 + len(line) - len(line.lstrip(" ")), width // 2)
        found += wrap(text, width, indent, f"{indent}    ")
    return found


def _notes(records: Sequence[Record], naming: facts.Names) -> list[str]:
    notes = [f"{naming.full(record)}: {'; '.join(said)}" for record in records if (said := facts.remarks(record))]
    notes += [f"{naming.full(record)}: {told}" for record in records if (told := facts.lifecycle(record))]
    notes += facts.shared_notes(records, naming)
    refused = [record for record in records if facts.could_exclude(record)]
    if refused:
        notes.append(
            f"{plural(len(refused), 'refusal')} of fx and jit_trace: frontend.on_refusal=exclude leaves to Python what "
            "refuses and captures the rest"
        )
    if any(facts.word(record).name == "no verdict" and record.probes is None for record in records):
        notes.append(f"no verdict: {OUTCOMES['no verdict'].meaning}")
    return notes


def _timing(records: Sequence[Record], naming: facts.Names) -> tuple[str, list[str]]:
    """Return a title and the timing warnings in short: each kind once, with its cases and what to do."""
    measured = [naming.full(record) for record in records if record.throughput is not None]
    holders: dict[str, list[str]] = {}
    others: list[str] = []
    for record in records:
        unknown = []
        for warning in facts.timing_warnings(record):
            kind = kind_of(warning)
            if kind is None:
                unknown.append(clean(warning))
            else:
                holders.setdefault(kind, []).append(naming.full(record))
        if unknown:
            others.append(f"{naming.full(record)}: {some(unknown, 3, 'warning')}")
    said = []
    for kind, advice in KINDS.items():
        cases = list(dict.fromkeys(holders.get(kind, ())))
        if cases:
            whole = len(cases) > 3 and len(cases) == len(measured)
            named = f"all {len(cases)} cases" if whole else some(cases, 3, "case", ", ")
            said.append(f"{kind}: {named}; {advice}")
    return "timing warnings (in full on the page)" if said else "timing warnings", [*said, *others]
