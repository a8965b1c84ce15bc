"""Which graph break an op is outside of graphs because of, and what each break costs a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracebench.coverage.hits import Passes
from tracebench.coverage.origin import Origin
from tracebench.coverage.recorder import Op
from tracebench.record import GraphBreak

BROKEN, LEFT, UNSEEN = "graph break", "left to Python", "no graph"
#: How Dynamo says that it met a function it was told to leave alone.
_DISABLED = "torch.compiler.disable"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an op ran outside every graph, and the break it is due to."""

    reason: str
    graph_break: str | None = None


def cause(origin: Origin | None, breaks: Sequence[GraphBreak]) -> Cause:
    """Return why the op with this origin is outside.

    Frames are looked at from the op outward: one that stands at the line of a break was called, or is, what broke;
    one that was left to Python altogether runs without any graph of its own.
    """
    here = origin or Origin()
    places = {found.location: found for found in breaks if found.location}
    skipped = {found.skipped: found for found in breaks if found.skipped and found.location}
    for frame in here.frames:
        found = places.get(frame.location)
        if found is not None:
            left = here.disabled or _DISABLED in found.reason
            return Cause(LEFT if left else BROKEN, found.location)
        found = skipped.get(f"{frame.function} {frame.definition}") or _within(frame.definition, frame.end, breaks)
        if found is not None:
            return Cause(UNSEEN, found.location)
    # A break unwinds the calls that lead to it; what these call beside it then runs in Python too.
    unwound = {line: found for found in reversed(breaks) if found.location for line in found.callers}
    for frame in here.frames:
        if frame.location in unwound:
            return Cause(LEFT if here.disabled else UNSEEN, unwound[frame.location].location)
    return Cause(LEFT if here.disabled else UNSEEN)


def _within(definition: str, end: int, breaks: Sequence[GraphBreak]) -> GraphBreak | None:
    """Return the first break in a function.

    Code that Dynamo wrote runs no op but at the line of a break, so a function that does has not been captured.
    """
    file, _, start = definition.rpartition(":")
    for found in breaks:
        place, _, line = (found.location or "").rpartition(":")
        if place == file and line.isdigit() and int(start) <= int(line) <= end:
            return found
    return None


def costs(
    breaks: Sequence[GraphBreak],
    came_by: Mapping[str, Passes],
    ops: Sequence[Op],
    causes: Sequence[Cause],
    times: Sequence[float | None],
    gaps_ms: Sequence[float] | None,
    call_ms: float | None,
) -> tuple[GraphBreak, ...]:
    """Return ``breaks`` with what each costs one call, the dearest first.

    Args:
        came_by: for each break how the call came by it.
        ops: those outside graphs, with their causes and milliseconds.
        gaps_ms: time of the forward pass before, between and after the graphs. What of it goes by outside ops is split
            evenly between the breaks that the call came by meanwhile; entering the first graph counts as one.
        call_ms: the whole call.
    """
    overheads = _overheads(came_by, ops, times, gaps_ms)
    measured = []
    for found in breaks:
        mine = [index for index, due in enumerate(causes) if due.graph_break and due.graph_break == found.location]
        spent = [times[index] for index in mine]
        overhead = overheads.get(found.location) if overheads is not None and found.location else None
        known = [value for value in spent if value is not None]
        ms = sum(known) + overhead if overhead is not None and len(known) == len(spent) else None
        measured.append(
            dataclasses.replace(
                found,
                count=len(came_by[found.location].graphs) if found.location and found.location in came_by else None,
                ops=len(mine) if found.location else None,
                flops=sum(ops[index].flops for index in mine) if found.location else None,
                ms=ms,
                share=ms / call_ms if ms is not None and call_ms else None,
            )
        )
    return tuple(sorted(measured, key=lambda found: (-(found.ms or 0.0), -(found.ops or 0))))


def with_costs(reported: Sequence[GraphBreak], measured: Sequence[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Return the breaks that one capture ``reported`` with what was measured of another, the dearest first.

    A break that only the other met is among them; one that only the first met has nothing measured.
    """
    known = {(found.location or found.reason): found for found in reported}
    both = []
    for found in measured:
        own = known.pop(found.location or found.reason, found)
        both.append(dataclasses.replace(found, reason=own.reason, reports=own.reports))
    return (*both, *known.values())


def _overheads(
    came_by: Mapping[str, Passes],
    ops: Sequence[Op],
    times: Sequence[float | None],
    gaps_ms: Sequence[float] | None,
) -> dict[str, float] | None:
    """Return for each break its part of the time between graphs that is not its ops'; None where it cannot be told."""
    if gaps_ms is None:
        return None
    found = dict.fromkeys(came_by, 0.0)
    for gap, gap_ms in enumerate(gaps_ms):
        here = [location for location, passes in came_by.items() for place in passes.graphs if place == gap]
        if not here:
            continue
        within = [time for op, time in zip(ops, times, strict=True) if op.phase == "forward" and op.place == gap]
        if any(time is None for time in within):
            return None
        left = max(0.0, gap_ms - sum(time for time in within if time is not None))
        for location in here:
            found[location] += left / (len(here) + (gap == 0))
    return found
