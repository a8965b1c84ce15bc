"""The coverage stage: the share of a steady-state call that runs inside graphs, and what keeps out the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.jit._fuser import optimized_execution

from tracebench.coverage.breaks import LEFT, Cause, cause, costs
from tracebench.coverage.difference import surplus
from tracebench.coverage.hits import Passes, hits
from tracebench.coverage.profile import Profile, op_times, profiles
from tracebench.coverage.recorder import FORWARD, Op, Tally, record, supports_recording
from tracebench.errors import CallError
from tracebench.frontends.base import Capture, Inputs
from tracebench.record import CoverageInfo, GraphBreak, GraphWork, OutsideOp, write_atomically
from tracebench.soundness.loss import run_backward
from tracebench.soundness.runs import call_inputs
from tracebench.subject import Subject, seed_everything

#: Time coverage is no figure where the middle half of the profiled calls spreads over more than this.
NOISE = 0.1
_UNEVEN = "the calls that were profiled did not run the same ops and graphs as the one that was recorded"


@dataclass(frozen=True)
class Covered:
    """What the stage finds out: coverage, the graph breaks with their costs, and microseconds of guards a call."""

    info: CoverageInfo
    breaks: tuple[GraphBreak, ...] = ()
    guard_us: float | None = None


def cover(subject: Subject, capture: Callable[[nn.Module, Inputs], Capture], listing: Path | None = None) -> Covered:
    """Return the coverage of what ``capture`` makes, a marked capture under the replay executor.

    Op coverage = ops dispatched inside graphs / all ops dispatched; FLOP coverage weights ops by torch's formulas, time
    coverage by the profiler's time. The first call on the example inputs may still compile; ops are recorded in the
    second, and calls after it are watched for graph breaks and profiled, each for itself. In training a call includes
    the backward pass, from the loss that verdicts are made with. The ops of the recorded calls of eager and of the
    capture are written to ``listing/eager.aten.txt`` and ``captured.aten.txt``, if that is given.

    Raises:
        CaptureError: the front end refuses this time.
        CallError: eager or the capture raises.
    """
    if not supports_recording():
        return Covered(CoverageInfo(None, None, note="this torch lets no recorder see compiled code"))
    # Without the optimising executor TorchScript dispatches each op; fused groups would be invisible.
    with subject.grad_mode(), optimized_execution(False):
        model = subject.fresh_model()
        eager = _Bound(subject, "eager", model, model).recorded(listed=listing is not None)
        model = subject.fresh_model()
        made = capture(model, call_inputs(subject, subject.example))
        bound = _Bound(subject, "the capture", model, made.call)
        captured = bound.recorded(listed=listing is not None, after=made.settles_after)
        if listing is not None:
            for name, tally in (("eager", eager), ("captured", captured)):
                write_atomically(listing / f"{name}.aten.txt", "\n".join(tally.listing or []) + "\n")
        made.events.refresh()
        breaks = tuple(made.events.graph_breaks)
        locations = [found.location for found in breaks if found.location]
        came_by = bound.watched(locations) if locations else {}
        breaks = tuple(
            replace(found, callers=tuple(came_by[found.location].callers)) if found.location else found
            for found in breaks
        )
        profiled = bound.profiled()
    return _put_together(subject, eager, captured, breaks, came_by, profiled, left=made.events.leaves)


def summarise(eager: Tally, captured: Tally) -> CoverageInfo:
    """Turn the tallies of an eager and of a captured call into coverage; a share of nothing is null, not 0 or 1."""
    inside, flops = captured.inside, captured.flops
    flops_inside = sum(op.flops for op in inside)
    missing, extra = surplus(eager.ops, captured.ops), surplus(captured.ops, eager.ops)
    return CoverageInfo(
        ops=_share(len(inside), len(captured.ops)),
        flops=_share(flops_inside, flops),
        ops_total=len(captured.ops),
        ops_in_graph=len(inside),
        flops_total=flops,
        flops_in_graph=flops_inside,
        eager_ops=len(eager.ops),
        eager_flops=eager.flops,
        graphs_per_call=captured.graphs_entered,
        graphs=_graphs(captured),
        missing=missing,
        extra=extra,
        ops_missing=sum(op.count for op in missing),
        ops_extra=sum(op.count for op in extra),
        flops_unknown=tuple(sorted(eager.without_formula | captured.without_formula)),
    )


def refused_coverage() -> CoverageInfo:
    """Return the coverage of a model that the front end refused: nothing is in a graph."""
    return CoverageInfo(ops=0.0, flops=0.0, ops_in_graph=0, flops_in_graph=0, graphs_per_call=0)


def _graphs(captured: Tally) -> tuple[GraphWork, ...]:
    """Return what each graph does in one call, in the order in which they are first entered."""
    work: dict[int, list[Op]] = {}
    for op in captured.ops:
        if op.graph is not None and op.phase == FORWARD:
            work.setdefault(op.graph, []).append(op)
    return tuple(
        GraphWork(number, len({op.place for op in ops}), len(ops), sum(op.flops for op in ops))
        for number, ops in work.items()
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


class _Bound:
    """A callable with a model of its own, for one call after another on fresh example inputs."""

    def __init__(self, subject: Subject, who: str, model: nn.Module, call: Callable[..., Any]) -> None:
        self._subject = subject
        self._who = who
        self._model = model
        self._call = call
        self._backward = self._run_backward if subject.training else None
        self._modules = {id(module): path for path, module in model.named_modules()}

    def recorded(self, *, listed: bool, after: int = 1) -> Tally:
        """Make ``after`` calls and one more, and return what the last dispatched."""
        try:
            for _ in range(after):
                self._run()
            return record(self._bound(), self._backward, self._modules, listed=listed)
        except Exception as error:
            raise self._raised("its ops are recorded", error) from error

    def watched(self, locations: Sequence[str]) -> dict[str, Passes]:
        """Make a call and return how it came by each of ``locations``."""
        try:
            return hits(self._bound(), locations)
        except Exception as error:
            raise self._raised("its graph breaks are counted", error) from error

    def profiled(self) -> list[Profile] | str:
        """Profile some calls; return them, or why that cannot be."""
        try:
            return profiles(self._subject.device, self._bound, self._backward)
        except Exception as error:
            return f"the profiler cannot be used: {type(error).__name__}: {error}"

    def _run(self) -> None:
        output = self._bound()()
        if self._backward is not None:
            self._backward(output)

    def _bound(self) -> Callable[[], Any]:
        inputs = call_inputs(self._subject, self._subject.example)
        for parameter in self._model.parameters():
            parameter.grad = None
        seed_everything(self._subject.seed)
        return lambda: self._call(*inputs.args, **inputs.kwargs)

    @staticmethod
    def _run_backward(output: Any) -> None:
        run_backward(output)

    def _raised(self, doing: str, error: Exception) -> CallError:
        return CallError(f"{self._who} raises while {doing}: {type(error).__name__}: {error}")


def _put_together(
    subject: Subject,
    eager: Tally,
    captured: Tally,
    breaks: tuple[GraphBreak, ...],
    came_by: dict[str, Passes],
    found: list[Profile] | str,
    *,
    left: bool,
) -> Covered:
    on_device = subject.device.type != "cpu"
    info = summarise(eager, captured)
    ops = captured.outside
    causes = [Cause(LEFT) if left else cause(op.origin, breaks) for op in ops]
    if isinstance(found, str):
        measured = costs(breaks, came_by, ops, causes, [None] * len(ops), None, None)
        return Covered(
            replace(info, outside=_grouped(info, ops, causes, [None] * len(ops), None), note=found), measured
        )

    # The figures of one call fit together; those of several, each with its own median, would not.
    one = found[len(found) // 2]
    time, note = _time(found)
    times = op_times(one, ops, on_device=on_device)
    # What a break costs is the host's time: the device may still be busy with what came before.
    host = op_times(one, ops, on_device=False)
    gaps = one.gaps_ms if len(one.gaps_ms) == captured.graphs_entered + 1 else None
    if note is None and (gaps is None or None in times):
        note = _UNEVEN
    return Covered(
        replace(info, time=time, outside=_grouped(info, ops, causes, times, one.inside_ms + one.outside_ms), note=note),
        costs(breaks, came_by, ops, causes, host, gaps, one.call_ms),
        None if one.lookup_ms is None else one.lookup_ms * 1e3,
    )


def _time(found: Sequence[Profile]) -> tuple[float | None, str | None]:
    """Return the median of time coverage, or None and why there is none; ``found`` is in order."""
    shares = [one.share for one in found]
    known = [share for share in shares if share is not None]
    if not known or len(known) < len(shares):
        return None, None
    quarter = len(known) // 4
    low, high = known[quarter], known[-1 - quarter]
    if high - low > NOISE:
        return None, f"time coverage n/a: it was {low:.2f} to {high:.2f} in the middle half of {len(known)} calls"
    return known[len(known) // 2], None


def _grouped(
    info: CoverageInfo,
    ops: Sequence[Op],
    causes: Sequence[Cause],
    times: Sequence[float | None],
    whole_ms: float | None,
) -> tuple[OutsideOp, ...]:
    """Return the ops outside graphs by what they have in common, those that take the most time or FLOPs first."""
    groups: dict[OutsideOp, list[int]] = {}
    for index, (op, due) in enumerate(zip(ops, causes, strict=True)):
        location = op.origin.location if op.origin else None
        module = op.origin.module if op.origin else None
        key = OutsideOp(op.name, location, 0, module, op.phase, due.reason, due.graph_break)
        groups.setdefault(key, []).append(index)
    found = []
    for key, indices in groups.items():
        flops = sum(ops[index].flops for index in indices)
        spent = [times[index] for index in indices]
        known = [value for value in spent if value is not None]
        ms = sum(known) if len(known) == len(spent) else None
        found.append(
            replace(
                key,
                count=len(indices),
                flops=flops,
                flops_share=_share(flops, info.flops_total or 0),
                ms=ms,
                time_share=None if ms is None or whole_ms is None else _share(ms, whole_ms),
            )
        )
    return tuple(sorted(found, key=lambda item: (-(item.ms or 0.0), -(item.flops or 0), -item.count)))
