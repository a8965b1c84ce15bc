"""TorchDynamo through ``torch.compile``, with a backend of our own that sees every graph it makes."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx, nn

from tracebench.controls.orders import NO_ORDERS, Orders
from tracebench.frontends import dynamo_controls, regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs, count_nodes
from tracebench.frontends.dynamo_fixed import graph_constants, on_compiled, read_guards
from tracebench.record import GraphBreak, joined
from tracebench.userlocation import innermost_of_model, short

#: The modules of ``torch._dynamo`` that log graph breaks.
_BREAK_LOGGERS = ("symbolic_convert", "convert_frame", "exc")
_LOCATED = re.compile(
    r"Graph break[^\n]*? in user code at (?P<file>.+?):(?P<line>\d+)\nGraph Break Reason: (?P<reason>.*)", re.S
)
_SKIPPED = re.compile(r"will skip tracing the frame (?P<frame>.+?) and fall back to eager", re.S)
_FRAME = re.compile(r"^\s*File \"(?P<file>.+?)\", line (?P<line>\d+)", re.M)
_FUNCTION = re.compile(r"(?:frame skipped:|tracing the frame) (?P<name>\S+) \((?P<file>[^\n]+?) line (?P<line>\d+)\)")
_HINT = re.compile(r"^\s*Hint: (.+)$", re.M)
_LINK = re.compile(r"please visit: (\S+)")
_STACK = "User code traceback:"
#: How Dynamo introduces the reason proper.
_PREAMBLES = ("Encountered graph break when", "Failed to handle graph break gracefully")


@dataclass(frozen=True)
class Dynamo:
    """``fullgraph`` and ``dynamic`` are those of ``torch.compile``. Graphs are made by the first call."""

    fullgraph: bool = False
    dynamic: bool | None = None

    name = "dynamo"
    lazy = True

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Functions decorated, Dynamo's marks on functions and its settings, which are undone at the end."""
        return dynamo_controls.in_force(orders)

    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Prepare ``model`` for capture at its first call; what Dynamo cannot take is raised by that call.

        Forgets what Dynamo compiled before in this process, so that one capture is live at a time.
        """
        import torch._dynamo as dynamo

        dynamo.reset()
        dynamo_controls.decorate(model, orders)
        events = _LISTENER.listen(model)

        def backend(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            number = events.add_graph(graph, count_nodes(graph.graph))
            # Compiled again, a graph holds the same tensors.
            events.constants += [item for item in graph_constants(graph, model) if item not in events.constants]
            lowered = executor.lower(graph, example_inputs)
            return regions.inside(lowered, number) if marked and number is not None else lowered

        more = dynamo_controls.compile_options(orders)
        call = torch.compile(model, backend=backend, fullgraph=self.fullgraph, dynamic=self.dynamic, **more)
        return Capture(
            call=dynamo_controls.controlled_call(call, orders),
            module=model,
            events=events,
            settles_after=dynamo_controls.settles_after(orders),
            unsavable="guards and the Python between Dynamo's graphs live in this process (torch.export makes files)",
        )


class _Listener(logging.Handler):
    """Hears of compilations and graph breaks and notes them in the events of the live capture.

    Dynamo tells of breaks in its ``graph_breaks`` log alone: its counters and ``explain`` leave out the ones in
    loops, on data-dependent branches and at the ends of a function.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._events = Events()
        self._codes: list[CodeType] | None = None

    def listen(self, model: nn.Module) -> Events:
        """Return new events, which from now on receive what is heard of the capture of ``model``."""
        self._install()
        from torch._dynamo import callback, utils

        # torch._dynamo.reset() has dropped the callback of the capture before.
        callback.on_compile_start(lambda *_: self._compiled())
        utils.clear_compilation_metrics()
        self._events = events = Events()
        if self._codes is None:
            on_compiled(lambda code: self._codes.append(code) if self._codes is not None else None)
        codes: list[CodeType] = []
        self._codes = codes

        def refresh() -> None:
            _read_metrics(events)
            # What was compiled before is forgotten when the next capture begins.
            events.specialised = read_guards(codes, model) or events.specialised

        events.refresh = refresh
        return events

    def _install(self) -> None:
        """Listen, also if someone has set up logging anew since the capture before."""
        from torch._dynamo import utils
        from torch._logging._internal import getArtifactLogger

        for name in _BREAK_LOGGERS:
            logger = getArtifactLogger(f"torch._dynamo.{name}", "graph_breaks")
            logger.disabled = False
            if not logger.isEnabledFor(logging.DEBUG):
                # Nobody asked torch to print these, so they stop here.
                logger.propagate = False
                logger.setLevel(logging.DEBUG)
            logger.addHandler(self)
        # Guards and recompile reasons are read from here; the default keeps the last 64 frames only.
        utils.set_compilation_metrics_limit(100_000)

    def _compiled(self) -> None:
        self._events.compilations += 1

    def emit(self, record: logging.LogRecord) -> None:
        """Note one graph break."""
        from torch._dynamo.utils import reset_graph_break_dup_checker

        # Or the next one at the same line of torch's would be told without its stack.
        reset_graph_break_dup_checker()
        found = parse_graph_break(record.getMessage(), _stack(record))
        if found is None:
            return
        breaks = self._events.graph_breaks
        for index, known in enumerate(breaks):
            if known.location == found.location and (known.location is not None or known.reason == found.reason):
                breaks[index] = joined(known, found)
                return
        breaks.append(found)


def parse_graph_break(message: str, stack: Sequence[tuple[str, int]] = ()) -> GraphBreak | None:
    """Return the graph break a log message of Dynamo tells of, or None if it tells of none.

    ``stack`` is that of the break as (file, line), outermost first; without it, what the message tells of it is used.
    It is one report; Dynamo reports a break in a submodule once for each frame it unwinds through.
    """
    located = _LOCATED.search(message)
    skipped = _SKIPPED.search(message)
    location: str | None
    if located is not None:
        reason = _reason(located["reason"])
        location = _location(message, stack, located["file"], int(located["line"]))
    elif skipped is not None:
        frames = _FRAME.findall(message)
        reason = f"frame skipped: {skipped['frame']}"
        location = _location(message, stack, frames[-1][0], int(frames[-1][1])) if frames else None
    else:
        return None
    function = _FUNCTION.search(message)
    return GraphBreak(
        reason,
        location,
        reports=1,
        hints=tuple(dict.fromkeys(_HINT.findall(message))),
        links=tuple(dict.fromkeys(_LINK.findall(message))),
        skipped=f"{function['name']} {short(function['file'], int(function['line']))}" if function else None,
    )


def _location(message: str, stack: Sequence[tuple[str, int]], file: str, line: int) -> str:
    """Return where it broke: that line, or the line of the model's that led to it if it is torch's, or a control's."""
    # Before its stack, a message may tell where values come from.
    told = [(file, int(line)) for file, line in _FRAME.findall(message.rpartition(_STACK)[2])]
    return innermost_of_model([*(stack or told), (file, line)]) or short(file, line)


def _stack(record: logging.LogRecord) -> list[tuple[str, int]]:
    """Return the stack of the break that is being told of, or none where it cannot be had.

    In its messages Dynamo takes a function for the continuation of its caller where both have the same name, such as
    ``forward``, and leaves out the caller.
    """
    from torch._dynamo.exc import get_stack_above_dynamo

    error: Any = record.exc_info[1] if record.exc_info else None
    frame = sys._getframe()
    while error is None and frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "log_graph_break":
            error = frame.f_locals.get("exc")
    traced = getattr(error, "real_stack", None)
    if not traced:
        return []
    return [(found.filename, found.lineno or 0) for found in (*get_stack_above_dynamo(), *traced)]


def _reason(text: str) -> str:
    """The first line that says what happened, without Dynamo's introduction."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_PREAMBLES):
        return lines[1]
    return lines[0] if lines else ""


def _read_metrics(events: Events) -> None:
    from torch._dynamo import utils

    metrics = [metric for metric in utils.get_compilation_metrics() if metric.guard_count is not None]
    events.guards = sum(metric.guard_count or 0 for metric in metrics)
    events.recompiles = [str(metric.recompile_reason) for metric in metrics if metric.recompile_reason]


_LISTENER = _Listener()
