"""The one recorder of ATen ops, for eager and for every front end, in inference and in training."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tracebench.coverage.flops import flops
from tracebench.coverage.origin import Origin, origin
from tracebench.coverage.ownership import Ownership, next_node
from tracebench.frontends import regions

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True)
class Op:
    """One dispatched op. ``flops`` are floating-point operations by ``flops.flops``."""

    name: str
    flops: int
    inside: bool
    phase: str
    #: Forward: how many graphs were entered before. Backward: number of its node, from the call's first on.
    place: int
    #: Where it comes from, for a backward op where its forward op does; None inside graphs.
    origin: Origin | None = None
    #: Number of the graph that a forward op inside runs in.
    graph: int | None = None


@dataclass
class Tally:
    """What one call dispatched, in order."""

    ops: list[Op] = field(default_factory=list)
    graphs_entered: int = 0
    #: Ops that do heavy arithmetic but have no formula.
    without_formula: set[str] = field(default_factory=set)
    #: Each op as a line of text, where that is asked for.
    listing: list[str] | None = None

    @property
    def flops(self) -> int:
        """FLOPs of all ops."""
        return sum(op.flops for op in self.ops)

    @property
    def inside(self) -> list[Op]:
        """The ops that ran inside graphs."""
        return [op for op in self.ops if op.inside]

    @property
    def outside(self) -> list[Op]:
        """The ops that ran outside every graph."""
        return [op for op in self.ops if not op.inside]


def record(
    forward: Callable[[], Any],
    backward: Callable[[Any], object] | None = None,
    modules: Mapping[int, str] | None = None,
    *,
    listed: bool = False,
) -> Tally:
    """Call ``forward``, then ``backward`` on its output, and return what the model dispatched.

    An op of the backward pass belongs to where its autograd node was made: inside if that was inside a captured
    graph. Summing gradients that meet belongs to the node that the later one comes from. What is not the model's is
    left out on both sides: the loss, its own gradient, and accumulating gradients into parameters and inputs.
    ``modules`` are the paths of the model's modules by ``id``. ``listed`` asks for the ops as text, too.
    """
    tally, ownership = Tally(listing=[] if listed else None), Ownership()
    before = regions.graphs_entered()
    recorder = _Recorder(tally, ownership, before, modules or {})
    with recorder, regions.watched(ownership.switched):
        ownership.begin()
        output = forward()
        ownership.end()
        if backward is not None:
            recorder.after = True
            backward(output)
    tally.graphs_entered = regions.graphs_entered() - before
    return tally


class _Recorder(TorchDispatchMode):
    """Autograd runs its nodes under the modes of the thread that started it, on a device's own thread too."""

    def __init__(self, tally: Tally, ownership: Ownership, entered: int, modules: Mapping[int, str]) -> None:
        super().__init__()
        self._tally = tally
        self._ownership = ownership
        self._entered = entered
        self._modules = modules
        #: How many operators that run a graph are under way.
        self._depth = 0
        #: Whether the forward pass is over, so that what no node runs is the loss's.
        self.after = False
        #: Origins of forward ops outside graphs and the number that the node after each would have.
        self._origins: list[Origin] = []
        self._numbers: list[int] = []

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo run its compiled code under this mode; under an ordinary mode it would run eagerly."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._within(func, args, kwargs)
        if self._depth:
            # Below such an operator ops come before they are taken apart, which elsewhere is done by then.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        # torch's stub leaves out that there may be none.
        node: Any = torch._C._current_autograd_node()
        number = None if node is None else int(node._sequence_nr())
        inside = self._side(number)
        found = None if inside is not False else self._origin(sys._getframe(1), number)
        result = func(*args, **kwargs)
        if inside is not None and not _without_values(args, kwargs, result):
            work = flops(func, args, kwargs, result, self._tally.without_formula)
            if number is None:
                phase, place = FORWARD, regions.graphs_entered() - self._entered
            else:
                phase, place = BACKWARD, number - self._ownership.first
            name = str(func).removesuffix(".default")
            op = Op(name, work, inside, phase, place, found, regions.current_graph())
            self._tally.ops.append(op)
            if self._tally.listing is not None:
                self._tally.listing.append(_line(op, args, kwargs, result))
        return result

    def _within(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that runs a graph or a function, seeing the ops of that."""
        run = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if operator.name() == "invoke_subgraph":
            # Its kernel wants no mode to be on; all it does is this.
            run, args = args[0], args[2:]
        if run is None:
            return operator(*args, **kwargs)
        self._depth += 1
        try:
            with self:
                return run(*args, **kwargs)
        finally:
            self._depth -= 1

    def _side(self, number: int | None) -> bool | None:
        """Return whether the op that is dispatched is inside a graph; None if it is not the model's."""
        if regions.is_inside():
            return True
        if number is None:
            return None if self.after else False
        return self._ownership.inside(number)

    def _origin(self, frame: Any, number: int | None) -> Origin:
        here = origin(frame, record.__code__, self._modules)
        if number is None:
            self._origins.append(here)
            self._numbers.append(next_node())
            return here
        index = bisect_right(self._numbers, number)
        # A node is made just before its op is dispatched, but those that keep views in step are made after it.
        if index and (index == len(self._numbers) or self._numbers[index] != number + 1):
            index -= 1
        if index == len(self._origins):
            return here
        made = self._origins[index]
        # A backward pass written in Python has lines of its own.
        return replace(made, frames=here.frames + made.frames) if here.frames else made


def _without_values(*given: Any) -> bool:
    """Return whether an op works out shapes alone, as a tracer does that runs at each call: no work of the model."""
    return any(
        isinstance(leaf, FakeTensor) or leaf.is_meta
        for leaf in torch.utils._pytree.tree_leaves(given)
        if isinstance(leaf, torch.Tensor)
    )


def _line(op: Op, args: Any, kwargs: Any, result: Any) -> str:
    side = "outside" if not op.inside else "graph" if op.graph is None else f"graph {op.graph}"
    given = ", ".join([*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())])
    place = f"  # {op.origin.location}" if op.origin and op.origin.location else ""
    return f"{op.phase:<8} {side:<8} {op.name}({given}) -> {_shown(result)}{place}"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = "x".join(map(str, value.shape)) or "scalar"
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)


def supports_recording() -> bool:
    """Return whether this torch lets a recorder see what Dynamo compiled, and which autograd node is running."""
    return (
        hasattr(TorchDispatchMode, "ignore_compile_internals")
        and hasattr(torch._C, "_current_autograd_node")
        and hasattr(torch.autograd, "_get_sequence_nr")
    )
