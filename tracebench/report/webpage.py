"""One self-contained page: the table, the plots, and all there is to know about each case.

Everything that comes from a record is escaped; nothing is fetched from elsewhere and no script runs.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tracebench.record import SPECIALISATIONS, Probe, Record, TimedInputs, Timing, Watched, to_dict
from tracebench.report import controls, facts, gains, outside, tally
from tracebench.report.columns import COLUMNS, beside
from tracebench.report.text import clean, milliseconds, percent, plural
from tracebench.status import OUTCOMES

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --page: #fff; --soft: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --faint: #9198a1; --line: #3d444d; --page: #0d1117; --soft: #151b23 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem } h3 { font-size: 1rem }
p { margin: .4rem 0 } .faint { color: var(--faint) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { font-weight: 600; white-space: nowrap } .number { text-align: right; white-space: nowrap }
.word { color: #000; border-radius: .25rem; padding: .05rem .45rem; white-space: nowrap }
figure { margin: 1.2rem 0 } img { max-width: 100%; background: #fff; border-radius: .4rem }
figcaption { color: var(--faint) } li { margin: .2rem 0; overflow-wrap: anywhere }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } pre { background: var(--soft); padding: .7rem; overflow-x: auto; font-size: .85rem;
  border-radius: .3rem } td { overflow-wrap: anywhere } .cases td { overflow-wrap: normal }
"""
_TABLE = (
    "op_coverage",
    "flop_coverage",
    "time_coverage",
    "graphs",
    "graph_breaks",
    "speedup",
    "eager_ms",
    "captured_ms",
    "samples_per_s_captured",
    "capture_s",
    "compile_cold_s",
    "compile_warm_s",
    "first_call_ms",
    "break_even_calls",
    "peak_memory_mb_eager",
    "peak_memory_mb_captured",
)
_HEADINGS = {
    "op_coverage": "op %",
    "flop_coverage": "FLOP %",
    "time_coverage": "time %",
    "graphs": "graphs",
    "graph_breaks": "breaks",
    "speedup": "speedup [interval]",
    "eager_ms": "eager ms",
    "captured_ms": "captured ms",
    "samples_per_s_captured": "samples/s",
    "capture_s": "capture s",
    "compile_cold_s": "cold compile s",
    "compile_warm_s": "warm compile s",
    "first_call_ms": "first call ms",
    "break_even_calls": "pays back after",
    "peak_memory_mb_eager": "eager peak MB",
    "peak_memory_mb_captured": "captured peak MB",
}


def page(
    records: Sequence[Record],
    title: str,
    plots: Mapping[str, tuple[bytes, str]] | None = None,
    problems: Sequence[str] = (),
) -> str:
    """Return the page for ``records``; ``plots`` are PNGs and captions by name."""
    naming = facts.names(records)
    reasons = [f"{naming.full(record)}: {reason}" for record in records if (reason := facts.why(record))]
    body = [
        f"<h1>{_e(title)}</h1>",
        f'<p class="faint">{_e(_header(records))}</p>',
        f"<p>{_e(facts.counts(records))}</p>",
        _section("Problems with this report", _bullets(problems)),
        _section("Cases", _cases(records, naming)),
        _section("Front-end cost and compiler gain", _gains(records)),
        _section("Why", _bullets(reasons)),
        _section("Unexpected", _bullets(facts.surprises(records, naming))),
        _section("By front end", _grid(*_tally(records))),
        _section("Agreement with what the model files expect", _bullets(facts.agreement(records))),
        _section("Geometric mean speedup", _bullets(facts.means(records))),
        _section("Plots", "".join(_plot(name, *plot) for name, plot in (plots or {}).items())),
        _section("Notes", _bullets(facts.shared_notes(records, naming))),
        _section("Each case in full", "".join(_details(record, naming) for record in records)),
        _section("Columns of summary.csv", _columns()),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _e(value: object) -> str:
    """Return ``value`` escaped; half surrogate pairs, which no file can hold, are replaced."""
    return escape(str(value)).encode("utf-8", "replace").decode("utf-8")


def _header(records: Sequence[Record]) -> str:
    """Return devices, versions and the time span of the cases."""
    versions = dict.fromkeys(
        f"{name} {found}"
        for name in ("torch", "torchvision", "python", "cuda")
        for record in records
        if (found := facts.environment(record, name))
    )
    dates = sorted(record.started_at for record in records)
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return " | ".join([facts.machine(records), *versions, span])


def _section(title: str, content: str) -> str:
    return f"<h2>{_e(title)}</h2>\n{content}" if content else ""


def _bullets(items: Iterable[object]) -> str:
    listed = "".join(f"<li>{_e(item)}</li>" for item in items)
    return f"<ul>{listed}</ul>" if listed else ""


def _word(record: Record) -> str:
    word = facts.word(record)
    return f'<span class="word" style="background:{word.colour}" title="{_e(word.meaning)}">{_e(word.name)}</span>'


def _cases(records: Sequence[Record], naming: facts.Names) -> str:
    shown = [name for name in _TABLE if any(COLUMNS[name].get(record) is not None for record in records)]
    heading = "".join(f"<th>{_e(name)}</th>" for name in ("model", "front end", "verdict"))
    titles = [_HEADINGS[name].replace("interval", facts.interval(records)) for name in shown]
    heading += "".join(f'<th class="number">{_e(title)}</th>' for title in titles)
    rows = []
    for record in records:
        figures = "".join(f'<td class="number">{_e(COLUMNS[name].cell(record))}</td>' for name in shown)
        link = f'<a href="#case-{_e(record.key)}">{_e(naming.row(record))}</a>'
        rows.append(f"<tr><td>{link}</td><td>{_e(naming.column(record))}</td><td>{_word(record)}</td>{figures}</tr>")
    marks = "-: not asked for; n/a: not applicable; n.s.: not significantly different from 1"
    meanings = [name for name in OUTCOMES if any(facts.word(record).name == name for record in records)]
    legend = "".join(f"<li>{_e(name)}: {_e(OUTCOMES[name].meaning)}</li>" for name in meanings)
    table = f'<div class="scroll cases"><table><tr>{heading}</tr>{"".join(rows)}</table></div>'
    return f'{table}<p class="faint">{marks}</p><ul class="faint">{legend}</ul>'


def _tally(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    rows = tally.grid(records)
    return (rows[0], rows[1:]) if rows else ([], [])


def _gains(records: Sequence[Record]) -> str:
    found = gains.gains(records)
    names = gains.naming(found)
    rows = [(names.full(gain.replay), *gains.cells_of(gain), "; ".join(gains.remarks(gain))) for gain in found]
    meaning = "cost: replay against eager; gain: the executor against replay; n.s.: not significantly different from 1"
    table = _grid(("case", *gains.HEADINGS, ""), rows)
    return f'{table}<p class="faint">{meaning}</p>' if table else ""


def _plot(name: str, picture: bytes, caption: str) -> str:
    data = base64.b64encode(picture).decode()
    return (
        f'<figure><img alt="{_e(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{_e(name)}: {_e(caption)}</figcaption></figure>\n"
    )


def _pairs(rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values without the values that are missing."""
    listed = "".join(f"<tr><th>{_e(name)}</th><td>{_e(value)}</td></tr>" for name, value in rows if value is not None)
    return f"<table>{listed}</table>" if listed else ""


def _grid(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    listed = "".join(
        "<tr>" + "".join(f"<td>{_e('' if cell is None else cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    titles = "".join(f"<th>{_e(name)}</th>" for name in heading)
    return f'<div class="scroll"><table><tr>{titles}</tr>{listed}</table></div>' if listed else ""


def _part(title: str, content: str) -> str:
    return f"<h3>{_e(title)}</h3>{content}" if content else ""


def _pre(text: str | None) -> str:
    return f"<pre>{_e(text)}</pre>" if text else ""


def _json(value: Any) -> str:
    return _pre(json.dumps(to_dict(value), indent=1, default=str)) if value else ""


def _details(record: Record, naming: facts.Names) -> str:
    """Return all there is to know about one case, folded away."""
    reason = facts.why(record)
    error = record.error
    parts = [
        f"<p>{_e(reason)}</p>" if reason else "",
        _part("Notes", _bullets([*facts.remarks(record), *record.notes])),
        _part("Probable cause", _cause(record)),
        _part("Probes", _probes(record.probes)),
        _part("Changes after capture", _probes(record.lifecycle)),
        _part("Error", _error(record)) if error else "",
        _part("Traceback", _pre(error.traceback)) if error else "",
        _part("Last output", _pre(error.log_tail)) if error else "",
        _part("Capture", _capture(record)),
        _part("Tapes, by the answers of their checks", _pre("\n".join(facts.tree(record)))),
        _part("Baked in as constants", _constants(record)),
        _part("Fixed on capture", _specialised(record)),
        _part("Left to Python", _grid(("module", "class", "at", "why"), _excluded(record))),
        _part("Graph breaks", _breaks(record)),
        _part("Coverage", _coverage(record)),
        _part("Controls, each without it -> with it", _grid((*controls.HEADINGS, "effect"), _controls(record))),
        _part("Throughput", _throughput(record)),
        _part("Timing warnings", _bullets(facts.timing_warnings(record))),
        _part("Seconds in each stage", _pairs((name, f"{seconds:.2f}") for name, seconds in _stages(record))),
        _part("Case", _json(record.case)),
        _part("Environment", _json(record.environment)),
    ]
    summary = f"<summary>{_word(record)} {_e(naming.full(record))}</summary>"
    file = f'<p class="faint">records/{_e(record.key)}.json, started {_e(record.started_at)}</p>'
    return f'<details id="case-{_e(record.key)}">{summary}{"".join(parts)}{file}</details>\n'


def _stages(record: Record) -> Iterable[tuple[str, float]]:
    return ((name, value) for name, value in record.stages.items() if isinstance(value, (int, float)))


def _probes(probes: Sequence[Probe] | None) -> str:
    rows = [
        (
            probe.name,
            probe.outcome,
            probe.detail,
            None if probe.max_error is None else f"{probe.max_error:.3g}",
            None if probe.bitwise is None else "yes" if probe.bitwise else "no",
        )
        for probe in probes or ()
    ]
    return _grid(("probe", "outcome", "detail", "largest error", "equal to the bit"), rows)


def _excluded(record: Record) -> list[tuple[Any, ...]]:
    excluded = record.capture.excluded if record.capture else ()
    return [(item.path or "(the whole model)", item.type, item.location, item.reason) for item in excluded]


def _cause(record: Record) -> str:
    found = record.explanation
    if found is None:
        return ""
    rows = [*((item.location, item.what) for item in found.suspects), ("what usually helps", found.advice or None)]
    return _pairs([*rows, ("note", found.note or None)])


def _error(record: Record) -> str:
    error = record.error
    if error is None:
        return ""
    said = _pairs(
        (
            ("stage", error.stage),
            ("type", error.type),
            ("at", error.user_location),
            ("signal", error.signal),
            ("exit code", error.exit_code),
        )
    )
    return said + _pre(error.message)


def _capture(record: Record) -> str:
    found = record.capture
    if found is None:
        return ""
    said = _pairs(
        (
            ("seconds", None if found.seconds is None else f"{found.seconds:.3g}"),
            ("graphs", found.graphs),
            ("nodes in each", ", ".join(map(str, found.graph_nodes)) or None),
            ("guards", found.guards),
            ("microseconds of guards a call", None if found.guard_us is None else f"{found.guard_us:.3g}"),
        )
    )
    recompiles = [f"recompiled: {reason}" for reason in found.recompiles]
    return said + _bullets([*recompiles, *(f"warning: {item}" for item in found.warnings)])


def _constants(record: Record) -> str:
    found = record.capture.constants if record.capture else ()
    rows = [
        (
            item.name,
            list(item.shape),
            item.dtype,
            math.prod(item.shape) if min(item.shape, default=0) >= 0 else None,
            item.bytes,
            item.location,
        )
        for item in found
    ]
    return _first(("name", "shape", "dtype", "elements", "bytes", "at"), rows)


def _specialised(record: Record) -> str:
    """Return what the capture fixed, in the order of the table of kinds."""
    found = (record.capture.specialised if record.capture else None) or ()
    kinds = [*SPECIALISATIONS, *(item.kind for item in found)]
    ranked = sorted(found, key=lambda item: kinds.index(item.kind))
    rows = [(item.kind, item.what, item.value, item.location, item.count) for item in ranked]
    meanings = "".join(
        f"<li>{_e(kind)}: {_e(meaning)}</li>"
        for kind, meaning in SPECIALISATIONS.items()
        if any(item.kind == kind for item in found)
    )
    legend = f'<ul class="faint">{meanings}</ul>' if meanings else ""
    return _first(("kind", "what", "fixed to", "at", "times"), rows) + legend


def _first(heading: Sequence[str], rows: Sequence[Sequence[object]], limit: int = 40) -> str:
    """Return the first rows as a table, and how many more there are."""
    more = f"<p>and {len(rows) - limit} more</p>" if len(rows) > limit else ""
    return _grid(heading, rows[:limit]) + more


def _breaks(record: Record) -> str:
    """Return the graph breaks, the dearest first; a link that is no plain address is text."""
    rows = []
    for found in facts.breaks(record):
        links = " ".join(
            f'<a href="{_e(link)}">{_e(link.rsplit("/", 1)[-1])}</a>' if link.startswith("https://") else _e(link)
            for link in found.links
        )
        figures = (
            found.count,
            found.ops,
            None if found.ms is None else f"{found.ms:.3g}",
            None if found.share is None else percent(min(found.share, 1.0)),
            found.reports,
        )
        texts = [_e(found.reason), _e(found.location or ""), *(_e("" if item is None else item) for item in figures)]
        rows.append([*texts, links, "<br>".join(map(_e, found.hints))])
    if not rows:
        return ""
    names = ("reason", "at", "times a call", "ops outside", "ms a call", "time %", "reports", "more", "hints")
    listed = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    titles = "".join(f"<th>{_e(name)}</th>" for name in names)
    return f'<div class="scroll"><table><tr>{titles}</tr>{listed}</table></div>'


def _coverage(record: Record) -> str:
    found = record.coverage
    if found is None:
        return ""
    shares = [
        (name, None if value is None else f"{percent(value)} %")
        for name, value in (("ops", found.ops), ("FLOPs", found.flops), ("time", found.time))
    ]
    said = _pairs(
        (
            *shares,
            ("ops in graphs", None if found.ops_total is None else f"{found.ops_in_graph} of {found.ops_total}"),
            ("graphs in one call", found.graphs_per_call),
            ("ops of eager that are not run", found.ops_missing or None),
            ("ops that eager does not run", found.ops_extra or None),
            ("ops without a FLOP formula", ", ".join(found.flops_unknown) or None),
            ("note", found.note),
        )
    )
    ops = outside.ranked(record)
    rows = [(*outside.cells_of(op), op.graph_break) for op in ops[:20]]
    more = f"<p>and {len(ops) - 20} more</p>" if len(ops) > 20 else ""
    unlike = [
        f"{op.op} x{op.count}{f' at {op.location}' if op.location else ''}: {said_of}"
        for counts, said_of in ((found.missing, "eager alone runs it"), (found.extra, "the capture alone runs it"))
        for op in counts[:20]
    ]
    heading = "<h4>Outside the graph</h4>" if rows else ""
    return said + _bullets(unlike) + heading + _grid((*outside.headings(), "break"), rows) + more


def _controls(record: Record) -> Iterable[Sequence[object]]:
    for item in record.controls:
        if item.without is None:
            cells = [f"{item.control}={item.target}", *[None] * (len(controls.HEADINGS) - 1)]
        else:
            cells = [*controls.cells_of(item, record)]
        changed = ", ".join(item.effect) if isinstance(item.effect, dict) else ""
        yield (*cells, "; ".join(filter(None, (changed, controls.outcome(item)))))


def _throughput(record: Record) -> str:
    found = record.throughput
    if found is None:
        return ""
    rows = [(name, *_timing(timing)) for name, timing in (("eager", found.eager), ("captured", found.captured))]
    names = ("", "median ms", "interquartile range ms", "rounds", "samples/s", "peak memory MB", "host ms", "kernels")
    more = (
        ("speedup", COLUMNS["speedup"].cell(record)),
        ("capture and compile, empty cache", _unit(found.compile_s.cold, "s")),
        ("capture and compile, filled cache", _unit(found.compile_s.warm, "s")),
        ("first call", _unit(found.first_call_ms, "ms")),
        ("calls until it has paid back", found.break_even_calls),
        ("optimizer", found.optimizer),
        ("inputs", _inputs(found.inputs)),
        ("clock", found.clock),
        *((item.name, _watched(item)) for item in found.watched),
    )
    return _grid(names, rows) + _pairs(more)


def _timing(timing: Timing) -> tuple[object, ...]:
    rounds = len(timing.samples_ms)
    median = None if timing.median_ms is None else milliseconds(timing.median_ms, timing.iqr_ms, rounds)
    figures = (timing.iqr_ms, rounds, timing.samples_per_s, timing.peak_memory_mb, timing.host_ms, timing.kernels)
    return (median, *(None if value is None else f"{value:.4g}" for value in figures))


def _inputs(inputs: TimedInputs | None) -> str | None:
    if inputs is None:
        return None
    cache = "" if inputs.cache_mb is None else f", last cache {inputs.cache_mb:.3g} MB"
    note = f" ({inputs.note})" if inputs.note else ""
    return f"{plural(inputs.sets, 'set')} in turn, {inputs.values}, {inputs.mb:.3g} MB{cache}{note}"


def _watched(watched: Watched) -> str:
    """Return what one monitor read before and after the rounds."""
    if not watched.before and not watched.after:
        return "cannot be read on this machine"
    names = dict.fromkeys([*watched.before, *watched.after])
    return ", ".join(
        f"{name} {_plain(watched.before.get(name))} -> {_plain(watched.after.get(name))}" for name in names
    )


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else clean(value)


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:.4g} {unit}"


def _columns() -> str:
    rows = [(column.name, column.unit, column.meaning) for column in (COLUMNS | beside([])).values()]
    return f"<details><summary>names, units, meanings</summary>{_grid(('column', 'unit', 'meaning'), rows)}</details>"


def page_title(name: str) -> str:
    """Return the title for the results folder ``name``."""
    return f"tracebench: {clean(name)}"
