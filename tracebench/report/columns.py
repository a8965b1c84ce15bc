"""The records as a table of figures, one row a case: a DataFrame and the rows of ``summary.csv``.

``COLUMNS`` is the one place that says what a column is called, its unit, where it comes from and how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracebench.record import Record, Speedup, Timing
from tracebench.report import controls, facts, gains, text

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Column:
    """One column. ``get`` returns None where a record has no such figure, and it stays missing."""

    name: str
    #: pandas dtype; all of them know missing values.
    dtype: str
    #: The stage that finds it out, which tells ``-`` (not asked for) from ``n/a``.
    stage: str
    unit: str
    meaning: str
    get: Callable[[Record], Any]
    #: How it is shown to people, where that is more than the plain value.
    show: Callable[[Record], str] | None = None

    def cell(self, record: Record) -> str:
        """Return the cell for people to read."""
        value = self.get(record)
        if value is None:
            return facts.missing(record, self.stage)
        if self.show:
            return self.show(record)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:.4g}" if isinstance(value, float) else text.clean(value)


def _case(name: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        value = record.case.get(name)
        if isinstance(value, dict):
            return facts.mapping(value) if value else None
        return None if value is None else text.clean(value)

    return get


def _whole(name: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        value = record.case.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return get


def _at(path: str) -> Callable[[Record], Any]:
    """Return a getter that follows ``path``; a missing section makes the figure missing."""

    def get(record: Record) -> Any:
        value: Any = record
        for name in path.split("."):
            value = getattr(value, name) if value is not None else None
        return text.clean(value) if isinstance(value, str) else value

    return get


def _counted(path: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        found = _at(path)(record)
        return None if found is None else len(found)

    return get


def _probes(outcome: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        return None if record.probes is None else sum(probe.outcome == outcome for probe in record.probes)

    return get


def _failing(part: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        found = facts.failing(record)
        return text.clean(getattr(found[0], part)) if found else None

    return get


def _breaks(record: Record) -> Any:
    return None if record.capture is None else len(facts.breaks(record))


def _environment(name: str) -> Callable[[Record], Any]:
    return lambda record: facts.environment(record, name)


def _percent(path: str) -> Callable[[Record], str]:
    return lambda record: text.percent(_at(path)(record))


def _speedup(record: Record) -> str:
    found: Speedup = _at("throughput.speedup")(record)
    return text.ratio(found.ratio, found.ci_low, found.ci_high, found.significant)


def _latency(path: str) -> Callable[[Record], str]:
    def show(record: Record) -> str:
        found: Timing = _at(path)(record)
        return text.milliseconds(found.median_ms, found.iqr_ms, len(found.samples_ms))

    return show


def _warnings(record: Record) -> Any:
    return " | ".join(text.clean(item) for item in facts.timing_warnings(record)) or None


def _text(name: str, stage: str, meaning: str, get: Callable[[Record], Any]) -> Column:
    return Column(name, "string", stage, "", meaning, get)


def _count(name: str, stage: str, meaning: str, get: Callable[[Record], Any], unit: str = "") -> Column:
    return Column(name, "Int64", stage, unit, meaning, get)


def _figure(name: str, unit: str, meaning: str, path: str, show: Callable[[Record], str] | None = None) -> Column:
    stage = path.split(".")[0]
    return Column(name, "float64", stage if "." in path else "load", unit, meaning, _at(path), show)


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        _text("model", "load", "the model's name", _case("model")),
        _text("options", "load", "options given to the model", _case("options")),
        _text("frontend", "load", "what captured it", _case("frontend")),
        _text("frontend_options", "load", "options given to the front end", _case("frontend_options")),
        _text("executor", "load", "what ran the graphs", _case("executor")),
        _text("executor_settings", "load", "what it was told", _case("executor_settings")),
        _text("mode", "load", "inference or training", _case("mode")),
        _text("device", "load", "the device it ran on", _case("device")),
        _text("device_name", "load", "name of the hardware", facts.device_name),
        _text("dtype", "load", "dtype of the model", _case("dtype")),
        _count("batch_size", "load", "samples in one call", _whole("batch_size"), "samples"),
        _count("seed", "load", "seed of weights and inputs", _whole("seed")),
        _text("controls", "load", "controls asked for", _case("controls")),
        _text("controls_preset", "load", "preset they come from", _case("controls_preset")),
        _text("controls_effect", "load", "what each did, without -> with", controls.summary),
        _text("outcome", "load", "one word for the case", lambda record: facts.word(record).name),
        _text("status", "load", "did the harness get to the end", _at("status")),
        _text("verdict", "soundness", "what the probes say", _at("verdict")),
        _text("error_stage", "load", "stage that failed", _at("error.stage")),
        _text("error_type", "load", "type of the error", _at("error.type")),
        _text("error_message", "load", "its message, on one line", _at("error.message")),
        _text("user_location", "load", "file:line in the user's code", _at("error.user_location")),
        _text("signal", "load", "signal that ended the process", _at("error.signal")),
        _count("exit_code", "load", "exit code of the process", _at("error.exit_code")),
        _count("graphs", "capture", "captured graphs with an op in them", _at("capture.graphs")),
        _count("graph_breaks", "capture", "distinct places where it left the graph", _breaks),
        _count("recompiles", "capture", "captures made again", _counted("capture.recompiles")),
        _count("guards", "capture", "guards of the capture", _at("capture.guards")),
        _figure("guard_us", "us", "time of guards in one call", "capture.guard_us"),
        _count("constants", "capture", "tensors baked into graphs", _counted("capture.constants")),
        _count("constant_bytes", "capture", "their size", facts.constant_bytes, "bytes"),
        _count("specialisations", "capture", "distinct things fixed on capture", _counted("capture.specialised")),
        _figure("artifact_mb", "MB", "size of the saved capture", "capture.artifact.mb"),
        _figure("op_coverage", "fraction", "share of ops run inside graphs", "coverage.ops", _percent("coverage.ops")),
        _figure("flop_coverage", "fraction", "share of FLOPs in graphs", "coverage.flops", _percent("coverage.flops")),
        _figure("time_coverage", "fraction", "share of time in graphs", "coverage.time", _percent("coverage.time")),
        _count("ops_missing", "coverage", "ops of eager that it does not run", _at("coverage.ops_missing")),
        _count("ops_extra", "coverage", "ops that eager does not run", _at("coverage.ops_extra")),
        _count("graphs_per_call", "coverage", "graphs run in one call", _at("coverage.graphs_per_call")),
        _figure("speedup", "ratio", "eager time / captured time", "throughput.speedup.ratio", _speedup),
        _figure("speedup_low", "ratio", "lower end of its interval", "throughput.speedup.ci_low"),
        _figure("speedup_high", "ratio", "upper end of its interval", "throughput.speedup.ci_high"),
        Column(
            "significant", "boolean", "throughput", "", "does that exclude 1", _at("throughput.speedup.significant")
        ),
        _figure("eager_ms", "ms", "median eager call", "throughput.eager.median_ms", _latency("throughput.eager")),
        _figure(
            "captured_ms",
            "ms",
            "median captured call",
            "throughput.captured.median_ms",
            _latency("throughput.captured"),
        ),
        _figure("eager_iqr_ms", "ms", "interquartile range, eager", "throughput.eager.iqr_ms"),
        _figure("captured_iqr_ms", "ms", "interquartile range, captured", "throughput.captured.iqr_ms"),
        _figure("samples_per_s_eager", "samples/s", "eager throughput", "throughput.eager.samples_per_s"),
        _figure("samples_per_s_captured", "samples/s", "captured throughput", "throughput.captured.samples_per_s"),
        _figure("peak_memory_mb_eager", "MB", "eager peak memory", "throughput.eager.peak_memory_mb"),
        _figure("peak_memory_mb_captured", "MB", "captured peak memory", "throughput.captured.peak_memory_mb"),
        _figure("capture_s", "s", "time to capture", "capture.seconds"),
        _figure("compile_cold_s", "s", "capture and compile, empty cache", "throughput.compile_s.cold"),
        _figure("compile_warm_s", "s", "capture and compile, filled cache", "throughput.compile_s.warm"),
        _figure("first_call_ms", "ms", "time of the first call", "throughput.first_call_ms"),
        _count("break_even_calls", "throughput", "paid back after", _at("throughput.break_even_calls"), "calls"),
        _figure("host_ms_eager", "ms", "host's time to launch eager", "throughput.eager.host_ms"),
        _figure("host_ms_captured", "ms", "host's time to launch the capture", "throughput.captured.host_ms"),
        _count("kernels_eager", "throughput", "kernels of an eager call", _at("throughput.eager.kernels")),
        _count("kernels_captured", "throughput", "kernels of a captured call", _at("throughput.captured.kernels")),
        _text("optimizer", "throughput", "whose step is part of a call", _at("throughput.optimizer")),
        _count("input_sets", "throughput", "input sets that calls go round", _at("throughput.inputs.sets")),
        _text("input_values", "throughput", "fresh values or copies", _at("throughput.inputs.values")),
        _text("clock", "throughput", "how times were taken", _at("throughput.clock")),
        _text("throughput_warnings", "throughput", "why the times may be off", _warnings),
        _count("probes_match", "soundness", "probes that match eager", _probes("match")),
        _count("probes_diverge", "soundness", "probes that silently differ", _probes("diverge")),
        _count("probes_raise", "soundness", "probes that raise", _probes("raise")),
        _count("probes_na", "soundness", "probes that do not apply", _probes("n/a")),
        _text("first_failing_probe", "soundness", "the first that differs or raises", _failing("name")),
        _text("first_failing_detail", "soundness", "what it found", _failing("detail")),
        _text("probable_cause", "soundness", "file:line probably to blame, and why", facts.probable_cause),
        _text("advice", "soundness", "what usually helps", lambda record: _at("explanation.advice")(record) or None),
        _text("started_at", "load", "when the case began", _at("started_at")),
        _figure("wall_s", "s", "time the case took", "wall_s"),
        _text("torch_version", "load", "version of torch", _environment("torch")),
        _text("key", "load", "name of the record's file", _at("key")),
    )
}


def beside(records: Sequence[Record]) -> dict[str, Column]:
    """Return the columns of a case that come from it and the same case under replay: see ``report.gains``."""
    found = {id(gain.record): gain for gain in gains.gains(records)}

    def at(name: str, part: str) -> Callable[[Record], float | None]:
        def get(record: Record) -> float | None:
            gain = found.get(id(record))
            if name == "cost" and gain is None:
                factor = gains.cost(record) if facts.executor(record.case) == "replay" else None
            else:
                factor = getattr(gain, name, None)
            return getattr(factor, part, None)

        return get

    told = {
        "cost": ("front_end_cost", "captured time / eager time under replay"),
        "gain": ("compiler_gain", "its speedup / the speedup under replay"),
    }
    ends = {"value": "", "low": "lower end of its interval", "high": "upper end of its interval"}
    columns = {}
    for name, (heading, meaning) in told.items():
        for part, end in ends.items():
            full = f"{heading}_{part}" if end else heading
            columns[full] = Column(full, "float64", "throughput", "ratio", end or meaning, at(name, part))
    return columns


def frame(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a case and the columns of ``COLUMNS`` and ``beside``; what a record lacks is missing, never 0."""
    import pandas

    return pandas.DataFrame(
        {
            name: pandas.Series([column.get(record) for record in records], dtype=column.dtype)
            for name, column in (COLUMNS | beside(records)).items()
        }
    )


def csv(records: Sequence[Record]) -> str:
    """Return ``frame(records)`` as CSV; a missing value is an empty field."""
    return frame(records).to_csv(index=False, lineterminator="\n")
