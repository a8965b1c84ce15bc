"""The tape: a dispatch mode that writes the ATen ops of one run onto an ``fx.Graph``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.function import Function
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tracebench.frontends.base import describe_constant
from tracebench.frontends.fixed import (
    TRAINING_FLAGS,
    argument_flag,
    became_python,
    expression,
    fixed_size,
    python_kind,
    training_flag,
    user_frame,
)
from tracebench.frontends.form import PLAIN, Form, NotPlainError
from tracebench.frontends.tape.ambient import Casting
from tracebench.frontends.tape.answers import NO_ANSWERS, Answers, Region
from tracebench.frontends.tape.checks import Check, data_of
from tracebench.frontends.tape.errors import UntapeableError
from tracebench.frontends.tape.straight import is_plain
from tracebench.frontends.tape.undo import Undo
from tracebench.observe.places import is_watched, place, spelled
from tracebench.observe.run import Effect, Run
from tracebench.record import Constant, Specialisation
from tracebench.userlocation import caller_location

_SCALAR = torch.ops.aten._local_scalar_dense.default
_CLONE = torch.ops.aten.clone.default
_ASSIGN = (torch.ops.aten.fill_.Tensor, torch.ops.aten.index_put_.default)
_LIFT = torch.ops.aten.lift_fresh.default
#: Ops that make of a tensor's values the sizes that later ops get as numbers.
_SIZES_OF = (torch.ops.aten._pack_padded_sequence.default,)
#: Functions that read the values of an integer tensor in C++ and hand numbers to the ops below.
_READERS: tuple[tuple[Any, str], ...] = (
    (torch, "tensor_split"),
    (torch.Tensor, "tensor_split"),
    (torch, "ctc_loss"),
    *((torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
)
#: Arguments of batch norms, which write them without saying so.
_RUNNING = ("running_mean", "running_var")
#: Parts of the names of ops that are not defined for all values.
_PARTIAL = (
    "index", "gather", "scatter", "embedding", "take", "put", "linalg", "cholesky", "inverse", "solve", "lu_", "eig",
    "svd", "qr", "multinomial", "bernoulli", "assert", "bincount", "nll_loss", "unpool", "histc", "repeat_interleave",
)  # fmt: skip
_BASE = torch._C.TensorBase
#: Types of an op's arguments that are on tape as they are.
_ATOMS = {type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format}


@dataclass(frozen=True)
class Recording:
    """A closed tape: one graph of all ops of a run, never run itself, and the checks that stand between its nodes."""

    nodes: tuple[fx.Node, ...]
    #: Nodes and plain values that the run returned, flat.
    outputs: tuple[Any, ...]
    checks: tuple[Check, ...]
    #: What ``get_attr`` nodes stand for.
    attributes: dict[str, Any]
    constants: dict[str, Constant]
    #: What was fixed, beside what the checks hold, by the node that shows it.
    fixed: tuple[tuple[int, Specialisation], ...]
    undo: Undo
    #: What takes back all that the tape does, whatever its last check.
    undo_all: Undo
    #: Whether an op may raise, depending on values.
    may_fail: bool
    #: Whether all tensors that it can meet are plain ones, and no Python runs within it.
    plain: bool
    index: dict[fx.Node, int] = field(repr=False)


class Tape(TorchDispatchMode):
    """Writes each dispatched op, with the tensors it met by identity, onto a graph.

    With ``lenient`` the run goes on when it does what a tape cannot hold: ``refused`` says what that was. ``answers``
    are what the first pieces of Python that are left to run as they are return, in place of running.
    """

    #: Only so that they can be refused in words.
    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, run: Run, *, lenient: bool = False, answers: Answers = NO_ANSWERS) -> None:
        super().__init__()
        # What modes import when they are first used, and what looks at the attributes of tensors as it is imported.
        importlib.import_module("torch._dynamo")
        self.refused: UntapeableError | None = None
        self._may_fail = False
        self._lenient = lenient
        self._answers = answers
        self._constants: list[Constant] = []
        self._fixed: list[tuple[int, Specialisation]] = []
        self._checks: list[Check] = []
        #: Names of the pieces that it calls as Python.
        self.regions: list[str] = []
        self._inside_region = False
        self._run = run
        self._model = model
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        # Tensors stay alive while their ids are keys.
        self._alive: list[torch.Tensor] = []
        self._attributes = {
            id(tensor): name for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers())
        }
        self._baked: dict[str, Any] = {}
        self._grad = torch.is_grad_enabled()
        #: Memory of what the tape computes, and of what it is given.
        self._memory: set[int] = set()
        self._outside: dict[int, list[int | torch.Tensor]] = {}
        #: What happened, in order: ("write", memory), ("random", device), ("region", None), ("guard", None).
        self._history: list[tuple[str, Any]] = []

    def placeholders(self, leaves: list[Any]) -> None:
        """Make one graph input for each leaf, tensor or not."""
        self._plain = all(map(is_plain, leaves))
        for index, leaf in enumerate(leaves):
            node = self._graph.placeholder(f"input_{index}")
            if isinstance(leaf, torch.Tensor):
                self._note(leaf, node)
                self._own(leaf, index)

    def can_return(self, value: Any) -> bool:
        """Whether the tape could return ``value``: a tensor that it holds, or what never changes."""
        return isinstance(value, PLAIN) or id(value) in self._nodes

    def finish(self, outputs: list[Any]) -> Recording:
        """Close the tape, which returns ``outputs`` as a flat list.

        Raises:
            UntapeableError: an output is no tensor or plain value, or the run was refused before.
        """
        if self.refused is not None:
            raise self.refused
        self._lenient = False
        for leaf in outputs:
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                raise UntapeableError(
                    f"an output of type {type(leaf).__name__} would be kept as a constant; return tensors in tuples, "
                    "lists, dicts or named tuples"
                )
        self._set_grad(self._grad_at_start)
        returned = tuple(self._argument(leaf) for leaf in outputs)
        nodes = tuple(self._graph.nodes)
        attributes = {str(node.target): node for node in nodes if node.op == "get_attr"}
        # Python's number, which an assignment makes a tensor, is no constant.
        constants = {
            item.name: item for item in self._constants if item.shape or not _is_assigned(attributes[item.name])
        }
        held = {name: self._baked.get(name) for name in attributes}
        held = {name: _attribute(self._model, name) if value is None else value for name, value in held.items()}
        self._nodes.clear()
        self._alive.clear()
        return Recording(
            nodes,
            returned,
            tuple(self._checks),
            held,
            constants,
            tuple(self._fixed),
            self._taken_back(),
            self._taken_back(whole=True),
            self._may_fail,
            self._plain and not self.regions and all(map(is_plain, held.values())),
            {node: index for index, node in enumerate(nodes)},
        )

    def refuse(self, error: Exception) -> None:
        """Say that the run does what a tape cannot hold.

        Raises:
            Exception: ``error``, unless the run is to go on.
        """
        if not self._lenient:
            raise error
        self.refused = self.refused or UntapeableError(str(error))

    def __enter__(self) -> Any:
        self._grad = self._grad_at_start = torch.is_grad_enabled()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watchers = self._run.look_away()
        try:
            if isinstance(func, torch._ops.HigherOrderOperator):
                where = spelled(place(sys._getframe(1)))
                said = f"the forward calls torch's operator {func.name()}, which runs functions, at {where}"
                self.refuse(UntapeableError(f"{said}; a tape holds ops: write it in Python (an if, a loop)"))
            if self.refused is not None:
                return func(*args, **kwargs)
            return self._record(func, args, kwargs, sys._getframe(1))
        finally:
            self._run.look_again(watchers)

    def _record(self, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        about = _about(func)
        if self._run.memory.cached:
            self._within_cached(frame)
        self._set_grad(torch.is_grad_enabled())
        literal = func is _LIFT
        taped_args = tuple([self._taped(value, literal) for value in args])
        taped_kwargs = {name: self._taped(value, literal) for name, value in kwargs.items()}
        versions = [] if about.tells else _versions(args, kwargs)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            # The forward may catch it; another call must fail here, too.
            node = self._graph.call_function(func, taped_args, taped_kwargs)
            self._changes(about, args, kwargs, versions)
            self._guard("error", node, type(error), frame, (node,))
            raise
        # A literal: replaying the lift itself would hand out one tensor again and again.
        node = self._graph.create_node("call_function", _CLONE if literal else func, name=about.name)
        # Given to a new node they would be searched for what a tape never holds.
        node.args = taped_args
        if taped_kwargs:
            node.kwargs = taped_kwargs
        if about.written or about.random or versions:
            self._changes(about, args, kwargs, versions)
        self._may_fail = self._may_fail or about.may_fail
        if isinstance(result, torch.Tensor):
            self._note(result, node)
            self._compute(result)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                self._note_item(item, node, (index,))
        elif isinstance(result, (bool, int, float, complex)):
            fact = became_python(frame, python_kind(result), repr(result))
            self._guard("value", node, result, frame, (node,), fact)
        if about.dynamic:
            shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            sizes = ", ".join(str(list(shape)) for shape in shapes)
            fact = fixed_size(frame, "a size that depends on values", sizes)
            self._guard("shapes", node, result, frame, _from(node), fact)
        if func in _SIZES_OF:
            self._values(result[1], frame)
        if about.flagged and (flag := argument_flag(about.names, args, kwargs)) is not None:
            self._fix(training_flag(str(func), flag, caller_location(frame)))
        return result

    def call_of(self, run: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return what stands for ``run``, the piece ``name``, while taping: the tape holds one call of it.

        It runs unseen; within another such piece it is that one's.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside_region:
                return run(*args, **kwargs)
            self.regions.append(name)
            with self._run.pause():
                return self._region(run, name, args, kwargs)

        return call

    def _region(self, run: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        try:
            form, tensors = Form.split((args, kwargs), "an argument")
        except NotPlainError as error:
            self.refuse(error)
            form, tensors = None, []
        taped = [self._argument(tensor) for tensor in tensors] if self.refused is None else []
        casting = Casting.now()
        answer = self._answers.next(name, form, tensors)
        with self._paused():
            results = run(*args, **kwargs) if answer is None else answer.again(tensors)
        if self.refused is not None or form is None:
            return results
        try:
            outputs, made = Form.split(results, "a result")
        except NotPlainError as error:
            self.refuse(error)
            return results
        self._set_grad(torch.is_grad_enabled())
        node = self._graph.call_function(Region(run, name, form, outputs, casting), (taped,))
        self._history.append(("region", None))
        for index, tensor in enumerate(made):
            # What a region returns as it came in is what it was on the tape.
            if id(tensor) not in self._nodes:
                self._note(tensor, self._graph.call_function(operator.getitem, (node, index)))
                self._compute(tensor)
        return results

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Within the context, what gets at tensors past the dispatcher is taped, too, or noted as an effect."""
        with contextlib.ExitStack() as stack:
            for owner, name, stands_in in self._stand_ins():
                stack.enter_context(_replaced(owner, name, stands_in))
            yield

    def _stand_ins(self) -> Iterator[tuple[Any, str, Any]]:
        run, base = self._run, _BASE
        grad_of: Any = vars(base)["grad"]

        def tolist(tensor: torch.Tensor) -> Any:
            if not run.paused:
                with run.pause():
                    self._values(tensor, sys._getframe(1))
            return base.tolist(tensor)

        def data(tensor: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = base.data.__get__(tensor)  # type: ignore[attr-defined]
            if not run.paused and self.refused is None:
                with run.pause():
                    self._note(found, self._graph.call_function(data_of, (self._argument(tensor),)))
            return found

        def gradient(tensor: torch.Tensor) -> Any:
            if not run.paused and is_watched(sys._getframe(1).f_code.co_filename):
                run.effects.append(Effect("reads a gradient", place(sys._getframe(1))))
            return grad_of.__get__(tensor)

        def setter(name: str) -> Callable[[torch.Tensor, Any], None]:
            def assign(tensor: torch.Tensor, value: Any) -> None:
                if not run.paused:
                    run.effects.append(Effect(f"assigns a tensor's {name}", place(sys._getframe(1))))
                getattr(base, name).__set__(tensor, value)

            return assign

        def requires_grad_(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
            base.requires_grad_(tensor, requires_grad)
            if not run.paused and self.refused is None:
                with run.pause():
                    self._graph.call_method("requires_grad_", (self._argument(tensor), requires_grad))
            return tensor

        yield torch.Tensor, "tolist", tolist
        yield torch.Tensor, "data", property(data, setter("data"))
        yield torch.Tensor, "grad", property(gradient, setter("grad"))
        yield torch.Tensor, "requires_grad_", requires_grad_
        yield torch.Tensor, "requires_grad", property(base.requires_grad.__get__, setter("requires_grad"))  # type: ignore[attr-defined]
        for owner, name in _READERS:
            yield owner, name, self._reading(getattr(owner, name))
        yield Function, "apply", classmethod(self._applying(vars(Function)["apply"]))

    def _reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._run.paused:
                for leaf in pytree.tree_leaves((args, kwargs)):
                    if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.int64, torch.int32) and leaf.dim() < 2:
                        with self._run.pause():
                            self._values(leaf, sys._getframe(1))
            return function(*args, **kwargs)

        return call

    def _applying(self, apply: Any) -> Callable[..., Any]:
        """Return what stands for ``Function.apply``: where gradients flow through it, it is kept as one call."""

        def call(kind: Any, *args: Any, **kwargs: Any) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            flows = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
            if self._run.paused or not flows or not torch.is_grad_enabled():
                return apply.__get__(None, kind)(*args, **kwargs)
            function = functools.partial(apply.__get__(None, kind))
            function.__name__ = kind.__name__  # type: ignore[attr-defined]
            try:
                return self.call_of(function, kind.__name__)(*args, **kwargs)
            except NotPlainError as error:
                raise UntapeableError(
                    f"autograd.Function {kind.__name__} at {spelled(place(sys._getframe(1)))}: {error}"
                ) from error

        return call

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        before, self._inside_region = self._inside_region, True
        try:
            with torch.utils._python_dispatch._disable_current_modes():
                yield
        finally:
            self._inside_region = before

    def _set_grad(self, enabled: bool) -> None:
        if enabled != self._grad:
            self._graph.call_function(torch._C._set_grad_enabled, (enabled,))
            self._grad = enabled

    def _note_item(self, item: Any, node: fx.Node, path: tuple[int, ...]) -> None:
        if isinstance(item, torch.Tensor):
            for index in path:
                item_of, node = node, self._graph.create_node("call_function", operator.getitem)
                node.args = (item_of, index)
            self._note(item, node)
            self._compute(item)
        elif isinstance(item, (tuple, list)):
            for index, inner in enumerate(item):
                self._note_item(inner, node, (*path, index))

    def _note(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _compute(self, tensor: torch.Tensor) -> None:
        if (memory := _memory(tensor)) is not None:
            self._memory.add(memory)

    def _own(self, tensor: torch.Tensor, where: int | torch.Tensor) -> None:
        """Note that a tensor from outside the tape is at ``where``: the place of an argument, or the tensor itself."""
        if (memory := _memory(tensor)) is not None:
            self._outside.setdefault(memory, []).append(where)
            self._memory.add(memory)

    def _changes(self, about: _Op, args: Any, kwargs: Any, versions: list[tuple[torch.Tensor, int]]) -> None:
        """Note what an op writes and whether it draws random numbers."""
        written = [tensor for tensor, version in versions if tensor._version != version]
        for index in about.written:
            value = args[index] if index < len(args) else kwargs.get(about.names[index])
            written += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for tensor in written:
            if (memory := _memory(tensor)) is not None:
                self._history.append(("write", memory))
        if about.random:
            devices = {leaf.device for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
            devices |= {leaf for leaf in pytree.tree_leaves(kwargs) if isinstance(leaf, torch.device)}
            self._history += [("random", device) for device in devices or {torch.device("cpu")}]

    def _taken_back(self, *, whole: bool = False) -> Undo:
        last = max((index for index, (kind, _) in enumerate(self._history) if kind == "guard"), default=-1)
        before = self._history if whole else self._history[: last + 1]
        written = [where for kind, memory in before if kind == "write" for where in self._outside.get(memory, [])]
        state = {id(where): where for where in written if isinstance(where, torch.Tensor)}
        return Undo(
            tuple(dict.fromkeys(where for where in written if isinstance(where, int))),
            tuple(state.values()),
            tuple(dict.fromkeys(device for kind, device in before if kind == "random")),
            any(kind == "region" for kind, _ in before),
        )

    def _values(self, tensor: torch.Tensor, frame: FrameType) -> None:
        """Guard all values of a tensor, which Python or C++ read."""
        if self.refused is None:
            values = _BASE.tolist(tensor)
            fact = became_python(frame, "Python list", repr(values)[:80])
            self._guard("list", self._argument(tensor), tensor, frame, (), fact)

    def _guard(
        self,
        kind: str,
        node: fx.Node,
        subject: Any,
        frame: FrameType,
        asked: tuple[fx.Node, ...],
        fact: Specialisation | None = None,
    ) -> None:
        """Note that the run goes on from what ``subject``, the value of ``node``, is; ``asked`` are run to know it."""
        if self.refused is not None:
            return
        user = user_frame(frame)
        said = (expression(user) if user is not None else "") or str(node.target)
        location = caller_location(frame) or "a line of torch's own"
        start = len(self._graph.nodes) - len(asked)
        self._checks.append(Check.of(kind, node, subject, start, asked, said, location, fact))
        self._history.append(("guard", None))

    def _fix(self, fact: Specialisation) -> None:
        self._fixed.append((len(self._graph.nodes) - 1, fact))

    def _within_cached(self, frame: FrameType | None) -> None:
        """Refuse ops whose results a cache keeps: eager does not run them again."""
        innermost = place(frame)
        while frame is not None:
            if id(frame.f_code) in self._run.memory.cached:
                self.refuse(
                    UntapeableError(
                        f"functools' cache keeps tensors, computed at {spelled(innermost)}; a tape would compute them "
                        "anew"
                    )
                )
            frame = frame.f_back

    def _taped(self, value: Any, literal: bool) -> Any:
        """Return an op's argument as the tape has it, with the node of each tensor in it."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is list or kind is tuple:
            return kind([self._taped(item, literal) for item in value])
        if id(value) in self._nodes:
            return self._nodes[id(value)]
        if kind is torch.Tensor or kind is nn.Parameter:
            return self._argument(value, literal=literal)
        return pytree.tree_map(functools.partial(self._argument, literal=literal), value)

    def _argument(self, value: Any, *, literal: bool = False) -> Any:
        if isinstance(value, torch.Generator):
            name = f"_generator_{len(self._baked)}"
            self._baked[name] = value
            return self._graph.get_attr(name)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            if id(value) in self._attributes:
                name = self._attributes[id(value)]
            else:
                known = literal or id(value) in self._run.memory.tensors
                if not known and _memory(value) in self._memory:
                    self.refuse(
                        UntapeableError(
                            "a tensor was made of another's memory past torch's ops, at or before "
                            + spelled(place(sys._getframe(1)))
                        )
                    )
                name = f"_constant_{len(self._baked)}"
                # What the run does to a literal later is done again at each call.
                self._baked[name] = value.clone() if literal else value
                self._constants.append(describe_constant(name, value, caller_location(sys._getframe(1))))
            # As by get_attr, which would look for the module that the graph is not yet of.
            node = self._graph.create_node("get_attr", name, name=name.replace(".", "_").lower())
            self._note(value, node)
            if not literal:
                self._own(value, value)
        return self._nodes[id(value)]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, stands_in: Any) -> Iterator[None]:
    """Within the context, have ``owner`` hold ``stands_in``; what it inherits by that name is inherited again after."""
    inherited = name not in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, stands_in)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@dataclass(frozen=True)
class _Op:
    """What is to be known of an op whenever it is dispatched."""

    #: Of its nodes, before they are numbered.
    name: str
    #: Of its arguments.
    names: tuple[str, ...]
    #: Which arguments it writes.
    written: tuple[int, ...]
    #: Whether it can be trusted to say what it writes.
    tells: bool
    random: bool
    #: Whether the sizes of its results depend on values.
    dynamic: bool
    #: Whether an argument may say that it runs as in training.
    flagged: bool
    #: Whether it may raise for some values of its tensors: indices out of range, singular matrices.
    may_fail: bool


@functools.lru_cache(maxsize=1024)
def _about(func: Any) -> _Op:
    arguments = func._schema.arguments
    names = tuple(argument.name for argument in arguments)
    written = tuple(
        index
        for index, one in enumerate(arguments)
        if (one.alias_info is not None and one.alias_info.is_write) or one.name in _RUNNING
    )
    target = _CLONE if func is _LIFT else func
    tells = func.namespace in ("aten", "prims", "prim")
    return _Op(
        name=target.__name__.replace(".", "_"),
        names=names,
        written=written,
        tells=tells,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        dynamic=torch.Tag.dynamic_output_shape in func.tags,
        flagged=not set(TRAINING_FLAGS).isdisjoint(names),
        may_fail=not tells or any(part in str(func) for part in _PARTIAL),
    )


def _versions(args: Any, kwargs: Any) -> list[tuple[torch.Tensor, int]]:
    """Return where the version counters of tensors stand, for ops that may not say what they write."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]


def _memory(tensor: torch.Tensor) -> int | None:
    """Say in which memory a tensor is; None if it has none of its own."""
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, nn.Parameter):
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except RuntimeError:
        # What a transform (vmap, grad) wraps.
        return None


def _is_assigned(node: fx.Node) -> bool:
    """Whether all that a literal is for is to be assigned, as in ``x[i] = 0.5``."""
    # The lift of a literal stands on the tape as a clone.
    users = [user for lift in node.users for user in lift.users]
    return bool(users) and all(lift.target is _CLONE for lift in node.users) and all(u.target in _ASSIGN for u in users)


def _from(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return a node and those after it."""
    found = []
    while node.op != "root":
        found.append(node)
        node = node.next
    return tuple(found)


def _attribute(model: nn.Module, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    found: torch.Tensor = getattr(model.get_submodule(owner), attribute)
    return found
