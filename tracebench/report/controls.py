"""What each control did, as a small table under the main one: figures without it and with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tracebench.record import ControlEffect, Figures, Record
from tracebench.report import facts
from tracebench.report.text import cells, clean, clip, pad, percent, wrap

HEADINGS = ("control", "graphs", "breaks", "op %", "FLOP %", "verdict", "speedup")
#: What goes first where the width does not suffice: what the record's page tells, too.
_LEFT_OUT = ((), ("breaks",), ("breaks", "graphs"))


def given(record: Record) -> Figures:
    """Return the figures of the case itself, in the form of those without a control."""
    captured = record.capture if record.verdict != "refused" else None
    return Figures(
        verdict=record.verdict,
        graphs=captured.graphs if captured else None,
        graph_breaks=len(facts.breaks(record)) if captured else None,
        op_coverage=record.coverage.ops if record.coverage else None,
        flop_coverage=record.coverage.flops if record.coverage else None,
        speedup=record.throughput.speedup if record.throughput else None,
    )


def cells_of(effect: ControlEffect, record: Record) -> list[str]:
    """Return the cells of one row, in the order of ``HEADINGS``; what is the same on both sides stands alone."""
    before, after = effect.without or Figures(), given(record)
    sides = [
        (_count(before.graphs), _count(after.graphs)),
        (_count(before.graph_breaks), _count(after.graph_breaks)),
        (_share(before.op_coverage), _share(after.op_coverage)),
        (_share(before.flop_coverage), _share(after.flop_coverage)),
        (before.verdict or "n/a", after.verdict or "n/a"),
    ]
    return [
        f"{clean(effect.control)}={clean(effect.target)}",
        *(_sides(*pair) for pair in sides),
        _speed(effect, after),
    ]


def outcome(effect: ControlEffect) -> str | None:
    """Return what is to be said of a control beside its figures, or None."""
    detail = clean(effect.detail)
    if effect.effect == "none":
        return "no effect" + (f": {detail}" if detail else "")
    if effect.effect is None:
        return "effect not measured" + (f": {detail}" if detail else "")
    return detail or None


def summary(record: Record) -> str | None:
    """Return what the controls of a case did in a line, or None if it has none."""
    said = []
    for effect in record.controls:
        changed = effect.effect if isinstance(effect.effect, dict) else {}
        told = [f"{clean(name)} {_plain(pair)}" for name, pair in changed.items()]
        said.append(f"{clean(effect.control)}={clean(effect.target)}: {', '.join(told) or outcome(effect)}")
    return " | ".join(said) or None


def controls_table(records: Sequence[Record], naming: facts.Names, width: int) -> list[str]:
    """Return for each case that has controls what each of them did."""
    controlled = [record for record in records if record.controls]
    shown = [
        [cells_of(effect, record) for effect in record.controls if effect.without and effect.effect != "none"]
        for record in controlled
    ]
    heading, blocks = _columns(shown, width)
    lines: list[str] = []
    for record, block in zip(controlled, blocks, strict=True):
        lines += [*wrap(naming.full(record), width, "  ", "  "), *block]
        for effect in record.controls:
            if said := outcome(effect):
                name = f"{clean(effect.control)}={clean(effect.target)}"
                lines += wrap(f"{name}: {clip(said, 300)}", width, "    ", "      ")
    unclear = "; n.s.: the intervals overlap" if any(row[-1].endswith("n.s.") for rows in shown for row in rows) else ""
    title = wrap(f"controls, each without it -> with it{unclear}:", width)
    return [*title, *heading, *lines] if lines else []


def _columns(blocks: Sequence[Sequence[Sequence[str]]], width: int) -> tuple[list[str], list[list[str]]]:
    """Return a heading and the lines of each block: columns where they fit, else text without a heading."""
    rows = [row for block in blocks for row in block]
    if not rows:
        return [], [[] for _ in blocks]
    for left_out in _LEFT_OUT:
        kept = [index for index, name in enumerate(HEADINGS) if name not in left_out]
        # A figure that nobody asked for has no column.
        kept = [index for index in kept if any(row[index] != "n/a" for row in rows)]
        widths = {index: max(cells(row[index]) for row in (HEADINGS, *rows)) for index in kept}
        if 4 + sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            return [_line(HEADINGS, widths)], [[_line(row, widths) for row in block] for block in blocks]
    told = [[wrap(_text(row), width, "    ", "      ") for row in block] for block in blocks]
    return [], [[line for lines in block for line in lines] for block in told]


def _line(row: Sequence[str], widths: Mapping[int, int]) -> str:
    return "    " + "  ".join(pad(row[index], wide) for index, wide in widths.items()).rstrip()


def _text(row: Sequence[str]) -> str:
    told = [f"{name} {cell}" for name, cell in zip(HEADINGS, row, strict=True) if cell != "n/a"]
    return f"{row[0]}: {', '.join(told[1:])}"


def _sides(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def _count(value: int | None) -> str:
    return "n/a" if value is None else str(value)


def _share(value: float | None) -> str:
    return "n/a" if value is None else percent(value)


def _speed(effect: ControlEffect, after: Figures) -> str:
    """Return the two ratios; ``n.s.`` where their intervals overlap."""
    before = effect.without.speedup if effect.without else None
    ratios = [side.ratio if side else None for side in (before, after.speedup)]
    if None in ratios:
        return "n/a"
    clear = isinstance(effect.effect, dict) and "speedup" in effect.effect
    return f"{ratios[0]:.2f}x -> {ratios[1]:.2f}x" + ("" if clear else " n.s.")


def _plain(pair: object) -> str:
    if not isinstance(pair, (list, tuple)):
        return clean(pair)
    return " -> ".join(f"{value:.4g}" if isinstance(value, float) else clean(value) for value in pair)


def by_setting(records: Sequence[Record]) -> dict[tuple[str, str], list[tuple[str, Record]]]:
    """Return the cases of each model and front end with the names of their controls, where there are several."""
    plain = [dataclasses.replace(record, case={**record.case, "controls": {}}) for record in records]
    naming = facts.names(plain)
    found: dict[tuple[str, str], list[tuple[str, Record]]] = {}
    for record, same in zip(records, plain, strict=True):
        line = (naming.row(same), naming.column(same))
        found.setdefault(line, []).append((facts.controls(record.case), record))
    return {line: cases for line, cases in found.items() if len({name for name, _ in cases}) > 1}
