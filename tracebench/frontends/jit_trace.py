"""``torch.jit.trace``: runs the model on the example inputs and keeps the ops it saw as TorchScript."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.jit._fuser import optimized_execution

from tracebench.controls.orders import NO_ORDERS, Orders, rebound
from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Executor, Inputs, unsaved
from tracebench.frontends.exclude import Hole, Traced, capture_excluding, capture_of
from tracebench.frontends.fixed import merged
from tracebench.frontends.jit_fixed import baked, computing_nodes, training_flags, warned
from tracebench.frontends.jit_ignore import ignored


@dataclass(frozen=True)
class JitTrace:
    """Tracing by example. ``check_trace`` and ``strict`` are those of ``torch.jit.trace``.

    ``on_refusal="exclude"`` leaves to Python what the tracer refuses, and traces the rest; ``"refuse"`` raises.
    """

    check_trace: bool = True
    strict: bool = True
    on_refusal: str = "refuse"

    name = "jit_trace"
    lazy = False

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Nothing: functions stand in for others only while the tracer runs."""
        return contextlib.nullcontext()

    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Trace ``model``, which runs it up to three times; with ``on_refusal="exclude"`` often more.

        Raises:
            Exception: what the tracer raises, among it ``torch.jit.TracingCheckError`` from its own re-check.
        """

        def trace(module: nn.Module, inputs: Inputs, holes: Sequence[Hole] = ()) -> Traced:
            left = [*holes, *_holes(model, module, orders, marked=marked)]
            with _own_warnings(), _scripted(model, module, orders):
                return self._trace(module, inputs, left, executor)

        if self.on_refusal == "exclude":
            return capture_excluding(model, inputs, trace, holes=not executor.compiles, marked=marked)
        return capture_of(trace(model, inputs), marked=marked)

    def _trace(self, module: nn.Module, inputs: Inputs, holes: Sequence[Hole], executor: Executor) -> Traced:
        # Without the optimising executor, which coverage turns off, a trace would not look into calls of submodules.
        with ignored(holes) as regions_left, optimized_execution(True), warned() as fixed:
            traced = torch.jit.trace(
                module, **_examples(module, inputs), check_trace=self.check_trace, strict=self.strict
            )
        if regions_left:
            # They live as long as the trace.
            vars(traced)["_regions_left_to_python"] = regions_left
        graph = traced.inlined_graph
        return Traced(
            executor.wrap(traced),
            traced,
            nodes=sum(1 for _ in computing_nodes(graph)),
            constants=baked(graph, module),
            specialised=merged([*fixed, *training_flags(graph)]),
            notes=(unsaved(region.name for region in regions_left),) if regions_left else (),
        )


@contextlib.contextmanager
def _own_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        # A warning turned into an error, as test suites do, would look like a refusal.
        warnings.simplefilter("always", torch.jit._trace.TracerWarning)
        # TorchScript is deprecated; that is no finding about the model.
        warnings.filterwarnings("ignore", message=r".*torch\.jit.*deprecated.*")
        warnings.filterwarnings("ignore", message=r".*torch\.jit.*not supported in Python.*")
        yield


def _holes(model: nn.Module, module: nn.Module, orders: Orders, *, marked: bool) -> list[Hole]:
    """Return what ``orders`` keep out of the graph of ``module``, which is ``model`` or a part of it."""
    found = []
    for order in orders.of("disable"):
        assert order.target is not None
        pieces: list[tuple[Any, Callable[..., Any]]] = [
            (part, part.forward) for part in order.target.modules(model, module)
        ]
        if order.target.function is not None:
            pieces.append((order.target, order.target.function))
        name = order.instruction.target
        found += [Hole(name, piece, regions.outside(run) if marked else run) for piece, run in pieces]
    return found


@contextlib.contextmanager
def _scripted(model: nn.Module, module: nn.Module, orders: Orders) -> Iterator[None]:
    """Within the context, have what ``orders`` want as one op be scripted: a trace keeps a call of a script as one."""
    with contextlib.ExitStack() as during:
        for order in orders.of("opaque"):
            assert order.target is not None
            parts = {id(part) for part in order.target.modules(model, module) if part is not module}
            # The tracer knows a script only as a submodule of the module that calls it.
            for owner in list(module.modules()):
                for name, part in owner.named_children():
                    if id(part) in parts:
                        setattr(owner, name, torch.jit.script(part))
                        during.callback(setattr, owner, name, part)
            if order.target.function is not None:
                during.enter_context(rebound(order.target, torch.jit.script(order.target.function)))
        yield


def _examples(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The example arguments in the form ``torch.jit.trace`` takes: all positional or all by keyword."""
    if not inputs.kwargs:
        return {"example_inputs": tuple(inputs.args)}
    bound = inspect.signature(model.forward).bind(*inputs.args, **inputs.kwargs)
    return {"example_kwarg_inputs": dict(bound.arguments)}
