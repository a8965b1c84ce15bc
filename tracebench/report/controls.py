"""What each control did, as a small table under the main one: figures without it and with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
    lines: list[str] = []
    for record in records:
        if not record.controls:
            continue
        lines += wrap(naming.full(record), width, "  ", "  ")
        shown = [effect for effect in record.controls if effect.without is not None and effect.effect != "none"]
        lines += _rows([cells_of(effect, record) for effect in shown], width)
        for effect in record.controls:
            if said := outcome(effect):
                name = f"{clean(effect.control)}={clean(effect.target)}"
                lines += wrap(f"{name}: {clip(said, 300)}", width, "    ", "      ")
    return ["controls, each without it -> with it:", *lines] if lines else []


def _rows(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the rows in columns where they fit, else as text."""
    if not rows:
        return []
    for left_out in _LEFT_OUT:
        kept = [index for index, name in enumerate(HEADINGS) if name not in left_out]
        # A figure that nobody asked for has no column.
        kept = [index for index in kept if any(row[index] != "n/a" for row in rows)]
        grid = [[row[index] for index in kept] for row in (HEADINGS, *rows)]
        widths = [max(cells(row[place]) for row in grid) for place in range(len(kept))]
        if 4 + sum(widths) + 2 * (len(widths) - 1) <= width:
            return ["    " + "  ".join(map(pad, row, widths)).rstrip() for row in grid]
    told = (
        f"{row[0]}: " + ", ".join(f"{name} {cell}" for name, cell in zip(HEADINGS[1:], row[1:], strict=True))
        for row in rows
    )
    return [line for text in told for line in wrap(text, width, "    ", "      ")]


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
