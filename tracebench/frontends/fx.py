"""``torch.fx.symbolic_trace``: runs the model's Python once on proxies and writes down what they meet."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from tracebench.controls.orders import NO_ORDERS, Orders, decorate_modules, rebound
from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Executor, Inputs, count_nodes, describe_constant
from tracebench.frontends.exclude import Hole, Traced, capture_excluding, capture_of
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

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Nothing: functions stand in for others only while the tracer runs."""
        return contextlib.nullcontext()

    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Trace ``model`` into one ``fx.GraphModule``, or with ``on_refusal="exclude"`` into several.

        Raises:
            Exception: what the tracer raises, usually ``torch.fx.proxy.TraceError`` or ``TypeError``.
        """

        def trace(module: nn.Module, inputs: Inputs, holes: Sequence[Hole] = ()) -> Traced:
            return _trace(model, module, holes, executor, orders, marked=marked)

        if self.on_refusal == "exclude":
            return capture_excluding(model, inputs, trace, holes=not executor.compiles, marked=marked)
        return capture_of(trace(model, inputs), marked=marked)


def _trace(
    model: nn.Module, module: nn.Module, holes: Sequence[Hole], executor: Executor, orders: Orders, *, marked: bool
) -> Traced:
    """Trace ``module``, which is ``model`` or a part of it."""

    def leave(run: Callable[..., Any]) -> Callable[..., Any]:
        if executor.compiles:
            # Or the compiler would look into it.
            run = torch.compiler.disable(run)
        return regions.outside(run) if marked else run

    tracer = _Tracer()
    for hole in holes:
        assert isinstance(hole.piece, nn.Module)
        tracer.note("disable", [hole.piece])
        # The graph calls the module, which is a leaf of it.
        vars(hole.piece)["forward"] = hole.run
    with contextlib.ExitStack() as during:
        for order in orders.of("disable", "opaque", "inline"):
            assert order.target is not None
            control, function = order.instruction.control, order.target.function
            tracer.note(control, order.target.modules(model, module))
            if function is not None and control != "inline":
                calls = _named(leave(function), function) if control == "disable" else function
                during.enter_context(rebound(order.target, tracer.call_of(calls)))
        with tracer.made:
            traced = tracer.trace(module)
    constants = _constants(traced, module, tracer)
    graph = torch.fx.GraphModule(module, traced, type(module).__name__)
    for order in orders.of("disable"):
        assert order.target is not None
        decorate_modules(order.target.modules(model, module), leave)
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


def _named(stands_in: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for ``function`` under a name by which a graph's code does not find the function itself.

    That code spells out functions that say they are torch's.
    """
    if stands_in is not function:
        stands_in.__module__ = __name__
        stands_in.__qualname__ = stands_in.__name__ = f"python_{getattr(function, '__name__', 'function')}"
    return stands_in


class _Tracer(torch.fx.Tracer):
    """The tracer of ``torch.fx.symbolic_trace``, for which holes are leaves too; it notes lines of what it bakes in."""

    def __init__(self) -> None:
        super().__init__()
        self._leaves: set[int] = set()
        self._inlined: set[int] = set()
        self.made = _Made()
        self.fixed: list[Specialisation] = []
        #: Attribute of the graph -> the line that made it or, if the model had it before, that met it first.
        self.lines: dict[str, str | None] = {}

    def note(self, control: str, modules: Sequence[nn.Module]) -> None:
        """Take ``modules`` as leaves, or with ``inline`` look into them."""
        (self._inlined if control == "inline" else self._leaves).update(map(id, modules))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if id(m) in self._leaves or id(m) in self._inlined:
            return id(m) in self._leaves
        return super().is_leaf_module(m, module_qualified_name)

    def call_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands for ``function`` while tracing: a call of it in the graph, as ``torch.fx.wrap`` makes."""

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves = torch.utils._pytree.tree_leaves((args, kwargs))
            if any(isinstance(leaf, torch.fx.Proxy) for leaf in leaves):
                return self.create_proxy("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return call

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
