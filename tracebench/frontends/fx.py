"""``torch.fx.symbolic_trace``: runs the model's Python once on proxies and writes down what they meet."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs, count_nodes, describe_constant
from tracebench.frontends.exclude import Hole, Traced, capture_excluding
from tracebench.frontends.fixed import argument_flag, became_python, merged, python_kind, training_flag
from tracebench.record import Constant, Specialisation
from tracebench.userlocation import caller_location


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
        traced = trace(model, inputs)
        events = Events(
            graph_nodes=[traced.nodes] if traced.nodes else [],
            constants=list(traced.constants),
            specialised=list(traced.specialised),
        )
        call = traced.call
        return Capture(call=regions.inside(call) if marked else call, module=traced.module, events=events)


def _trace(module: nn.Module, holes: Sequence[Hole], executor: Executor) -> Traced:
    tracer = _Tracer(holes)
    with tracer.made:
        traced = tracer.trace(module)
    constants = _constants(traced, module, tracer)
    graph = torch.fx.GraphModule(module, traced, type(module).__name__)
    for hole in holes:
        # The graph calls the module, which is a leaf of it.
        vars(hole.module)["forward"] = hole.run
    return Traced(
        executor.wrap(graph), graph, count_nodes(graph.graph), constants, merged([*tracer.made.fixed, *tracer.fixed])
    )


class _Made(TorchDispatchMode):
    """Watches what runs for real while a model is traced: which line makes which tensor, and reads of their values."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed: list[Specialisation] = []
        self.lines: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            self.fixed.append(became_python(sys._getframe(1), python_kind(result), repr(result)))
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, torch.Tensor):
                self.lines.setdefault(item, caller_location(sys._getframe(1)))
        return result


class _Tracer(torch.fx.Tracer):
    """The tracer of ``torch.fx.symbolic_trace``, for which holes are leaves too; it notes lines of what it bakes in."""

    def __init__(self, holes: Sequence[Hole]) -> None:
        super().__init__()
        self._holes = {id(hole.module) for hole in holes}
        self.made = _Made()
        self.fixed: list[Specialisation] = []
        #: Attribute of the graph -> the line that made it or, if the model had it before, that met it first.
        self.lines: dict[str, str | None] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) in self._holes or super().is_leaf_module(m, module_qualified_name)

    def create_arg(self, a: Any) -> Any:
        argument = super().create_arg(a)
        if (
            isinstance(a, torch.Tensor)
            and isinstance(argument, torch.fx.Node)
            and str(argument.target) not in self.lines
        ):
            line = self.made.lines.get(a) or caller_location(sys._getframe(1))
            self.lines[str(argument.target)] = line
        return argument

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> torch.fx.Node:
        if kind == "call_function":
            flag = argument_flag(_parameters(target), args, kwargs)
            if flag is not None:
                name = getattr(target, "__name__", str(target))
                self.fixed.append(training_flag(name, flag, caller_location(sys._getframe(1))))
        return super().create_node(kind, target, args, kwargs, *rest, **more)


@lru_cache(maxsize=512)
def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # A builtin; its arguments by keyword are seen all the same.
        return ()


def _constants(graph: torch.fx.Graph, module: nn.Module, tracer: _Tracer) -> list[Constant]:
    """Tensors of the graph that are neither parameters nor buffers: made while tracing, or plain attributes."""
    state = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    state.update(name for name, _ in module.named_buffers(remove_duplicate=False))
    targets = dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "get_attr")
    found = []
    for name in targets:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part)
        if name not in state and isinstance(value, torch.Tensor):
            found.append(describe_constant(name, value, tracer.lines.get(name)))
    return found
