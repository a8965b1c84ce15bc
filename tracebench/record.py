"""What a case found out: the record, its JSON form, and how it is saved without ever being half written.

A record holds null where nothing was measured, never a stand-in such as 0 or 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import tempfile
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ErrorInfo:
    """Why a case has no verdict, or why a front end refused."""

    stage: str
    type: str
    message: str
    #: ``file:line`` in the user's own code, if the traceback passes through it.
    user_location: str | None = None
    traceback: str | None = None
    #: Last lines of what the case's process printed.
    log_tail: str | None = None
    #: Name of the signal that ended the process, such as ``SIGSEGV``.
    signal: str | None = None
    #: Exit code of the process, if it ended by itself before the case was over.
    exit_code: int | None = None


@dataclass(frozen=True)
class GraphBreak:
    """A place where a front end left the graph; ``location`` is ``file:line`` of user code.

    What concerns a call is about one steady-state call, from the coverage stage, and null where that did not measure.
    """

    reason: str
    location: str | None
    #: How often a call comes by.
    count: int | None = None
    #: How often the front end reported it: once for each frame that it unwound, and for each compilation.
    reports: int | None = None
    #: What the front end advises, and where it says more.
    hints: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    #: The function (``name file:line``) that is left to Python altogether because of it.
    skipped: str | None = None
    #: Lines of user code that lead to it, innermost first: the calls there are made from Python, too.
    callers: tuple[str, ...] = ()
    #: Ops of a call that run outside every graph because of it, and their FLOPs.
    ops: int | None = None
    flops: int | None = None
    #: Milliseconds of a call lost at it, under the profiler: its ops outside graphs, and leaving and entering graphs.
    ms: float | None = None
    #: Share of the call's time that this is.
    share: float | None = None


def joined(known: GraphBreak, again: GraphBreak) -> GraphBreak:
    """Return what two reports of one place say together; what was measured is the first's."""
    reasons = dict.fromkeys([*known.reason.split("; "), *again.reason.split("; ")])
    return dataclasses.replace(
        known,
        reason="; ".join(reasons),
        reports=(known.reports or 0) + (again.reports or 0) or None,
        hints=tuple(dict.fromkeys(known.hints + again.hints)),
        links=tuple(dict.fromkeys(known.links + again.links)),
        skipped=known.skipped or again.skipped,
    )


@dataclass(frozen=True)
class Constant:
    """A tensor that was baked into a graph as a constant."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    #: ``file:line`` of user code that made it or, for a tensor that the model had before, that met it first.
    location: str | None = None
    #: Of its elements; null where a form of tensor does not tell.
    bytes: int | None = None


#: What a capture can fix that eager decides anew at each call: kind of ``Specialisation`` -> meaning.
SPECIALISATIONS = {
    "shape": "the sizes of an input",
    "argument": "a Python value passed in, or carried over a graph break",
    "branch": "the truth of a tensor, which decided where Python went on",
    "value": "a tensor's value that became a Python number or list",
    "size": "a size within the model, or the number of turns of a loop over a tensor",
    "attribute": "a Python attribute or global that the model reads",
    "training mode": "train or eval, as it was on capture",
}


@dataclass(frozen=True)
class Specialisation:
    """One thing that a capture fixed, whether it is checked at each call (as Dynamo does) or not (as a trace does)."""

    #: One of ``SPECIALISATIONS``.
    kind: str
    what: str
    #: ``file:line`` of user code.
    location: str | None = None
    #: What it was fixed to; null where the front end does not tell. ``*`` stands for a size that is free.
    value: str | None = None
    #: How often the same was fixed.
    count: int = 1


@dataclass(frozen=True)
class Excluded:
    """A submodule whose forward was left to Python; ``path`` is empty for the whole model."""

    path: str
    #: Its class, and ``file:line`` where its forward is defined.
    type: str
    location: str | None
    reason: str


@dataclass(frozen=True)
class Artifact:
    """The capture as a file; ``path`` is from the folder of the results on."""

    path: str
    bytes: int
    #: Whether another process, without the model's source, loads it and gets the capture's outputs on the example
    #: inputs to the bit; null where that was not tried.
    loads: bool | None
    #: What came of it.
    detail: str

    @property
    def mb(self) -> float:
        """Its size in MB (10^6 bytes)."""
        return self.bytes / 1e6


@dataclass(frozen=True)
class CaptureInfo:
    """Events of capturing. ``seconds`` is wall time; for a front end that captures at the first call, of that call."""

    seconds: float
    #: Graphs that hold at least one operation.
    graphs: int
    graph_breaks: tuple[GraphBreak, ...] = ()
    #: Why the front end compiled again, once for each time, over the calls of the soundness stage.
    recompiles: tuple[str, ...] = ()
    #: Number of guards; null where the front end does not tell.
    guards: int | None = None
    constants: tuple[Constant, ...] = ()
    #: What is fixed that eager decides anew at each call, as far as can be seen; null if not looked at.
    specialised: tuple[Specialisation, ...] | None = None
    #: What was left to Python so that the rest could be captured.
    excluded: tuple[Excluded, ...] = ()
    #: Nodes that compute something, per graph (in the front end's own unit).
    graph_nodes: tuple[int, ...] = ()
    #: How a capture of several runs branches, as lines of text; null where it does not.
    tree: tuple[str, ...] | None = None
    #: Warnings the front end gave while capturing.
    warnings: tuple[str, ...] = ()
    #: Folder, from that of the results on, in which the graphs are written; null where that was not asked.
    dump: str | None = None
    #: Microseconds that a steady-state call spends on finding the compiled code that holds, guards included.
    guard_us: float | None = None
    #: Null where it was not asked for, or cannot be saved; a note says why.
    artifact: Artifact | None = None


@dataclass(frozen=True)
class Probe:
    """One situation in which a capture must behave as eager does."""

    name: str
    #: match | diverge | raise | n/a
    outcome: str
    #: What differed, or why the probe does not apply; empty for a plain match.
    detail: str = ""
    #: Largest absolute difference from eager over all floating-point values; null where not comparable.
    max_error: float | None = None
    #: Whether every value agreed to the bit; null where nothing was compared.
    bitwise: bool | None = None


@dataclass(frozen=True)
class Blame:
    """The smallest submodule that shows the same fault by itself; ``path`` is empty for the whole model."""

    path: str
    #: Class of the submodule, and ``file:line`` where its forward is defined.
    type: str
    location: str | None
    #: ``unsound`` or ``refused``, as found on that submodule alone.
    verdict: str
    #: What differs there, or what the front end raised.
    detail: str
    #: Whether the search came to its end; else why not.
    complete: bool = True
    note: str = ""


@dataclass(frozen=True)
class Suspect:
    """A line of user code (``file:line``) that a verdict is probably due to, and what it does."""

    location: str
    what: str


@dataclass(frozen=True)
class Explanation:
    """What a verdict is probably due to, likeliest first, and what usually helps; empty where that is not known."""

    suspects: tuple[Suspect, ...] = ()
    advice: str = ""
    #: Why there is no suspect, or what the search did not get to see.
    note: str = ""


@dataclass(frozen=True)
class OpCount:
    """How often an op ran, by line of user code; no line where it is not one, or cannot be told."""

    op: str
    count: int
    location: str | None = None


@dataclass(frozen=True)
class OutsideOp:
    """Ops that ran outside every captured graph in one call, by op, line of user code, module and reason."""

    op: str
    location: str | None
    count: int
    #: Path of the innermost module whose method was running, empty for the model itself.
    module: str | None = None
    #: forward | backward; a backward op stands at the line of its forward op.
    phase: str = "forward"
    #: ``graph break``, ``left to Python`` (by ``torch.compiler.disable``) or ``no graph`` (nothing there was captured).
    reason: str | None = None
    #: Where the graph break is that they are outside of graphs because of.
    graph_break: str | None = None
    flops: int | None = None
    #: Share of the call's FLOPs.
    flops_share: float | None = None
    #: Milliseconds under the profiler (of the device on an accelerator) and share of the time of the call's ops.
    ms: float | None = None
    time_share: float | None = None


@dataclass(frozen=True)
class GraphWork:
    """What one captured graph does in a steady-state call: ATen ops and FLOPs of the forward pass."""

    #: Its place in ``capture.graph_nodes``, as long as nothing was captured anew.
    graph: int
    #: How often it is run.
    calls: int
    ops: int
    flops: int


@dataclass(frozen=True)
class CoverageInfo:
    """How much of a steady-state call ran inside captured graphs; fractions in 0..1, null where undefined.

    In training a call includes the backward pass; the loss and accumulating gradients are left out.
    """

    ops: float | None
    flops: float | None
    #: Of the time spent in ops, under the profiler: device time on an accelerator.
    time: float | None = None
    ops_total: int | None = None
    ops_in_graph: int | None = None
    flops_total: int | None = None
    flops_in_graph: int | None = None
    #: The same totals for the model run eagerly.
    eager_ops: int | None = None
    eager_flops: int | None = None
    graphs_per_call: int | None = None
    graphs: tuple[GraphWork, ...] = ()
    outside: tuple[OutsideOp, ...] = ()
    #: Ops that eager ran and the capture did not (baked in, folded or dead), and the reverse.
    missing: tuple[OpCount, ...] = ()
    extra: tuple[OpCount, ...] = ()
    ops_missing: int | None = None
    ops_extra: int | None = None
    #: Ops that plausibly do arithmetic but have no FLOP formula in torch; they count 0 FLOPs.
    flops_unknown: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Timing:
    """Latency of one callable. Samples are milliseconds per call, one per round."""

    median_ms: float
    iqr_ms: float
    samples_ms: tuple[float, ...]
    #: Null where the number of samples in a batch cannot be told.
    samples_per_s: float | None = None
    #: Most that the call needs at once, in 10**6 bytes, the other side's tensors left out; see ``throughput.memory``.
    peak_memory_mb: float | None = None
    #: Milliseconds in which the host hands one call over to an idle accelerator; null on the CPU, where it is the call.
    host_ms: float | None = None
    #: Kernels that one call launches on an accelerator; null on the CPU.
    kernels: int | None = None


@dataclass(frozen=True)
class Speedup:
    """Eager time divided by captured time: above 1 the capture is faster."""

    ratio: float
    ci_low: float
    ci_high: float
    #: True if 1.0 lies outside the interval.
    significant: bool
    #: How often the interval holds the true ratio. Records that do not say have one of 95 %.
    confidence: float = 0.95


@dataclass(frozen=True)
class CompileSeconds:
    """Seconds of capture plus compilation, with an empty and with a filled compiler cache.

    Each is taken in a process of its own: capturing and the first calls until nothing is compiled any more, less as
    many steady calls. Starting Python, imports and building the model are left out.
    """

    cold: float | None = None
    warm: float | None = None


@dataclass(frozen=True)
class GpuReading:
    """The state of a GPU at one instant; null for what its driver does not tell, which ``missing`` lists with why."""

    name: str | None = None
    driver: str | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    #: Why clocks are not at their highest; empty if they are.
    reasons: tuple[str, ...] | None = None
    #: Processes besides this one that compute on it.
    other_processes: int | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuState:
    """A GPU just before and just after the rounds; ``note`` says why a reading is not there."""

    before: GpuReading | None = None
    after: GpuReading | None = None
    note: str | None = None


@dataclass(frozen=True)
class Roofline:
    """A case under the roof of its device: see ``throughput.roofline``. Null where not known, ``note`` says why."""

    #: Of one call, of the model run eagerly.
    flops: int | None = None
    #: Compulsory traffic of one call.
    bytes: int | None = None
    #: FLOPs a byte.
    intensity: float | None = None
    #: Measured on this device, in the case's dtype; G is 10^9.
    peak_gflops: float | None = None
    peak_gb_s: float | None = None
    #: The lower of the peak and of intensity times bandwidth.
    roof_gflops: float | None = None
    eager_gflops: float | None = None
    captured_gflops: float | None = None
    #: Of the roof.
    eager_fraction: float | None = None
    captured_fraction: float | None = None
    #: Which roof is the lower: ``compute`` or ``memory``.
    bound: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class TimedInputs:
    """The input sets that timed calls go round, each side with copies of its own, in the same order."""

    sets: int
    #: Of all sets of one side, in 10**6 bytes.
    mb: float
    #: The last cache before main memory; null where the system does not tell.
    cache_mb: float | None
    #: ``fresh``: each set has values of its own; ``copies``: all have those of the example.
    values: str
    #: Why there are no more, or no fresh values; empty where there is nothing to say.
    note: str = ""


@dataclass(frozen=True)
class Watched:
    """What one monitor read before and after the rounds; empty where it could not read anything."""

    name: str
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ThroughputInfo:
    """Eager against captured, measured in alternating rounds in one process."""

    eager: Timing
    captured: Timing
    speedup: Speedup
    compile_s: CompileSeconds = CompileSeconds()
    first_call_ms: float | None = None
    #: Calls after which capturing has paid for itself; null if it never does or the ratio is not significant.
    break_even_calls: int | None = None
    #: How times were taken: ``host clock`` or ``device events``.
    clock: str = "host clock"
    #: Null on the CPU.
    gpu: GpuState | None = None
    #: Null where it was not asked for.
    roofline: Roofline | None = None
    inputs: TimedInputs | None = None
    #: The optimizer whose step is part of a call in training; null in inference and where none is wanted.
    optimizer: str | None = None
    #: The machine while it was measured.
    watched: tuple[Watched, ...] = ()
    #: Each begins with its kind, one of ``timingwords.KINDS``, and says what to do next.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figures:
    """What a capture comes to, in the figures that a control is judged by; null where not measured."""

    verdict: str | None = None
    graphs: int | None = None
    #: Distinct places.
    graph_breaks: int | None = None
    graph_nodes: int | None = None
    guards: int | None = None
    recompiles: int | None = None
    op_coverage: float | None = None
    flop_coverage: float | None = None
    time_coverage: float | None = None
    ops_missing: int | None = None
    speedup: Speedup | None = None
    #: Why the front end refused, if it did.
    refusal: str | None = None


@dataclass(frozen=True)
class ControlEffect:
    """What one control did, against the same case without it.

    ``effect`` maps each figure that changed to ``[without, with]``; it is ``"none"`` if none did, and null where that
    was not measured. ``detail`` says why.
    """

    control: str
    target: str
    effect: Any
    detail: str = ""
    #: The capture without it; null where that was not measured.
    without: Figures | None = None


@dataclass(frozen=True)
class BatchTry:
    """One try of the search for the largest batch: ``fits``, ``oom``, ``timeout`` or ``error``, and why not."""

    batch_size: int
    outcome: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class BatchSearch:
    """How ``batch_size=max`` came to the size in ``case``."""

    #: No larger one was tried.
    limit: int
    tries: tuple[BatchTry, ...]
    #: Why no larger one was taken.
    ended: str


@dataclass(frozen=True)
class Record:
    """Everything found out about one case."""

    key: str
    started_at: str
    wall_s: float
    #: model, options, frontend, executor, executor_settings, mode, device, dtype, batch_size, seed, controls
    case: dict[str, Any]
    status: str
    verdict: str | None = None
    error: ErrorInfo | None = None
    capture: CaptureInfo | None = None
    probes: tuple[Probe, ...] | None = None
    #: Changes after capture that are no part of the declared use, reported beside the verdict.
    lifecycle: tuple[Probe, ...] | None = None
    #: Where an unsound or refused capture goes wrong; null where that was not asked, or for other verdicts.
    blame: Blame | None = None
    #: Probable cause of a verdict that is not sound; null where that was not asked, or for sound.
    explanation: Explanation | None = None
    coverage: CoverageInfo | None = None
    controls: tuple[ControlEffect, ...] = ()
    throughput: ThroughputInfo | None = None
    #: Null unless the largest batch that fits was asked for.
    batch_search: BatchSearch | None = None
    #: The outcomes that the model's file says this front end should have under replay; null where it says nothing.
    expected: tuple[str, ...] | None = None
    #: Seconds spent in each stage that ended or began.
    stages: dict[str, float] = field(default_factory=dict)
    #: Things worth saying that belong to no single figure.
    notes: tuple[str, ...] = ()
    #: The resolved request, as the user's configuration gave it.
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


def to_dict(value: Any) -> Any:
    """Return ``value`` (dataclasses, tuples, numbers) as plain JSON data; NaN and infinity become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_dict(cls: Any, data: Any) -> Any:
    """Build ``cls`` (a type of this module, or a typing construct over them) from JSON data.

    Fields this version does not know are dropped, so that newer records can be read.

    Raises:
        ValueError: a field without a default is missing, or a section has the wrong shape.
    """
    origin = typing.get_origin(cls)
    if origin is types.UnionType:
        inner = [arg for arg in typing.get_args(cls) if arg is not type(None)]
        return None if data is None else from_dict(inner[0], data)
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"expected a list, got {type(data).__name__}")
        return tuple(from_dict(typing.get_args(cls)[0], item) for item in data)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        if not isinstance(data, dict):
            raise ValueError(f"{cls.__name__}: expected a mapping, got {type(data).__name__}")
        hints = typing.get_type_hints(cls)
        known = {f.name: from_dict(hints[f.name], data[f.name]) for f in dataclasses.fields(cls) if f.name in data}
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None
    return data


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``content`` so that readers see the old file or the whole new one, also after a crash or a full disk.

    Raises:
        OSError: the folder cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def save(record: Record, folder: Path) -> Path:
    """Save ``record`` as ``folder/KEY.json`` and return that path."""
    path = folder / f"{record.key}.json"
    write_atomically(path, json.dumps(to_dict(record), indent=1, allow_nan=False) + "\n")
    return path


def load(path: Path) -> Record:
    """Read one record.

    Raises:
        ValueError: the file is not a record; the message names the file.
    """
    try:
        record = from_dict(Record, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a tracebench record: {error}") from None
    assert isinstance(record, Record)
    return record
