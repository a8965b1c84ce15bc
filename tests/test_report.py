"""The report: every outcome is shown everywhere, nothing missing becomes a number, nothing is lost or too wide."""

from __future__ import annotations

import csv
import dataclasses
import html.parser
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracebench.errors import RequestError
from tracebench.record import (
    CaptureInfo,
    CompileSeconds,
    GraphBreak,
    OpCount,
    OutsideOp,
    Record,
    TimedInputs,
    Watched,
    save,
)
from tracebench.report import (
    Report,
    build,
    columns,
    facts,
    frame,
    load_records,
    plots,
    render_table,
    tally,
    text,
    webpage,
)
from tracebench.report.__main__ import main
from tracebench.report.plots.costs import span, total_time
from tracebench.report.webpage import page
from tracebench.status import OUTCOMES

from . import records as make


def folder_of(records: list[Record], folder: Path) -> Path:
    for record in records:
        save(record, folder / "records")
    return folder


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = folder_of(make.every_ending(), tmp_path_factory.mktemp("results") / "every")
    return folder, build(folder)


# --- the package -----------------------------------------------------------------------------------------------------


def test_importing_the_report_imports_nothing_heavy() -> None:
    code = (
        "import sys, tracebench.report, tracebench.report.__main__\n"
        "print([name for name in ('torch', 'hydra', 'pandas', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_report_is_made_without_torch_and_hydra(tmp_path: Path) -> None:
    folder = folder_of([make.record()], tmp_path / "run")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['hydra'] = None\n"
        "from tracebench.report.__main__ import main; sys.exit(main([sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- every outcome, everywhere ---------------------------------------------------------------------------------------


def test_there_is_a_record_for_every_outcome() -> None:
    assert set(make.ENDINGS) == set(OUTCOMES)


@pytest.mark.parametrize("ending", make.ENDINGS)
def test_each_outcome_is_shown_everywhere(ending: str, everything: tuple[Path, Report]) -> None:
    folder, report = everything
    model = f"model_{ending.replace(' ', '_')}"
    assert re.search(rf"^{model} +fx +{ending} ", report.table, re.MULTILINE)
    rows = list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text())))
    assert [row["outcome"] for row in rows if row["model"] == model] == [ending]
    assert plots.verdict_grid(report.records).words[model, "fx"] == ending
    assert [bar.outcome for bar in plots.speedup_bars(report.records) if bar.group == model] == [ending]
    assert [bar.outcome for bar in plots.coverage_bars(report.records) if bar.group == model] == [ending]
    assert f">{ending}</span> fx on {model}</summary>" in (folder / "report.html").read_text()


def test_the_count_line_adds_up() -> None:
    records = [make.record(ending="sound"), make.record("b"), make.record("c", ending="crashed")]
    assert render_table(records).splitlines()[-1] == "3 cases: 2 sound, 1 crashed"
    assert render_table(records[:1]).splitlines()[-1] == "1 case: 1 sound"


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        ("refused", "fx on m: refused: TypeError: expected Tensor, got dict at torchvision/models/detection/x.py:93"),
        ("restricted", "fx on m: restricted: raises on batch size 3: RuntimeError: shape [3, 4] is not [2, 4]"),
        ("crashed", "fx on m: crashed in stage reference: exit code 3; last output: last words"),
        ("timeout", "fx on m: timeout in stage capture: Timeout: no result after 300 s"),
        ("oom", "fx on m: oom in stage throughput: OutOfMemoryError: tried to allocate 3 GiB"),
        ("error", "fx on m: error in stage load: ImportError: no module named 'nowhere' at my_model.py:3"),
    ],
)
def test_the_table_says_why(ending: str, line: str) -> None:
    shown = render_table([make.record("m", "fx", ending)], 400)
    assert f"  {line}" in shown.splitlines()


def test_silent_differences_come_before_loud_ones() -> None:
    why = facts.why(make.record(ending="unsound"))
    assert why is not None
    assert why.startswith(
        "unsound: differs on several calls: output[0]: call 2 differs by 0.25; raises on batch size 3"
    )


def test_a_signal_is_named() -> None:
    record = make.record(ending="crashed")
    assert record.error is not None
    record = dataclasses.replace(record, error=dataclasses.replace(record.error, signal="SIGSEGV", exit_code=None))
    assert "crashed in stage reference: SIGSEGV" in render_table([record])


def test_sound_cases_have_no_why() -> None:
    assert "why:" not in render_table([make.record(), make.record("b")])


# --- missing stays missing -------------------------------------------------------------------------------------------


def test_a_refused_case_has_no_throughput_and_no_coverage() -> None:
    row = frame([make.record(ending="refused")]).iloc[0]
    assert (row["op_coverage"], row["flop_coverage"]) == (0, 0)
    for name in ("speedup", "eager_ms", "captured_ms", "graphs", "significant", "probes_match"):
        assert columns.COLUMNS[name].get(make.record(ending="refused")) is None
        assert row.isna()[name]


def test_missing_is_an_empty_field_in_the_csv(tmp_path: Path) -> None:
    folder = folder_of([make.record(throughput=None), make.record("b", ending="timeout")], tmp_path)
    build(folder)
    for row in csv.DictReader(io.StringIO((folder / "summary.csv").read_text())):
        assert all(row[name] == "" for name in ("speedup", "eager_ms", "captured_ms", "break_even_calls"))


def test_not_asked_for_and_not_applicable_differ() -> None:
    unasked = make.record(throughput=None, config={"stages": ["soundness", "coverage"]})
    inapplicable = make.record(throughput=None)
    speedup = columns.COLUMNS["speedup"]
    assert (speedup.cell(unasked), speedup.cell(inapplicable)) == ("-", "n/a")
    assert speedup.cell(make.record(ending="refused")) == "n/a"
    assert speedup.cell(make.record(throughput=None, config={}, stages={"capture": 1.0})) == "-"
    assert columns.COLUMNS["op_coverage"].cell(make.record(ending="refused")) == "0"


def test_a_frame_of_bare_records_is_all_missing() -> None:
    bare = Record("k", "2026-01-01", 1.0, {}, "done")
    row = frame([bare]).iloc[0]
    present = {"outcome", "status", "started_at", "wall_s", "key"}
    assert set(row.index[row.notna()]) == present
    assert "(unnamed model)" in render_table([bare])
    assert webpage.page([bare], "t")


def test_the_frame_has_the_columns_of_the_table_of_columns() -> None:
    found = frame(make.sweep(2))
    names = [*columns.COLUMNS, *columns.beside([])]
    assert list(found.columns) == names
    assert len(found) == 8
    assert found["op_coverage"].dtype == "float64"
    assert str(found["graphs"].dtype) == "Int64"
    assert list(frame([]).columns) == names


def test_figures_that_are_null_in_a_file_do_no_harm(tmp_path: Path) -> None:
    folder = folder_of([make.record(throughput=make.throughput(math.nan, eager=math.nan))], tmp_path)
    report = build(folder)
    assert report.problems == []
    assert plots.latency_samples(report.records) == {}


# --- means -----------------------------------------------------------------------------------------------------------


def test_the_geometric_mean_is_over_usable_cases_only() -> None:
    records = [
        make.record("a", "fx", "sound", 2.0),
        make.record("b", "fx", "restricted", 8.0),
        make.record("c", "fx", "unsound", 100.0),
        make.record("d", "fx", "refused"),
        make.record("a", "hook", "sound", 3.0),
    ]
    assert facts.geometric_means(records) == [facts.Mean("fx with replay", pytest.approx(4.0), 2, 4)]
    assert "fx with replay: 4.00x (2 of 4 cases" in render_table(records)


def test_means_do_not_mix_training_and_inference() -> None:
    records = [make.record(f"m{index}", "fx", mode=mode) for index in range(2) for mode in ("training", "inference")]
    groups = [mean.group for mean in facts.geometric_means(records)]
    assert groups == ["fx with replay training", "fx with replay inference"]


# --- by front end ----------------------------------------------------------------------------------------------------


def test_the_tally_counts_what_each_front_end_captures() -> None:
    endings = {"hook": ("sound", "restricted", "refused"), "fx": ("unsound", "refused", "timeout")}
    records = [make.record(f"m{i}", name, end) for name, ends in endings.items() for i, end in enumerate(ends)]
    records.append(make.record("m0", "eager"))
    found = {one.group: (one.cases, one.captured, one.usable) for one in tally.tallies(records)}
    assert found == {"hook": (3, 2, 2), "fx": (3, 1, 0)}
    table = render_table(records)
    heading = "front end  cases  captured  never silently wrong  sound  restricted  unsound  refused  timeout"
    assert heading in table
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert "hook 3 2 2 1 1 0 1 0" in lines
    assert "fx 3 1 0 0 0 1 1 1" in lines
    assert "By front end" in webpage.page(records, "title")


def test_the_tally_does_not_mix_settings_and_is_left_out_where_it_compares_nothing() -> None:
    records = [make.record(f"m{i}", "fx", mode=mode) for i in range(2) for mode in ("training", "inference")]
    assert [(one.group, one.cases) for one in tally.tallies(records)] == [("fx, training", 2), ("fx, inference", 2)]
    assert tally.tallies([make.record("m", name) for name in ("fx", "hook")]) == []
    assert tally.tallies([make.record(f"m{i}", "fx") for i in range(2)]) == []


# --- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "low", "high", "significant", "shown"),
    [
        (1.32, 1.28, 1.36, True, "1.32x [1.28, 1.36]"),
        (1.01, 0.99, 1.03, False, "1.01x [0.99, 1.03] n.s."),
        (1.4567, 1.1, 1.9, True, "1.5x [1.1, 1.9]"),
        (1.021, 1.0023, 1.041, True, "1.021x [1.002, 1.041]"),
        (1.5, None, None, None, "1.50x"),
    ],
)
def test_speedups_have_the_digits_that_can_be_trusted(
    value: float, low: float, high: float, significant: bool, shown: str
) -> None:
    assert text.ratio(value, low, high, significant) == shown


@pytest.mark.parametrize(
    ("median", "iqr", "count", "shown"),
    [(12.3456, 0.02, 9, "12.35"), (12.3456, 3.0, 9, "12"), (1234.5, 1.0, 4, "1234"), (0.012341, 0.0, 9, "0.01234")],
)
def test_latencies_have_the_digits_that_can_be_trusted(median: float, iqr: float, count: int, shown: str) -> None:
    assert text.milliseconds(median, iqr, count) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"), [(1.0, "100"), (0.99999, "99.9"), (0.0, "0"), (1e-6, "<0.1"), (0.5, "50.0"), (0.29, "29.0")]
)
def test_percentages_do_not_round_to_all_or_nothing(fraction: float, shown: str) -> None:
    assert text.percent(fraction) == shown


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [100, 80, 60, 40])
@pytest.mark.parametrize("models", [1, 3, 30])
def test_no_line_is_wider_than_the_width(width: int, models: int) -> None:
    records = make.sweep(models) + make.sweep(models, executor="inductor", mode="training") + make.every_ending()
    shown = render_table(records, width)
    assert max(text.cells(line) for line in shown.splitlines()) <= width


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=4),
    st.sampled_from(make.ENDINGS),
    st.integers(40, 120),
    st.floats(1e-9, 1e9),
)
@example(["", "00\u2427"], "sound", 56, 1.0)
def test_no_name_or_message_breaks_the_table(names: list[str], ending: str, width: int, ratio: float) -> None:
    records = [
        make.record(name, "front" + name, ending, ratio, notes=(name,), controls={"disable": [name]}, batch_size=index)
        for index, name in enumerate(names)
    ]
    shown = render_table(facts.order(records), width)
    assert max(text.cells(line) for line in shown.split("\n")) <= width
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u2028]", shown)


@given(st.text(), st.integers(4, 50))
def test_wrapping_loses_nothing(message: str, width: int) -> None:
    flat = text.clean(message)
    lines = text.wrap(flat, width)
    assert "".join("".join(lines).split()) == "".join(flat.split())
    assert all(text.cells(line) <= width for line in lines)


def test_wide_characters_count_twice() -> None:
    assert text.cells("模型") == 4
    assert text.cells("e\N{COMBINING ACUTE ACCENT}") == 1
    assert text.clip("模型模型", 8) == "模型模型"
    assert text.clip("模型模型", 7) == "模型..."


def test_what_all_cases_share_is_said_once() -> None:
    table = render_table([make.record("a"), make.record("b")])
    assert table.splitlines()[0] == (
        "cuda (NVIDIA H200) | torch 2.14.0 | executor replay | float32 | inference | batch 8"
    )
    assert table.count("replay") == 1 + table.count("with replay")


def test_what_differs_is_said_in_the_rows() -> None:
    options = [make.record("a", options={"depth": depth}) for depth in (1, 2)]
    table = render_table([*options, make.record("b", executor="inductor"), make.record("b", dtype="bfloat16")])
    for row in ("a(depth=1), replay", "a(depth=2), replay", "b, inductor", "b, replay, bfloat16"):
        assert re.search(rf"^{re.escape(row)}", table, re.MULTILINE)
    assert "executor" not in table.splitlines()[0]


def test_only_options_that_differ_are_named() -> None:
    def of(**options: Any) -> Record:
        return make.record("m", "hook", frontend_options=options)

    records = [of(on="raise", limit=16), of(on="retrace", limit=16), of(on="retrace", limit=16, more=None)]
    naming = facts.names(records)
    assert [naming.column(one) for one in records] == [
        "hook(on=raise)",
        "hook(on=retrace)",
        "hook(on=retrace more=None)",
    ]
    assert facts.names(records[:1]).column(records[0]) == "hook"


def test_a_case_that_failed_before_its_device_was_known_does_not_split_the_table() -> None:
    early = make.record("b", ending="crashed", device="auto", dtype="auto", mode="auto", environment={})
    table = render_table([make.record("a"), early])
    assert table.splitlines()[0].startswith("cuda (NVIDIA H200) | torch 2.14.0 | executor replay | float32 | inference")
    assert "auto" not in table


def test_columns_left_out_are_named() -> None:
    table = render_table(make.sweep(4), 80)
    assert "left out at this width" in table
    assert "eager ms, captured ms" in table


def test_graph_breaks_are_told_with_their_places() -> None:
    record = make.record(ending="restricted")
    assert record.capture is not None
    many = tuple(GraphBreak(f"reason {index}", f"m.py:{index}") for index in range(5))
    capture = dataclasses.replace(record.capture, graph_breaks=many, graphs=6)
    shown = render_table([dataclasses.replace(record, capture=capture)], 400)
    told = "reason 0 at m.py:0; reason 1 at m.py:1; reason 2 at m.py:2; and 2 more breaks"
    assert f"6 graphs; breaks: {told}" in shown
    assert "3 graphs; breaks: print(...) at my_model.py:12 (2 times a call); item() at my_model.py:20" in render_table(
        [record], 400
    )


def test_breaks_are_ranked_by_what_they_cost() -> None:
    record = make.record(ending="restricted")
    assert record.capture is not None
    cheap, dear = (
        GraphBreak("cheap", "m.py:1", 3, ms=0.1, share=0.01),
        GraphBreak("dear", "m.py:2", 1, 2, ops=4, ms=2.0),
    )
    dear = dataclasses.replace(dear, share=0.2, hints=("do not",), links=("https://site/gb1.html",))
    capture = dataclasses.replace(record.capture, graph_breaks=(cheap, dear), graphs=3, guard_us=12.0)
    record = dataclasses.replace(record, capture=capture)
    told = "dear at m.py:2 (4 ops outside, 20.0 % of its time); cheap at m.py:1 (3 times a call, 1.0 % of its time)"
    assert f"breaks: {told}" in render_table([record], 400)
    shown = webpage.page([record], "title")
    assert '<a href="https://site/gb1.html">gb1.html</a>' in shown
    assert "do not" in shown


def test_the_tapes_of_a_case_that_stands_alone_are_shown() -> None:
    tree = ("forward (12 ops)", "  x.sum() > 0 at net.py:14", "    True: 5 ops, return, 2 calls", " " * 60 + "deep <b>")
    record = make.record("m", "hook", capture=CaptureInfo(1.0, 3, tree=tree))
    shown = render_table([record], 60)
    assert "checks:\n  forward (12 ops)\n    x.sum() > 0 at net.py:14\n      True: 5 ops, return, 2 calls\n" in shown
    assert max(map(len, shown.splitlines())) <= 60
    assert "tapes, by" not in render_table([record, make.record("other")], 60)
    assert "tapes, by" not in render_table([make.record("m", "hook")], 60)
    page = webpage.page([record], "title")
    assert "<pre>forward (12 ops)\n  x.sum() &gt; 0 at net.py:14\n" in page
    assert "deep &lt;b&gt;" in page


def test_links_of_a_record_that_are_no_web_addresses_are_text() -> None:
    record = make.record(ending="restricted")
    assert record.capture is not None
    odd = dataclasses.replace(record.capture, graph_breaks=(GraphBreak("r", "m.py:1", links=("javascript:x",)),))
    assert '<a href="javascript' not in webpage.page([dataclasses.replace(record, capture=odd)], "title")


def outside_record(*ops: OutsideOp, **changes: Any) -> Record:
    """Return a record of 40 ops, some of them outside of graphs."""
    record = make.record(ending="restricted", **changes)
    assert record.coverage is not None
    return dataclasses.replace(record, coverage=dataclasses.replace(record.coverage, outside=ops))


def test_ops_outside_the_graph_have_a_table() -> None:
    ops = [
        OutsideOp("aten.mm", f"m.py:{line}", 2, "layer4.1.conv2", "forward", "graph break", "m.py:9", 8, 0.25, 1.5, 0.5)
        for line in range(6)
    ]
    shown = render_table([outside_record(*ops)], 120)
    assert "outside the graph:\n  dynamo on resnet50: 12 of 40 ops\n" in shown
    assert "    op       module          line    because of   times  FLOP %  time %\n" in shown
    assert "    aten.mm  layer4.1.conv2  m.py:0  graph break      2    25.0    50.0\n" in shown
    assert "and 2 ops in 1 more row, 50.0 % of time" in shown
    narrow = render_table([outside_record(*ops)], 44)
    assert max(map(len, narrow.splitlines())) <= 44
    assert "outside the graph" not in render_table([outside_record(*ops, frontend="eager")], 120)
    assert "outside the graph" not in render_table([outside_record()], 120)


def test_ops_that_only_one_side_runs_are_told() -> None:
    record = make.record()
    assert record.coverage is not None
    counts = {"missing": (OpCount("aten.randn", 12, "m.py:1"),), "extra": (OpCount("aten.clone", 1),)}
    record = dataclasses.replace(record, coverage=dataclasses.replace(record.coverage, **counts))
    shown = render_table([record], 400)
    assert "12 ops of eager are not run (aten.randn x12)" in shown
    assert "1 op is run that eager does not run (aten.clone x1)" in shown


def test_the_parts_outside_of_graphs_add_up() -> None:
    ops = (
        OutsideOp("aten.mm", "m.py:1", 6, reason="graph break", time_share=0.2),
        OutsideOp("aten.mm", "m.py:2", 4, reason="no graph", time_share=0.2),
    )
    record = outside_record(*ops)
    assert record.coverage is not None
    record = dataclasses.replace(record, coverage=dataclasses.replace(record.coverage, time=0.5))
    [found] = plots.outside_bars([record])
    assert found.ops == pytest.approx((0.75, 0.15, 0.0, 0.1, 0.0))
    assert found.time == pytest.approx((0.5, 0.25, 0.0, 0.25, 0.0))
    assert plots.outside([make.record()]) is None


def test_breaks_count_by_distinct_place() -> None:
    record = make.record(ending="restricted")
    assert record.capture is not None
    twice = (GraphBreak("a", "m.py:1", 2), GraphBreak("b", "m.py:1"), GraphBreak("a", None))
    record = dataclasses.replace(record, capture=dataclasses.replace(record.capture, graph_breaks=twice))
    assert columns.COLUMNS["graph_breaks"].get(record) == 2
    assert facts.breaks(record)[0] == GraphBreak("a; b", "m.py:1", 2)


def test_controls_without_effect_and_warnings_are_told() -> None:
    record = make.record(throughput=make.throughput(1.2, warnings=("an old record's: iqr is 20 %", "another")))
    record = dataclasses.replace(record, controls=(make.control("none"), make.control({"graphs": 2})))
    shown = render_table([record], 200)
    assert "disable=layer4.1: no effect: no module of that name" in shown
    assert shown.count("no effect") == 1
    assert "timing warnings:\n  dynamo on resnet50: an old record's: iqr is 20 %; another" in shown


def test_timing_warnings_are_short_in_the_table_and_whole_on_the_page() -> None:
    full = ("noisy (eager): half of the rounds <spread>", "noisy (captured): half of the rounds spread")
    records = [make.record(name, throughput=make.throughput(1.2, warnings=full)) for name in "abcde"]
    records[0] = make.record("a", throughput=make.throughput(1.2, warnings=(*full, "busy machine: 0.8 of 2 cores")))
    shown = render_table(records, 200)
    [title, first, second] = shown[shown.index("timing warnings") :].splitlines()[:3]
    assert title == "timing warnings (in full on the page):"
    assert first == "  noisy: all 5 cases; fewer jobs at once, or raise throughput.seconds"
    assert second == "  busy machine: dynamo on a; leave the machine to this run, then measure again"
    assert "half of the rounds" not in shown
    content = page(records, "title")
    assert "noisy (eager): half of the rounds &lt;spread&gt;" in content
    assert "busy machine: 0.8 of 2 cores" in content


def costly(ratio: float, cold: float | None, **changes: Any) -> Record:
    """Return a record whose compile time was taken."""
    measured = make.throughput(ratio, eager=20.0)
    times = CompileSeconds(cold, None if cold is None else cold / 4)
    calls = round(cold * 1e3 / (20 - 20 / ratio)) if cold and measured.speedup.significant and ratio > 1 else None
    measured = dataclasses.replace(measured, compile_s=times, break_even_calls=calls)
    return make.record(throughput=measured, executor="inductor", **changes)


def test_costs_are_a_table_of_the_cases_that_compile() -> None:
    records = [
        costly(2.0, 30.0),
        costly(1.0, 40.0, frontend="fx"),
        costly(0.5, 50.0, frontend="hook"),
        costly(2.0, None, model="replayed"),
    ]
    lines = render_table(records, 100).split("costs:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["dynamo", "on", "resnet50", "1.2", "30.0", "7.5", "3400.0", "3,000", "512.0", "512.0"],
        ["fx", "on", "resnet50", "1.2", "40.0", "10.0", "3400.0", "n.s.", "512.0", "512.0"],
        ["hook", "on", "resnet50", "1.2", "50.0", "12.5", "3400.0", "never", "512.0", "512.0"],
    ]
    narrow = render_table(records, 60).split("costs:\n")[1].split("\n\n")[0]
    assert max(map(len, narrow.splitlines())) <= 60
    assert "pays back" in narrow
    assert "costs:" not in render_table([costly(2.0, None)])


def test_names_in_the_table_of_costs_are_cut_after_the_memory_goes() -> None:
    names = ["a_model_of_a_rather_long_name, first", "a_model_of_a_rather_long_name, second"]
    told = render_table([costly(2.0, 30.0, model=name) for name in names], 100).split("costs:\n")[1].split("\n\n")[0]
    assert all(f"dynamo on {name} " in told for name in names)
    assert "peak MB" not in told


def test_what_the_plots_of_costs_show() -> None:
    found = plots.costs([costly(2.0, 30.0), costly(1.0, 40.0, frontend="fx"), costly(2.0, None, model="b")])
    assert [(cost.frontend, cost.cold_s, cost.calls, cost.significant) for cost in found] == [
        ("dynamo", 30.0, 3000, True),
        ("fx", 40.0, None, False),
    ]
    low, high = span(found)
    assert low < 1500
    assert high > 3000
    # Where it has paid back, compiling and calls take together what eager's calls take.
    _, (at_3000, *_) = total_time(found[0], 3000, high)
    assert at_3000 == pytest.approx(1.0)
    assert plots.compile_time([costly(2.0, None)]) is None
    assert plots.break_even([costly(2.0, None)]) is None


def test_intervals_are_called_what_they_are() -> None:
    new = make.throughput(1.2)
    new = dataclasses.replace(new, speedup=dataclasses.replace(new.speedup, confidence=0.99))
    assert "[95 % interval]" in render_table([make.record()])
    assert "[99 % interval]" in render_table([make.record(throughput=new)])
    assert "[interval]" in render_table([make.record(), make.record("b", throughput=new)])


def test_the_page_tells_how_it_was_measured() -> None:
    measured = dataclasses.replace(
        make.throughput(1.2),
        inputs=TimedInputs(3, 1.5, 33.0, "copies", "for reasons"),
        optimizer="sgd",
        watched=(Watched("processor clock", {"mhz": 3000.0}, {"mhz": 2500.0}), Watched("other processes")),
    )
    content = page([make.record(throughput=measured)], "title")
    assert "3 sets in turn, copies, 1.5 MB, last cache 33 MB (for reasons)" in content
    assert "mhz 3000 -&gt; 2500" in content
    assert "cannot be read on this machine" in content
    assert "<th>optimizer</th><td>sgd</td>" in content


def test_equal_notes_are_told_once() -> None:
    note = "does not follow: train/eval"
    records = [make.record(name, "jit_trace", notes=(note,)) for name in "abcde"]
    shown = render_table(records, 200)
    assert shown.count(note) == 1
    assert f"jit_trace on a, jit_trace on b, jit_trace on c, and 2 more cases: {note}" in shown


def test_colour_changes_nothing_but_colour() -> None:
    records = make.every_ending()
    plain, coloured = render_table(records), render_table(records, colour=True)
    assert "\x1b[" not in plain
    assert coloured.count("\x1b[0m") == len(records)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_no_records_is_no_table() -> None:
    assert render_table([]) == "no records"


# --- loading ---------------------------------------------------------------------------------------------------------


def test_broken_files_are_named_and_the_others_shown(tmp_path: Path) -> None:
    folder = folder_of([make.record()], tmp_path)
    good = next((folder / "records").glob("*.json")).read_text()
    wrong = {**json.loads(good), "status": "great"}
    mistyped = json.loads(good)
    mistyped["throughput"]["speedup"]["ratio"] = "fast"
    broken = {
        "truncated": good[: len(good) // 2],
        "list": "[]",
        "other": '{"a": 1}',
        "empty": "",
        "status": json.dumps(wrong),
        "mistyped": json.dumps(mistyped),
    }
    for name, content in broken.items():
        (folder / "records" / f"{name}.json").write_text(content)
    (folder / "records" / "binary.json").write_bytes(b"\xff\xfe\x00")
    records, problems = load_records(folder)
    assert len(records) == 1
    assert len(problems) == len(broken) + 1
    for name in [*broken, "binary"]:
        assert sum(f"{name}.json" in problem for problem in problems) == 1
    assert any("throughput.speedup.ratio should be float, not str" in problem for problem in problems)
    assert "1 case: 1 sound" in build(folder).table


def test_the_newest_record_of_a_case_is_shown(tmp_path: Path) -> None:
    old = make.record(ending="crashed", key="a" * 16, started_at="2026-01-01T00:00:00")
    new = make.record(ending="sound", key="b" * 16, started_at="2026-01-02T00:00:00")
    for records in ([old, new], [new, old]):
        found, problems = load_records(folder_of(records, tmp_path))
        assert found == [new]
        assert problems == ["1 older record of the same cases not shown: the newest of each case is"]


def test_the_order_does_not_depend_on_file_names(tmp_path: Path) -> None:
    records = make.sweep(3)
    found, _ = load_records(folder_of(records, tmp_path))
    assert found == facts.order(reversed(records))
    assert [record.case["frontend"] for record in found[:4]] == list(make.FRONTENDS)


def test_a_missing_folder_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="python -m tracebench "):
        load_records(tmp_path / "nowhere")
    (tmp_path / "records").mkdir()
    with pytest.raises(RequestError, match="python -m tracebench "):
        build(tmp_path)


#: Plots of sweeps that those of this file are not.
SPECIAL = ("controls", "gains", "batches", "roofline")

# --- plots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [0, 3, 30])
@pytest.mark.parametrize("name", list(plots.PLOTS))
def test_every_plot_draws_for_few_and_many_cases(name: str, models: int) -> None:
    records = make.sweep(models) if models else [make.record("swin_" * 20, ending="unsound", ratio=1.005)]
    figure = plots.PLOTS[name][0](records)
    if (name in ("probes", "latency") and models) or (name == "verdicts" and not models) or name in SPECIAL:
        assert figure is None
        return
    picture = plots.png(figure)
    assert picture.startswith(b"\x89PNG")
    assert len(_colours(picture)) > 5
    assert_inside(figure)


def _colours(picture: bytes) -> set[tuple[float, ...]]:
    import matplotlib.image

    pixels = matplotlib.image.imread(io.BytesIO(picture))
    return {tuple(pixel) for pixel in pixels.reshape(-1, pixels.shape[-1])[::7].round(2).tolist()}


def assert_inside(figure) -> None:  # type: ignore[no-untyped-def]
    """Check that no text leaves the figure and that no two texts overlap."""
    import matplotlib.text

    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    drawn = [item for item in figure.findobj(matplotlib.text.Text) if item.get_visible() and item.get_text()]
    boxes = [(item.get_text(), item.get_window_extent(renderer)) for item in drawn]
    width, height = figure.canvas.get_width_height()
    for said, box in boxes:
        assert box.x0 >= 0, said
        assert box.y0 >= 0, said
        assert box.x1 <= width, said
        assert box.y1 <= height, said
    for index, (said, box) in enumerate(boxes):
        for other, against in boxes[index + 1 :]:
            apart = box.x1 <= against.x0 + 1 or against.x1 <= box.x0 + 1
            apart = apart or box.y1 <= against.y0 + 3 or against.y1 <= box.y0 + 3
            assert apart, (said, other)


@pytest.mark.parametrize("model", ["模型 $x_1$ $", "a$b", "\x07\x1b[31m", "<script>"])
@pytest.mark.parametrize("name", list(plots.PLOTS))
def test_odd_names_draw_without_warnings(name: str, model: str) -> None:
    for records in ([make.record(model)], [make.record(model), make.record(model, model, "error")]):
        figure = plots.PLOTS[name][0](records)
        if figure is not None:
            assert plots.png(figure)


@pytest.mark.parametrize("models", [1, 30])
def test_the_plot_of_gains_draws_for_few_and_many_cases(models: int) -> None:
    records = [record for name in ("replay", "inductor") for record in make.sweep(models, executor=name)]
    figure = plots.gained(records)
    assert figure is not None
    assert len(_colours(plots.png(figure))) > 5
    assert_inside(figure)


def test_plots_of_nothing_are_none() -> None:
    records = [make.record("a", ending="crashed"), make.record("b", ending="timeout")]
    assert plots.speedup(records) is None
    assert plots.coverage(records) is None
    assert plots.verdicts(records) is not None
    assert all(draw(records[:1]) is None for draw, _ in plots.PLOTS.values())


def test_no_case_hides_another_in_the_grid() -> None:
    records = [make.record(executor=executor) for executor in ("replay", "inductor")]
    grid = plots.verdict_grid([*records, dataclasses.replace(records[0], verdict="unsound")])
    assert len(grid.words) == 3
    assert set(grid.rows) == {"resnet50, replay", "resnet50, replay #2", "resnet50, inductor"}


def test_bars_show_what_is_missing() -> None:
    bars = {bar.outcome: bar for bar in plots.speedup_bars(make.every_ending())}
    assert (bars["refused"].values, bars["refused"].label) == ((None,), "refused")
    assert bars["unsound"].label == "1.32x (unsound)"
    assert bars["sound"].interval == (pytest.approx(1.2804), pytest.approx(1.3596))
    unasked = make.record(throughput=None, config={"stages": ["soundness"]})
    assert plots.speedup_bars([unasked])[0].label == "not measured"
    coverage = {bar.outcome: bar for bar in plots.coverage_bars(make.every_ending())}
    assert (coverage["refused"].values, coverage["refused"].label) == ((0.0, 0.0), "op 0 %, FLOP 0 %")
    assert (coverage["crashed"].values, coverage["crashed"].label) == ((None, None), "op n/a, FLOP n/a")


def test_insignificant_bars_are_marked() -> None:
    (bar,) = plots.speedup_bars([make.record(ratio=1.005)])
    assert bar.faint
    assert bar.label == "1.00x n.s."


def test_front_ends_keep_their_colours() -> None:
    one = plots.frontend_colours([make.record(frontend="fx")])
    more = plots.frontend_colours([make.record(frontend=name) for name in ("mine", "fx", "yours")])
    assert one["fx"] == more["fx"] == plots.FRONTEND_COLOURS["fx"]
    assert len(set(more.values())) == 3


@given(st.floats(1e-6, 0.99), st.floats(1.01, 1e6))
def test_axes_of_ratios_have_a_few_round_ticks_and_one_of_them_is_1(low: float, high: float) -> None:
    found = plots.ticks(low, high)
    assert 1.0 in found
    assert 1 <= len(found) <= 14
    assert all(low <= value <= high for value in found)


# --- the page --------------------------------------------------------------------------------------------------------


class _Tags(html.parser.HTMLParser):
    """Checks that tags are balanced and collects what a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_escapes_all_it_shows_and_fetches_nothing(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    record = make.record(evil, evil, "unsound", options={"a": evil}, notes=(evil,), environment={"torch": evil})
    refused = make.record(evil, "fx", "refused")
    assert refused.error is not None
    error = dataclasses.replace(refused.error, message=evil, type=evil, traceback=evil, log_tail=evil)
    folder = folder_of([record, dataclasses.replace(refused, error=error)], tmp_path / "<b>")
    build(folder)
    tags = _Tags()
    tags.feed((folder / "report.html").read_text())
    assert tags.open == []
    assert not {"script", "link", "b"} & set(tags.seen)
    assert tags.links
    assert all(link.startswith(("data:image/png;base64,", "#case-")) for link in tags.links)


def test_the_page_has_the_details(everything: tuple[Path, Report]) -> None:
    content = (everything[0] / "report.html").read_text()
    for said in ("Traceback\n &lt;x&gt;", "line 1\nlast words", "output[0]: call 2 differs by 0.25", "NVIDIA H200"):
        assert said in content
    assert content.count("<img ") == 5
    assert content.count('<details id="case-') == len(make.ENDINGS)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(make.sweep(2), tmp_path / "run")
    (folder / "plots").mkdir()
    (folder / "plots" / "latency.png").write_bytes(b"of an earlier report")
    assert main([str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "8 cases: " in out
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    written = {name for name in written if not name.startswith("records")}
    assert written == {
        "summary.csv",
        "report.html",
        "plots/verdicts.png",
        "plots/speedup.png",
        "plots/compile_time.png",
        "plots/break_even.png",
        "plots/coverage.png",
        "plots/outside.png",
    }
    assert all(str(folder / name) in out for name in written)
    first = (folder / "plots" / "speedup.png").read_bytes(), (folder / "summary.csv").read_bytes()
    assert main([str(folder), "--width", "80"]) == 0
    assert first == ((folder / "plots" / "speedup.png").read_bytes(), (folder / "summary.csv").read_bytes())
    assert max(map(len, capsys.readouterr().out.split("\n\n" + str(folder))[0].splitlines())) <= 80


def test_the_command_as_a_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "tracebench.report"]
    folder = folder_of([make.record("模型")], tmp_path / "run")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([*command, str(tmp_path / "no")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    folder = folder_of([make.record()], tmp_path)
    monkeypatch.setattr("tracebench.report.assemble.write_atomically", denied)
    assert main([str(folder)]) == 2
    out, err = capsys.readouterr()
    assert "1 case: 1 sound" in out
    assert "nothing could be written" in err
    assert "Permission denied" in err


def test_a_failing_plot_loses_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("no good")

    monkeypatch.setitem(plots.PLOTS, "speedup", (fail, "caption"))
    folder = folder_of(make.sweep(1), tmp_path)
    report = build(folder)
    assert report.problems == [f"{folder / 'plots' / 'speedup.png'} not made: ZeroDivisionError: no good"]
    left = {"verdicts.png", "compile_time.png", "break_even.png", "coverage.png"}
    assert {path.name for path in report.paths} == {"summary.csv", *left, "report.html"}
    assert "no good" in (folder / "report.html").read_text()


def test_what_a_model_file_expects_is_held_against_what_was_found() -> None:
    expected = [
        ("dynamo", "sound", ("sound",)),
        ("fx", "unsound", ("refused", "unsound")),
        ("hook", "unsound", ("sound",)),
    ]
    records = [
        dataclasses.replace(make.record("pitfall", front_end, verdict), expected=words)
        for front_end, verdict, words in expected
    ]
    table = render_table(records)
    assert "hook on pitfall: unsound, but its file expects sound" in table
    for line in (
        "dynamo: agreement 1/1; silently wrong on 0 of 1",
        "fx: agreement 1/1; silently wrong on 1 of 1",
        "hook: agreement 0/1; silently wrong on 1 of 1",
    ):
        assert line in table
        assert line in webpage.page(records, "page")
    assert "agreement" not in render_table([make.record("plain", "fx", "sound")])


def test_a_batch_size_is_named_only_where_a_model_has_several() -> None:
    records = [
        make.record("small", "fx", batch_size=2),
        make.record("large", "fx", batch_size=8),
        make.record("swept", "fx", batch_size=1),
        make.record("swept", "fx", batch_size=16),
    ]
    naming = facts.names(records)
    assert [naming.row(item) for item in records] == ["small", "large", "swept, batch 1", "swept, batch 16"]
    modes = [make.record("a", "fx", mode="inference"), make.record("b", "fx", mode="training")]
    assert [facts.names(modes).row(item) for item in modes] == ["a", "b, training"]
