"""``torch.jit.trace``: runs the model on the example inputs and keeps the ops it saw as TorchScript."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs
from tracebench.frontends.exclude import Hole, Traced, capture_excluding
from tracebench.frontends.fixed import merged
from tracebench.frontends.jit_fixed import baked, training_flags, warned
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

    def capture(self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False) -> Capture:
        """Trace ``model``, which runs it up to three times; with ``on_refusal="exclude"`` often more.

        Raises:
            Exception: what the tracer raises, among it ``torch.jit.TracingCheckError`` from its own re-check.
        """

        def trace(module: nn.Module, inputs: Inputs, holes: Sequence[Hole] = ()) -> Traced:
            return self._trace(module, inputs, holes, executor)

        if self.on_refusal == "exclude":
            return capture_excluding(model, inputs, trace, holes=executor.name == "replay", marked=marked)
        traced = trace(model, inputs)
        return Capture(
            call=regions.inside(traced.call) if marked else traced.call,
            module=traced.module,
            events=Events(
                graph_nodes=[traced.nodes] if traced.nodes else [],
                constants=list(traced.constants),
                specialised=list(traced.specialised),
            ),
        )

    def _trace(self, module: nn.Module, inputs: Inputs, holes: Sequence[Hole], executor: Executor) -> Traced:
        with warnings.catch_warnings(), ignored(holes) as regions_left:
            # A warning turned into an error, as test suites do, would look like a refusal.
            warnings.simplefilter("always", torch.jit._trace.TracerWarning)
            # TorchScript is deprecated; that is no finding about the model.
            warnings.filterwarnings("ignore", message=r".*torch\.jit.*deprecated.*")
            warnings.filterwarnings("ignore", message=r".*torch\.jit.*not supported in Python.*")
            with warned() as fixed:
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
            nodes=sum(1 for _ in _computing_nodes(graph)),
            constants=baked(graph, module),
            specialised=merged([*fixed, *training_flags(graph)]),
        )


def _examples(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The example arguments in the form ``torch.jit.trace`` takes: all positional or all by keyword."""
    if not inputs.kwargs:
        return {"example_inputs": tuple(inputs.args)}
    bound = inspect.signature(model.forward).bind(*inputs.args, **inputs.kwargs)
    return {"example_kwarg_inputs": dict(bound.arguments)}


def _computing_nodes(graph: Any) -> Any:
    """Yield the nodes that are neither constants nor plumbing of the graph."""
    for node in graph.nodes():
        if not node.kind().startswith("prim::"):
            yield node
        for block in node.blocks():
            yield from _computing_nodes(block)
