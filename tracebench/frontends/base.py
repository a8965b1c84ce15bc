"""The protocol of a front end: what goes in, what comes out, and the signal that says where control is.

A front end captures and nothing else: it knows nothing of timing, coverage, verdicts or files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx, nn

from tracebench.controls.orders import NO_ORDERS, Orders
from tracebench.record import Constant, Excluded, GraphBreak, Specialisation


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call of a model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Events:
    """What happened while capturing; filled in by the front end, also during later calls (recompiles)."""

    #: Nodes that compute something, one entry per graph. Graphs without any are left out.
    graph_nodes: list[int] = field(default_factory=list)
    #: The graphs themselves, in the same order.
    graphs: list[nn.Module] = field(default_factory=list)
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    recompiles: list[str] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    #: What was fixed that eager decides anew at each call.
    specialised: list[Specialisation] = field(default_factory=list)
    #: What was left to Python so that the rest could be captured.
    excluded: list[Excluded] = field(default_factory=list)
    #: What else is worth saying of the capture.
    notes: list[str] = field(default_factory=list)
    guards: int | None = None
    #: How captures of several runs branch, as lines of text; None where there is but one.
    tree: list[str] | None = None
    #: Whether whatever runs outside the graphs was left to Python on purpose.
    leaves: bool = False
    #: How many times the front end has compiled so far.
    compilations: int = 0
    #: Brings the fields that are gathered late up to date; call before reading them.
    refresh: Callable[[], None] = lambda: None

    def add_graph(self, graph: nn.Module, nodes: int) -> int | None:
        """Note a captured graph and return its number; None if it computes nothing, so that it is no captured work."""
        if not nodes:
            return None
        self.graphs.append(graph)
        self.graph_nodes.append(nodes)
        return len(self.graphs) - 1


@dataclass(frozen=True)
class Capture:
    """A captured model.

    ``call`` has the module's own signature. ``module`` is the module whose parameters and buffers it uses.
    """

    call: Callable[..., Any]
    module: nn.Module
    events: Events
    #: Returns how many compilations took place so far; a change during a measurement invalidates it.
    compilations: Callable[[], int] = lambda: 0
    #: How many calls like the first it takes until nothing is compiled for such a call.
    settles_after: int = 1
    #: Writes the artifact to a file, for another process to load; None where it cannot be saved.
    save: Callable[[Path], None] | None = None
    #: Why it cannot be saved, where no note of the events says so.
    unsavable: str = ""


class Executor(Protocol):
    """What runs the captured graphs."""

    name: str
    #: How many graphs were compiled so far.
    compilations: int
    #: Whether graphs are lowered through a compiler, which would look into the Python that a graph calls.
    compiles: bool
    #: Whether random ops draw other numbers than eager does from the same seed.
    own_random_numbers: bool

    def lower(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a callable that runs ``graph`` on flat inputs like ``example_inputs`` (Dynamo's backend form)."""
        ...

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return a callable with the signature of ``module``, a module that is one captured graph."""
        ...


class FrontEnd(Protocol):
    """One way of capturing a model as graphs. See ``tracebench.frontends.FRONT_ENDS`` for the registry.

    ``lazy`` says that graphs are made by the first call of ``Capture.call`` rather than by ``capture``.
    """

    name: str
    lazy: bool

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Return the context in which what ``orders`` change beyond one model is in force: functions, settings.

        Captures made with ``orders`` are made, and called, within it.

        Raises:
            RequestError: this torch lacks something that the orders need.
        """
        ...

    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Capture ``model``, which the front end may run and change, on ``inputs``, which it may change.

        ``orders`` are the controls that it carries out.
        With ``marked`` every captured graph tells ``regions`` when control is inside it; without, the callable
        carries no instrumentation, so that it can be timed.

        Raises:
            Exception: whatever the underlying tracer raises; the harness records it as a refusal.
        """
        ...


#: How a note begins that says why there is no artifact.
UNSAVED = "the artifact cannot be saved: "


def saver(graph: nn.Module) -> Callable[[Path], None]:
    """Return what saves ``graph``, an ``fx.GraphModule`` or a TorchScript module, with its weights.

    It is loaded by ``torch.load(path, weights_only=False)`` and by ``torch.jit.load(path)``.
    """

    def save(path: Path) -> None:
        if isinstance(graph, torch.jit.ScriptModule):
            with warnings.catch_warnings():
                # TorchScript is deprecated; that is no finding about the model.
                warnings.filterwarnings("ignore", message=r".*torch\.jit.*")
                torch.jit.save(graph, str(path))
        else:
            traced = [module for module in graph.modules() if isinstance(module, fx.GraphModule)]
            tracers = [module._tracer_cls for module in traced]
            try:
                # Loading takes the code as it is. A tracer of ours would have to be there for it to be named.
                for module in traced:
                    module._tracer_cls = None
                torch.save(graph, path)
            finally:
                for module, tracer in zip(traced, tracers, strict=True):
                    module._tracer_cls = tracer

    return save


def unsaved(regions: Iterable[str]) -> str:
    """Return the note that a capture calls Python at ``regions``, which no file can hold."""
    return f"{UNSAVED}regions left to Python: {', '.join(dict.fromkeys(regions))}"


def count_nodes(graph: fx.Graph) -> int:
    """Return how many nodes of ``graph`` compute something."""
    return sum(node.op in ("call_function", "call_method", "call_module") for node in graph.nodes)


def describe_constant(name: str, value: torch.Tensor, location: str | None = None) -> Constant:
    """Return the record's form of a tensor that was baked into a graph; a ragged dimension has size -1."""
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    plain = value.layout is torch.strided and -1 not in shape
    size = value.numel() * value.element_size() if plain else None
    return Constant(name, shape, str(value.dtype).removeprefix("torch."), location, size)
