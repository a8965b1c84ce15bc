"""``torch.fx.symbolic_trace``: runs the model's Python once on proxies and writes down what they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tracebench.frontends.base import Capture, Executor, Inputs, count_nodes, describe_constant
from tracebench.frontends.exclude import Hole, Traced, capture_excluding, capture_of
from tracebench.record import Constant


@dataclass(frozen=True)
class Fx:
    """Symbolic tracing of the whole module; the example inputs take no part in it.

    ``on_refusal="exclude"`` leaves to Python what the tracer refuses, and traces the rest; ``"refuse"`` raises.
    """

    on_refusal: str = "refuse"

    name = "fx"
    lazy = False

    def capture(self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False) -> Capture:
        """Trace ``model`` into one ``fx.GraphModule``, or with ``on_refusal="exclude"`` into several.

        Raises:
            Exception: what the tracer raises, usually ``torch.fx.proxy.TraceError`` or ``TypeError``.
        """

        def trace(module: nn.Module, inputs: Inputs, holes: Sequence[Hole] = ()) -> Traced:
            return _trace(module, holes, executor)

        if self.on_refusal == "exclude":
            return capture_excluding(model, inputs, trace, holes=executor.name == "replay", marked=marked)
        return capture_of(trace(model, inputs), marked=marked)


def _trace(module: nn.Module, holes: Sequence[Hole], executor: Executor) -> Traced:
    graph = torch.fx.GraphModule(module, _Tracer(holes).trace(module), type(module).__name__)
    for hole in holes:
        # The graph calls the module, which is a leaf of it.
        vars(hole.module)["forward"] = hole.run
    return Traced(executor.wrap(graph), graph, count_nodes(graph.graph), _constants(graph))


class _Tracer(torch.fx.Tracer):
    """The tracer of ``torch.fx.symbolic_trace``, for which holes are leaves too."""

    def __init__(self, holes: Sequence[Hole]) -> None:
        super().__init__()
        self._holes = {id(hole.module) for hole in holes}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) in self._holes or super().is_leaf_module(m, module_qualified_name)


def _constants(graph: torch.fx.GraphModule) -> list[Constant]:
    """Tensors made during tracing, which the tracer keeps as ``_tensor_constantN`` attributes."""
    names = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    found = {name: getattr(graph, name) for name in sorted(names) if name.startswith("_tensor_constant")}
    return [describe_constant(name, value) for name, value in found.items() if isinstance(value, torch.Tensor)]
