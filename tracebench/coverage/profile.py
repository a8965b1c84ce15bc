"""Time of a steady-state call by where it is spent, from torch's profiler in calls of their own.

On an accelerator an op's time is that of the kernels it launched, else that of the CPU. The recorder of ops is never
on meanwhile: it would cost more than many an op.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from tracebench.coverage.ownership import Ownership
from tracebench.coverage.recorder import BACKWARD, FORWARD, Op
from tracebench.frontends import regions

#: Calls that are profiled, and the seconds after which no further one begins once there are the fewest.
MOST_CALLS = 7
FEWEST_CALLS = 3
SECONDS = 6.0
_CALL, _INSIDE, _OUTSIDE = "tracebench::call", "tracebench::inside", "tracebench::outside"
_NODE = "autograd::engine::evaluate_function: "
_LOOKUP = "TorchDynamo Cache Lookup"
#: Ranges that are named like ops and are none.
_NO_OPS = ("tracebench::", "autograd::", "torch::autograd::", "torch::jit::")


@dataclass
class Profile:
    """Milliseconds of one call."""

    inside_ms: float = 0.0
    outside_ms: float = 0.0
    #: From the beginning of the forward pass to its end, and the nodes of the backward pass.
    call_ms: float = 0.0
    #: Of the forward pass before, between and after its graphs.
    gaps_ms: list[float] = field(default_factory=list)
    #: Of finding the compiled code whose guards hold; None where nothing tells of it.
    lookup_ms: float | None = None
    #: Op events outside of graphs as trees, by phase and place as in ``Op``.
    outside: dict[tuple[str, int], list[Any]] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """Return the share of the time of ops that ops inside graphs take."""
        whole = self.inside_ms + self.outside_ms
        return self.inside_ms / whole if whole > 0 else None


def profiles(
    device: torch.device, prepare: Callable[[], Callable[[], Any]], backward: Callable[[Any], object] | None
) -> list[Profile]:
    """Profile several calls, by time coverage; each calls what ``prepare`` returns, then ``backward`` on its output.

    Their number is odd, so that one of them is in the middle.
    """
    # The profiler's library would log its own start and stop.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    found: list[Profile] = []
    started = time.perf_counter()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        while len(found) < MOST_CALLS and (len(found) < FEWEST_CALLS or time.perf_counter() - started < SECONDS):
            found.append(_profile(device, prepare(), backward))
    finally:
        if collecting:
            gc.enable()
    if len(found) % 2 == 0:
        found.pop()
    return sorted(found, key=lambda one: (one.share or 0.0, one.call_ms))


def _profile(device: torch.device, forward: Callable[[], Any], backward: Callable[[Any], object] | None) -> Profile:
    ownership = Ownership()

    def watcher(inside: bool) -> AbstractContextManager[Any]:
        return _Range(ownership, inside)

    with profile(
        activities=supported_activities() if device.type != "cpu" else [ProfilerActivity.CPU], acc_events=True
    ) as profiler:
        with regions.watched(watcher), record_function(_CALL):
            ownership.begin()
            output = forward()
            ownership.end()
        if backward is not None:
            backward(output)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
    return _Reader(ownership, on_device=device.type != "cpu").read(profiler.events() or [])


class _Range:
    """A stretch inside or outside a graph, as a range of the profiler's and as numbers of autograd nodes."""

    def __init__(self, ownership: Ownership, inside: bool) -> None:
        self._contexts = (ownership.switched(inside), record_function(_INSIDE if inside else _OUTSIDE))

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


class _Reader:
    """Reads a profile from the profiler's events, which form a tree for each thread."""

    def __init__(self, ownership: Ownership, *, on_device: bool) -> None:
        self._ownership = ownership
        self._on_device = on_device
        self._found = Profile()
        #: Beginning and end of each stretch inside a graph in the forward pass, in microseconds.
        self._graphs: list[tuple[float, float]] = []

    def read(self, events: Sequence[Any]) -> Profile:
        roots = [event for event in events if event.cpu_parent is None and _on_cpu(event)]
        for event in sorted(roots, key=_start):
            self._visit(event, None, FORWARD, 0)
        return self._found

    def _visit(self, event: Any, inside: bool | None, phase: str, place: int) -> None:
        """Add up what ``event`` holds; ``inside`` is None where it is not the model's."""
        name = event.name
        if name == _CALL:
            return self._call(event)
        if name in (_INSIDE, _OUTSIDE):
            if name == _INSIDE and inside is False and phase == FORWARD:
                self._graphs.append((event.time_range.start, event.time_range.end))
            inside = name == _INSIDE
        elif name.startswith(_NODE):
            number = event.sequence_nr
            if inside is not True:
                inside = self._ownership.inside(number) if number >= 0 else None
            phase, place = BACKWARD, number - self._ownership.first
            if inside is not None and event.cpu_parent is None:
                self._found.call_ms += event.time_range.elapsed_us() / 1e3
        elif name == _LOOKUP:
            self._found.lookup_ms = (self._found.lookup_ms or 0.0) + event.time_range.elapsed_us() / 1e3
        elif is_op(event):
            self._op(event, inside, phase, place)
            return None
        for child in sorted(event.cpu_children, key=_start):
            self._visit(child, inside, phase, len(self._graphs) if phase == FORWARD else place)
        return None

    def _call(self, event: Any) -> None:
        for child in sorted(event.cpu_children, key=_start):
            self._visit(child, False, FORWARD, len(self._graphs))
        edges = [event.time_range.start, *(edge for graph in self._graphs for edge in graph), event.time_range.end]
        self._found.gaps_ms = [(end - start) / 1e3 for start, end in zip(edges[::2], edges[1::2], strict=True)]
        self._found.call_ms += event.time_range.elapsed_us() / 1e3

    def _op(self, event: Any, inside: bool | None, phase: str, place: int) -> None:
        if inside is None:
            return
        if inside:
            self._found.inside_ms += op_ms(event, self._on_device)
        else:
            self._found.outside_ms += op_ms(event, self._on_device)
            self._found.outside.setdefault((phase, place), []).append(event)


def is_op(event: Any) -> bool:
    """Return whether an event is an op's; ranges of the user, of autograd and of compiled code are none."""
    name = event.name
    return "::" in name and " " not in name and not event.is_user_annotation and not name.startswith(_NO_OPS)


def op_ms(event: Any, on_device: bool) -> float:
    """Return the time of an op with all that it calls, in milliseconds."""
    return float(event.device_time_total if on_device else event.time_range.elapsed_us()) / 1e3


def _start(event: Any) -> float:
    return float(event.time_range.start)


def _on_cpu(event: Any) -> bool:
    return "CPU" in str(event.device_type)


def op_times(found: Profile, ops: Sequence[Op], *, on_device: bool) -> list[float | None]:
    """Return the milliseconds of each of ``ops``, those that the recorder saw outside of graphs, in order.

    An op event may hold those of the ops that the recorder saw in its stead. Where the two do not fit together, the
    ops of that place have None.
    """
    places: dict[tuple[str, int], list[int]] = {}
    for index, op in enumerate(ops):
        places.setdefault((op.phase, op.place), []).append(index)
    times: list[float | None] = [None] * len(ops)
    for place, indices in places.items():
        events = _matched(iter(found.outside.get(place, [])), [profiled_name(ops[index].name) for index in indices])
        if len(events) == len(indices):
            for index, event in zip(indices, events, strict=True):
                times[index] = op_ms(event, on_device)
    return times


def profiled_name(name: str) -> str:
    """Return how the profiler calls an op that the recorder calls ``aten.add.Tensor``."""
    return "::".join(name.split(".")[:2])


def _matched(events: Iterator[Any], names: Sequence[str]) -> list[Any]:
    """Return the outermost events with these names in this order, as many as there are."""
    matched: list[Any] = []

    def visit(event: Any) -> None:
        # Gradients that meet are summed in place unless a recorder is on.
        if len(matched) < len(names) and event.name in (names[len(matched)], names[len(matched)] + "_"):
            matched.append(event)
            return
        for child in sorted(event.cpu_children, key=_start):
            visit(child)

    for event in events:
        visit(event)
    return matched
