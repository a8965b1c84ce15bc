"""A trace hook of the user's own: any function that takes a model and inputs and returns a callable.

Nothing is asked of the callable but the module's signature. The graphs that it tells of are marked, and lowered, by
giving each a ``forward`` of its own; what is timed under ``replay`` is what the hook returned.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn

from tracebench.controls.orders import NO_ORDERS, Orders
from tracebench.errors import RequestError, unknown_choice
from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs, count_nodes, describe_constant, saver
from tracebench.frontends.jit_fixed import baked, computing_nodes
from tracebench.hooks import Graphs, Traced
from tracebench.hookspec import FORM, HookSpec, misfit, parameters_of, takes_kwargs
from tracebench.record import Constant, GraphBreak
from tracebench.subject import import_file
from tracebench.userlocation import definition

_GRAPHS = (fx.GraphModule, torch.jit.ScriptModule)
NO_GRAPHS = (
    "the hook told of no graphs, so none of its work counts as captured, and no compiler gets any: return a "
    "torch.fx.GraphModule, or tracebench.hooks.Traced(call, graphs=[...])"
)
LATE_GRAPHS = (
    "the hook added graphs to a plain list after it had returned, which do not count: use tracebench.hooks.Graphs()"
)


class HookError(TypeError):
    """A hook broke the contract; ``location`` is ``file:line`` of its definition."""

    def __init__(self, message: str, location: str | None = None) -> None:
        super().__init__(message)
        self.location = location


@dataclass(frozen=True)
class UserHook:
    """The function that ``hook`` (``path/to/file.py:function`` or ``pkg.mod:function``) names, as a front end."""

    hook: str
    function: Callable[..., Any] = field(init=False, repr=False, compare=False)
    name = "user hook"
    lazy = False

    def __post_init__(self) -> None:
        """Load the function.

        Raises:
            RequestError: there is none of that name, or it does not take what a hook is given.
        """
        object.__setattr__(self, "function", load(HookSpec.parse(self.hook)))

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Nothing.

        Raises:
            RequestError: there are controls; a user's hook is told of none.
        """
        if orders:
            raise RequestError(f"controls are something that a hook of your own ({self.hook}) is not told of.")
        return contextlib.nullcontext()

    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Call the hook.

        Raises:
            HookError: what it returns is no capture, has nothing for ``executor`` to lower, or it takes no ``kwargs``
                and the inputs have some.
            Exception: what the hook raises.
        """
        location = definition(self.function)
        takes = takes_kwargs(parameters_of(inspect.signature(self.function)))
        if inputs.kwargs and not takes:
            raise HookError(
                f"the example inputs have keyword arguments ({', '.join(inputs.kwargs)}), and {self.hook} takes none: "
                f"write {self.function.__name__}(model, inputs, kwargs)",
                location,
            )
        further = {"kwargs": dict(inputs.kwargs)} if takes else {}
        told = _told(self.function(model, tuple(inputs.args), **further), self.hook, location)
        lowers = executor.name != "replay"
        if lowers and not told.graphs and not isinstance(told.graphs, Graphs):
            raise HookError(
                f"executor={executor.name} has nothing to lower: {self.hook} told of no graphs. Return a "
                "torch.fx.GraphModule, or tracebench.hooks.Traced(call, graphs=[...])",
                location,
            )
        known = _Known(told, model, executor if lowers else None, marked, self.hook)
        call, save, unsavable = told.call, None, "the hook returned no graph but a callable that may run some"
        if isinstance(told.call, _GRAPHS):
            save, unsavable = saver(told.call), ""
        return Capture(call, model, known.events, save=save, unsavable=unsavable)


def load(spec: HookSpec) -> Callable[..., Any]:
    """Import the function that ``spec`` names.

    Raises:
        RequestError: there is none, it cannot be called, or it does not take what a hook is given.
    """
    module = import_file(spec.file(), "hook") if spec.is_file else _imported(spec.place)
    found = getattr(module, spec.function, None)
    if not callable(found):
        if hasattr(module, spec.function):
            raise RequestError(f"{spec.place}: {spec.function} is a {type(found).__name__}, no function. {FORM}")
        functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise unknown_choice(f"function of {spec.place}:", spec.function, functions, FORM)
    try:
        parameters = parameters_of(inspect.signature(found))
    except (TypeError, ValueError):
        raise RequestError(f"{spec.place}: {spec.function} does not tell its parameters. {FORM}") from None
    if problem := misfit(parameters):
        raise RequestError(f"{spec.place}: {spec.function}{problem}. {FORM}")
    function: Callable[..., Any] = found
    return function


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise RequestError(f"the hook's module {name!r} does not import: {type(error).__name__}: {error}") from error


def _told(returned: Any, hook: str, location: str | None) -> Traced:
    """Return what a hook returned as ``Traced``.

    Raises:
        HookError: it is none, and no callable either; or something told in it is of the wrong kind.
    """
    told = returned if isinstance(returned, Traced) else Traced(returned)
    call: object = told.call
    if not callable(call):
        what = "a Traced whose call is " if returned is told else ""
        raise HookError(
            f"{hook} returned {what}{type(call).__name__}, which cannot be called; a hook returns a callable "
            "with the module's signature, or tracebench.hooks.Traced",
            location,
        )
    if isinstance(told.call, _GRAPHS) and not told.graphs:
        told = Traced(told.call, (told.call,), told.graph_breaks, told.notes)
    for what, given, kinds in (
        ("graphs", told.graphs, _GRAPHS),
        ("graph_breaks", told.graph_breaks, GraphBreak),
        ("notes", told.notes, str),
    ):
        _check(what, given, kinds, hook, location)
    return told


def _check(what: str, given: Any, kinds: Any, hook: str, location: str | None) -> None:
    if not isinstance(given, (list, tuple)):
        raise HookError(f"{what} of {hook} must be a list or tuple, not {type(given).__name__}", location)
    for item in given:
        if not isinstance(item, kinds):
            names = " or ".join(f"{kind.__module__}.{kind.__name__}" for kind in _tuple(kinds))
            raise HookError(f"{what} of {hook} must hold {names}, not {type(item).__name__}", location)


def _tuple(kinds: Any) -> tuple[Any, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


class _Known:
    """What is known of a hook's capture so far: each graph that is told of is noted, and marked or lowered."""

    def __init__(self, told: Traced, model: nn.Module, executor: Executor | None, marked: bool, hook: str) -> None:
        self.events = Events(refresh=self.look)
        self._told = told
        self._model = model
        self._state = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._executor = executor
        self._marked = marked
        self._hook = hook
        self._taken = 0
        for graph in told.graphs:
            self.take(graph)
        self.events.compilations = 0
        if isinstance(told.graphs, Graphs):
            told.graphs.on_append = self.take
        self.look()

    def take(self, graph: nn.Module) -> None:
        """Take note of a graph before it is first called.

        Raises:
            HookError: it is none.
        """
        _check("graphs", (graph,), _GRAPHS, self._hook, None)
        self._taken += 1
        self.events.compilations += 1
        self.events.constants += _constants(graph, self._model, self._state)
        number = self.events.add_graph(graph, _nodes(graph))
        if number is None:
            return
        if self._executor is not None:
            # A compiler looks at the graph's own forward, so what it compiles is a copy that keeps it.
            vars(graph)["forward"] = self._executor.wrap(copy.copy(graph))
        if self._marked:
            vars(graph)["forward"] = regions.inside(graph.forward, number)

    def look(self) -> None:
        """Bring up to date what the hook tells besides."""
        self.events.graph_breaks = list(self._told.graph_breaks)
        self.events.notes = list(self._told.notes)
        if not self._told.graphs:
            self.events.notes.append(NO_GRAPHS)
        if len(self._told.graphs) > self._taken:
            self.events.notes.append(LATE_GRAPHS)


def _nodes(graph: nn.Module) -> int:
    if isinstance(graph, fx.GraphModule):
        return count_nodes(graph.graph)
    assert isinstance(graph, torch.jit.ScriptModule)
    return sum(1 for _ in computing_nodes(graph.inlined_graph))


def _constants(graph: nn.Module, model: nn.Module, state: set[int]) -> list[Constant]:
    """Return the tensors that ``graph`` holds and that are not the model's own parameters and buffers."""
    if not isinstance(graph, fx.GraphModule):
        assert isinstance(graph, torch.jit.ScriptModule)
        return baked(graph.inlined_graph, model)
    found = []
    for name in dict.fromkeys(str(node.target) for node in graph.graph.nodes if node.op == "get_attr"):
        value: Any = graph
        for part in name.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor) and id(value) not in state:
            found.append(describe_constant(name, value))
    return found
