"""``torch.fx.symbolic_trace``: runs the model's Python once on proxies and writes down what they meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs, count_nodes, describe_constant
from tracebench.record import Constant


@dataclass(frozen=True)
class Fx:
    """Symbolic tracing of the whole module; the example inputs take no part in it."""

    name = "fx"
    lazy = False

    def capture(self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False) -> Capture:
        """Trace ``model`` into one ``fx.GraphModule``.

        Raises:
            Exception: what the tracer raises, usually ``torch.fx.proxy.TraceError`` or ``TypeError``.
        """
        graph = torch.fx.symbolic_trace(model)
        nodes = count_nodes(graph.graph)
        events = Events(graph_nodes=[nodes] if nodes else [], constants=_constants(graph))
        call = executor.wrap(graph)
        return Capture(call=regions.inside(call) if marked else call, module=graph, events=events)


def _constants(graph: torch.fx.GraphModule) -> list[Constant]:
    """Tensors made during tracing, which the tracer keeps as ``_tensor_constantN`` attributes."""
    names = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    found = {name: getattr(graph, name) for name in sorted(names) if name.startswith("_tensor_constant")}
    return [describe_constant(name, value) for name, value in found.items() if isinstance(value, torch.Tensor)]
