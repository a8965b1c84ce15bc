"""A trace hook of our own: the ATen ops of one run are taped onto an ``fx.Graph``, which is then replayed.

The tape is static: it holds for inputs of the recorded signature, and for the Python numbers and sizes that the
recorded run read from tensors. Both are checked on every call; where they differ it raises ``GuardError`` instead of
computing something else. What dispatches no op is not seen, so not checked: ``tolist()``, ``numpy()``, foreign code on
``data_ptr()``, and Python state that the forward reads or writes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tracebench.controls.orders import NO_ORDERS, Orders, rebound, stand_in_forward
from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs, count_nodes, describe_constant, unsaved
from tracebench.frontends.fixed import argument_flag, became_python, fixed_size, merged, python_kind, training_flag
from tracebench.frontends.form import Form
from tracebench.record import Constant, Specialisation
from tracebench.userlocation import caller_location

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout)
#: Characters of a plain input that are told.
_VALUE_LIMIT = 80
_SCALAR = torch.ops.aten._local_scalar_dense.default
_CLONE = torch.ops.aten.clone.default
_ASSIGN = (torch.ops.aten.fill_.Tensor, torch.ops.aten.index_put_.default)
_LIFT = torch.ops.aten.lift_fresh.default


class GuardError(RuntimeError):
    """The tape was recorded under another assumption than holds for this call."""


class UntapeableError(RuntimeError):
    """The model does something that a tape of ATen ops cannot hold."""


@dataclass(frozen=True)
class Hook:
    """Records one run of the model on the example inputs."""

    name = "hook"
    lazy = False

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Nothing: functions stand in for others only while the tape is recorded."""
        return contextlib.nullcontext()

    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Run ``model`` once and tape it.

        Raises:
            UntapeableError: an input or output is no tensor, plain value or container of them.
            Exception: what the model raises.
        """
        leaves, spec = pytree.tree_flatten((tuple(inputs.args), dict(inputs.kwargs)))
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                raise UntapeableError(f"an input of type {type(leaf).__name__} cannot be guarded by a tape")
        tape = _Tape(model)
        signature = tuple(map(_signature, leaves))
        identities = _identities(leaves)
        tape.placeholders(leaves)
        with tape, _regions(tape, model, orders, marked=marked):
            result = model(*inputs.args, **inputs.kwargs)
        outputs, output_spec = pytree.tree_flatten(result)
        graph = tape.finish(outputs)
        events = Events(
            leaves=True,
            constants=tape.constants,
            specialised=merged([*(_fixed_input(*leaf) for leaf in enumerate(leaves)), *tape.fixed]),
            guards=len(leaves) + tape.guards,
        )
        if tape.regions:
            events.notes.append(unsaved(tape.regions))
        number = events.add_graph(graph, count_nodes(graph.graph))
        run = executor.wrap(graph)
        run = regions.inside(run, number) if marked and number is not None else run

        def call(*args: Any, **kwargs: Any) -> Any:
            given, given_spec = pytree.tree_flatten((args, kwargs))
            _check(given_spec, spec, tuple(map(_signature, given)), signature)
            if _identities(given) != identities:
                raise GuardError("the same tensor was passed in other places than when the tape was recorded")
            return pytree.tree_unflatten(run(*given), output_spec)

        return Capture(call=call, module=model, events=events)


@contextlib.contextmanager
def _regions(tape: _Tape, model: nn.Module, orders: Orders, *, marked: bool) -> Iterator[None]:
    """Within the context, have the tape hold one call of Python for each piece that ``orders`` keep out or whole."""
    with contextlib.ExitStack() as during:
        for order in orders.of("disable", "opaque"):
            assert order.target is not None
            outside = marked and order.instruction.control == "disable"
            for part in order.target.modules(model):
                run = regions.outside(part.forward) if outside else part.forward
                during.enter_context(stand_in_forward(part, tape.call_of(run, order.instruction.target)))
            if (function := order.target.function) is not None:
                calls = tape.call_of(regions.outside(function) if outside else function, order.instruction.target)
                during.enter_context(rebound(order.target, calls))
        yield


class _Tape(TorchDispatchMode):
    """Writes each dispatched op, with the tensors it met by identity, onto a graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.constants: list[Constant] = []
        self.fixed: list[Specialisation] = []
        self.guards = 0
        #: Names of the pieces that it calls as Python.
        self.regions: list[str] = []
        self._inside_region = False
        self._model = model
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        # Tensors stay alive while their ids are keys.
        self._alive: list[torch.Tensor] = []
        self._attributes = {
            id(tensor): name for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers())
        }
        self._baked: dict[str, torch.Tensor] = {}

    def placeholders(self, leaves: list[Any]) -> None:
        """Make one graph input for each leaf, tensor or not."""
        for index, leaf in enumerate(leaves):
            node = self._graph.placeholder(f"input_{index}")
            if isinstance(leaf, torch.Tensor):
                self._note(leaf, node)

    def finish(self, outputs: list[Any]) -> fx.GraphModule:
        """Close the tape: its graph returns ``outputs`` as a flat list."""
        for leaf in outputs:
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                raise UntapeableError(
                    f"an output of type {type(leaf).__name__} would be kept as a constant; return tensors in tuples, "
                    "lists, dicts or named tuples"
                )
        self._graph.output([self._argument(leaf) for leaf in outputs])
        numbers = {str(node.target) for node in self._graph.nodes if node.op == "get_attr" and _is_assigned(node)}
        # Python's number, which an assignment makes a tensor.
        self.constants = [item for item in self.constants if item.shape or item.name not in numbers]
        attributes: dict[str, Any] = {
            str(node.target): self._baked.get(str(node.target)) for node in self._graph.nodes if node.op == "get_attr"
        }
        for name in attributes:
            if attributes[name] is None:
                attributes[name] = _attribute(self._model, name)
        self._nodes.clear()
        self._alive.clear()
        return fx.GraphModule(attributes, self._graph, class_name="Tape")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taped_args, taped_kwargs = pytree.tree_map(self._argument, (args, kwargs))
        result = func(*args, **kwargs)
        if func is _LIFT:
            # A literal: replaying the lift itself would hand out one tensor again and again.
            func = _CLONE
        node = self._graph.call_function(func, taped_args, taped_kwargs)
        if func is _SCALAR:
            self._guard(_same_value, node, result)
            self.fixed.append(became_python(sys._getframe(1), python_kind(result), repr(result)))
        elif isinstance(result, torch.Tensor):
            self._note(result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                self._note_item(item, node, (index,))
        if torch.Tag.dynamic_output_shape in func.tags:
            shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            self._guard(_same_shapes, node, shapes)
            sizes = ", ".join(str(list(shape)) for shape in shapes)
            self.fixed.append(fixed_size(sys._getframe(1), "a size that depends on values", sizes))
        flag = argument_flag(_argument_names(func), args, kwargs)
        if flag is not None:
            self.fixed.append(training_flag(str(func), flag, caller_location(sys._getframe(1))))
        return result

    def call_of(self, run: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return what stands for ``run`` while taping: it runs unseen, and the tape holds one call of it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside_region:
                return run(*args, **kwargs)
            self.regions.append(name)
            form, tensors = Form.split((args, kwargs), "an argument")
            taped = self._argument_list(tensors)
            with self._paused():
                results = run(*args, **kwargs)
            outputs, made = Form.split(results, "a result")
            node = self._graph.call_function(_Region(run, form, outputs), (taped,))
            for index, tensor in enumerate(made):
                # What a region returns as it came in is what it was on the tape.
                if id(tensor) not in self._nodes:
                    self._note(tensor, self._graph.call_function(_getitem, (node, index)))
            return results

        return call

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        self._inside_region = True
        try:
            with torch.utils._python_dispatch._disable_current_modes():
                yield
        finally:
            self._inside_region = False

    def _argument_list(self, tensors: list[torch.Tensor]) -> list[Any]:
        return [self._argument(tensor) for tensor in tensors]

    def _note_item(self, item: Any, node: fx.Node, path: tuple[int, ...]) -> None:
        if isinstance(item, torch.Tensor):
            for index in path:
                node = self._graph.call_function(_getitem, (node, index))
            self._note(item, node)
        elif isinstance(item, (tuple, list)):
            for index, inner in enumerate(item):
                self._note_item(inner, node, (*path, index))

    def _note(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _guard(self, check: Callable[[Any, Any, str], None], node: fx.Node, expected: Any) -> None:
        location = caller_location(sys._getframe(2)) or "a line of torch's own"
        self._graph.call_function(check, (node, expected, location))
        self.guards += 1

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            name = self._attributes.get(id(value))
            if name is None:
                name = f"_constant_{len(self._baked)}"
                self._baked[name] = value
                self.constants.append(describe_constant(name, value, caller_location(sys._getframe(1))))
            self._note(value, self._graph.get_attr(name))
        return self._nodes[id(value)]


class _Region:
    """Runs Python on a list of tensors: one node of a tape. Whatever else the recorded call took is kept with it."""

    def __init__(self, run: Callable[..., Any], inputs: Form, outputs: Form) -> None:
        self._run = run
        self._inputs = inputs
        self._outputs = outputs
        self.__name__ = self.__qualname__ = getattr(run, "__name__", "region")
        self.__module__ = __name__

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = self._inputs.join(tensors)
        outputs, results = Form.split(self._run(*args, **kwargs), "a result")
        if outputs != self._outputs:
            raise GuardError("a region left to Python returns another structure than when the tape was recorded")
        return results


@functools.lru_cache(maxsize=1024)
def _argument_names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def _is_assigned(node: fx.Node) -> bool:
    """Whether all that a literal is for is to be assigned, as in ``x[i] = 0.5``."""
    # The lift of a literal stands on the tape as a clone.
    users = [user for lift in node.users for user in lift.users]
    return bool(users) and all(lift.target is _CLONE for lift in node.users) and all(u.target in _ASSIGN for u in users)


def _fixed_input(index: int, leaf: Any) -> Specialisation:
    """What ``_check`` holds an input to that differs from call to call."""
    if isinstance(leaf, torch.Tensor):
        return Specialisation("shape", f"argument {index}", value=str(list(leaf.shape)))
    return Specialisation("argument", f"argument {index}", value=repr(leaf)[:_VALUE_LIMIT])


def _getitem(sequence: Any, index: int) -> Any:
    return sequence[index]


def _same_value(value: Any, recorded: Any, location: str) -> None:
    if value != recorded and not (value != value and recorded != recorded):
        raise GuardError(f"a tensor's value became a Python number at {location}: {recorded} on tape, {value} now")


def _same_shapes(result: Any, recorded: list[tuple[int, ...]], location: str) -> None:
    shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if shapes != [tuple(shape) for shape in recorded]:
        raise GuardError(f"a size depends on values at {location}: {recorded} on tape, {shapes} now")


# Without outputs of their own, guards would be removed as dead code.
for _check_function in (_same_value, _same_shapes):
    fx.node.has_side_effect(_check_function)


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        stride = leaf.stride() if leaf.layout is torch.strided else None
        return (leaf.shape, stride, leaf.dtype, leaf.device, leaf.layout, leaf.requires_grad)
    return (type(leaf), leaf)


def _identities(leaves: list[Any]) -> list[int]:
    """For each tensor, the first place the same tensor stands at."""
    first: dict[int, int] = {}
    return [first.setdefault(id(leaf), index) for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]


def _check(given_spec: Any, spec: Any, given: tuple[Any, ...], signature: tuple[Any, ...]) -> None:
    if given_spec != spec:
        raise GuardError("the arguments have another structure than when the tape was recorded")
    for index, (now, recorded) in enumerate(zip(given, signature, strict=True)):
        if now != recorded:
            raise GuardError(f"argument {index}: {_difference(recorded, now)}")


def _difference(recorded: Any, now: Any) -> str:
    """Say in what two signatures differ, and no more."""
    if not (isinstance(recorded[0], torch.Size) and isinstance(now[0], torch.Size)):
        return f"{recorded[1]!r} on tape, {now[1]!r} now"
    fields = ("shape", "stride", "dtype", "device", "layout", "requires_grad")
    for name, before, after in zip(fields, recorded, now, strict=True):
        if before != after:
            told = [list(value) if isinstance(value, tuple) else value for value in (before, after)]
            return f"{name} {told[0]} on tape, {told[1]} now"
    raise AssertionError("the signatures are equal")


def _attribute(model: nn.Module, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    found: torch.Tensor = getattr(model.get_submodule(owner), attribute)
    return found
