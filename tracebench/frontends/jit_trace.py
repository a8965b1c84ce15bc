"""``torch.jit.trace``: runs the model on the example inputs and keeps the ops it saw as TorchScript."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs


@dataclass(frozen=True)
class JitTrace:
    """Tracing by example. ``check_trace`` and ``strict`` are those of ``torch.jit.trace``."""

    check_trace: bool = True
    strict: bool = True

    name = "jit_trace"
    lazy = False

    def capture(self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False) -> Capture:
        """Trace ``model``, which runs it up to three times.

        Raises:
            Exception: what the tracer raises, among it ``torch.jit.TracingCheckError`` from its own re-check.
        """
        with warnings.catch_warnings():
            # A warning turned into an error, as test suites do, would look like a refusal.
            warnings.simplefilter("always", torch.jit._trace.TracerWarning)
            # TorchScript is deprecated; that is no finding about the model.
            warnings.filterwarnings("ignore", message=r".*torch\.jit.*deprecated.*")
            warnings.filterwarnings("ignore", message=r".*torch\.jit.*not supported in Python.*")
            traced = torch.jit.trace(
                model, **_examples(model, inputs), check_trace=self.check_trace, strict=self.strict
            )
        nodes = sum(1 for _ in _computing_nodes(traced.inlined_graph))
        call = executor.wrap(traced)
        return Capture(
            call=regions.inside(call) if marked else call,
            module=traced,
            events=Events(graph_nodes=[nodes] if nodes else []),
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
