"""What Python objects held when a run first met them: compared later, quickly while nothing changed.

Objects are walked: containers, functions with their closures and defaults, instances with their attributes. Modules of
a model and tensors are known by identity; what is inside a module is met when it is read.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import operator
import pathlib
import random
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from tracebench.observe.places import is_watched

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # a torch that has it elsewhere: facts are compared one by one
    TensorGuards: Any = None  # type: ignore[no-redef]

#: Stands for an attribute or key that is not there.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
_IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, np.generic, np.dtype, torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo, re.Pattern, pathlib.PurePath,
    datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, type(Ellipsis),
    type(NotImplemented), types.BuiltinFunctionType, types.CodeType,
)  # fmt: skip
_SEQUENCES = (list, tuple, collections.deque)
_CONTAINERS = (dict, set, frozenset, *_SEQUENCES)
#: Instances of these packages' classes are known by identity: they are shared by the whole process.
_PROCESS = ("logging", "threading", "_thread", "asyncio", "concurrent", "multiprocessing", "warnings", "_io", "io")
#: Of torch's own objects, those that a model keeps its tensors in.
_TORCH_HOLDERS = ("torch.distributions", "torch.nn.utils.rnn")
_TEXT = 60


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was."""

    #: What it is called: ``attribute layers.0.gain``, ``global SETTINGS``.
    name: str
    before: str
    now: str
    #: Where it was met first: file and line of user code.
    met: tuple[str, int] | None
    #: The names under which the code may reach it.
    keys: tuple[str, ...] = ()
    #: What the attribute or global is called that it is part of.
    root: str = ""


@dataclass(slots=True)
class _Root:
    """One key of a namespace: an attribute, a global. ``value`` is what it was, or ``MISSING``."""

    owner: Any
    space: Mapping[Any, Any]
    key: str
    name: str
    met: tuple[str, int] | None
    value: Any


@dataclass(slots=True)
class _Node:
    """What a mutable object was made of. ``read`` lists that anew; ``keys`` name the parts."""

    thing: Any
    read: Callable[[], list[Any]]
    parts: list[Any]
    #: Makes an iterable of the parts without a step of Python, for the quick check.
    quick: tuple[Callable[[], Iterable[Any]], ...] = ()
    #: Compared by equality, as the parts are made anew by each reading.
    digest: bool = False


@dataclass
class Memory:
    """Namespaces' keys and all that hangs on them, as they were when they were met."""

    roots: dict[tuple[int, str], _Root] = field(default_factory=dict)
    nodes: dict[int, _Node] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    #: What tensors were like: see ``facts``.
    facts: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    #: Code of functions whose results are kept by ``functools.lru_cache``, by id: to hash code is to hash all it holds.
    cached: dict[int, types.CodeType] = field(default_factory=dict)
    #: By id of what stands in for something else while the run lasts: what it stands for.
    stands_for: dict[int, Any] = field(default_factory=dict)
    #: Called with each object whose state cannot be seen.
    opaque: Callable[[Any], None] = lambda thing: None

    def meet(self, owner: Any, space: Mapping[Any, Any], key: str, name: str, met: tuple[str, int] | None) -> None:
        """Note what ``space[key]`` is, unless it is known already; ``owner`` is whose namespace it is."""
        where = (id(owner), key)
        if where not in self.roots:
            value = space.get(key, MISSING)
            if self.stands_for:
                value = self.stands_for.get(id(value), value)
            self.roots[where] = _Root(owner, space, key, name, met, value)
            kind: Any = type(value)
            if not _holds_nothing(kind):
                self._walk(value)

    def knows(self, owner: Any, key: str) -> bool:
        """Whether that key has been met."""
        return (id(owner), key) in self.roots

    def changes(self) -> Iterator[Change]:
        """Yield what is not as it was met."""
        seen: set[tuple[int, int]] = set()
        for root in list(self.roots.values()):
            now = root.space.get(root.key, MISSING)
            if now is root.value:
                node = self.nodes.get(id(now))
                if node is None or (not node.parts and type(now) in _SIZED and not now):
                    continue
            inner: list[tuple[Any, Any, Any]] = []
            if not self.same(root.value, now, seen, inner):
                before, after = inner[0][1:] if inner else (root.value, now)
                keys = [str(key) for key, _, _ in reversed(inner) if key is not None]
                name = root.name + "".join(f"[{key!r}]" for key, _, _ in reversed(inner) if key is not None)
                yield Change(name, _told(before, self), _told(after), root.met, (root.key, *keys), root.name)
        for key, tensor in self.tensors.items():
            if (now_facts := facts(tensor)) != self.facts[key]:
                for name, before, now in zip(_FACTS, self.facts[key], now_facts, strict=True):
                    if before != now:
                        root_of = next((root for root in self.roots.values() if root.value is tensor), None)
                        title = f"{name} of {root_of.name}" if root_of else f"{name} of a tensor"
                        yield Change(title, _plain(before), _plain(now), root_of.met if root_of else None)

    def same(
        self, before: Any, now: Any, seen: set[tuple[int, int]] | None = None, trail: list[Any] | None = None
    ) -> bool:
        """Whether ``now`` is what ``before`` was when it was met, though it may be another object of equal content.

        ``trail`` receives, from the innermost outward, (key, what was, what is) of what is not.
        """
        seen = set() if seen is None else seen
        if (node := self.nodes.get(id(before))) is None:
            return before is now or _equal(before, now)
        pair = (id(before), id(now))
        if pair in seen:
            return True
        seen.add(pair)
        if now is before:
            parts = node.read()
        elif type(now) is type(before) and not isinstance(now, (types.FunctionType, type)):
            other = _node(now)
            if other is None:
                return False
            parts = other.read()
        else:
            return False
        if node.digest:
            return bool(parts == node.parts)
        if len(parts) != len(node.parts):
            return False
        for index, (old, new) in enumerate(zip(node.parts, parts, strict=True)):
            if not self.same(old, new, seen, trail):
                if trail is not None:
                    trail.append((_key(node, index), old, new))
                seen.discard(pair)
                return False
        return True

    def _walk(self, value: Any) -> None:
        stack = [value]
        while stack:
            thing = stack.pop()
            kind: Any = type(thing)
            if id(thing) in self.nodes or _holds_nothing(kind) or isinstance(thing, _IMMUTABLE):
                continue
            if isinstance(thing, torch.Tensor):
                self.tensors.setdefault(id(thing), thing)
                if id(thing) not in self.facts:
                    self.facts[id(thing)] = facts(thing)
                continue
            if isinstance(thing, functools._lru_cache_wrapper):
                code = getattr(thing.__wrapped__, "__code__", None)
                if code is not None:
                    self.cached[id(code)] = code
            node = _node(thing)
            if node is not None:
                self.nodes[id(thing)] = node
                if not node.digest:
                    stack += node.parts
                if isinstance(thing, _CONTAINERS) and getattr(thing, "__dict__", None):
                    # A container of a class of the user's, with attributes besides.
                    stack.append(vars(thing))
            elif not _known_by_identity(thing):
                self.opaque(thing)


#: Of these there is nothing more to say than what they hold.
_SIZED = (dict, collections.OrderedDict, list)


@functools.lru_cache(maxsize=4096)
def _holds_nothing(kind: Any) -> bool:
    """Whether objects of a class are known by identity or equality alone: there is nothing to walk."""
    if issubclass(kind, _CONTAINERS):
        return issubclass(kind, _IMMUTABLE)
    return kind is type(MISSING) or issubclass(kind, (*_IMMUTABLE, nn.Module))


_FACTS = ("shape", "stride", "dtype", "device", "layout", "requires_grad")
_REQUIRES_GRAD = operator.attrgetter("requires_grad")
_FACTS_OF = operator.attrgetter("shape", "dtype", "device", "layout", "requires_grad")


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return all of a tensor but its values: shape, stride, dtype, device, layout, requires_grad."""
    shape, *others = _FACTS_OF(tensor)
    return (shape, tensor.stride() if others[2] is torch.strided else None, *others)


def _node(thing: Any) -> _Node | None:
    """Return what a mutable object is made of; None for what is known by identity alone."""
    made = _container(thing) or _callable(thing) or _digested(thing)
    return made or _instance(thing)


def _container(thing: Any) -> _Node | None:
    if isinstance(thing, dict):
        return _made(thing, lambda: [*thing.keys(), *thing.values()], (thing.keys, thing.values))
    if isinstance(thing, (set, frozenset)):
        return _Node(thing, lambda: [frozenset(thing)], [frozenset(thing)], digest=True)
    if isinstance(thing, _SEQUENCES):
        return _made(thing, lambda: list(thing), (thing.__iter__,))
    if isinstance(thing, types.MappingProxyType):
        return _made(thing, lambda: [*thing.keys(), *thing.values()], (thing.keys, thing.values))
    return None


def _callable(thing: Any) -> _Node | None:
    if isinstance(thing, types.FunctionType):
        if not is_watched(thing.__code__.co_filename):
            return None
        cells = thing.__closure__ or ()

        def read() -> list[Any]:
            inner = [_content(cell) for cell in cells]
            return [thing.__code__, thing.__defaults__, thing.__kwdefaults__, *vars(thing).values(), *inner]

        quick: list[Callable[[], Iterable[Any]]] = [functools.partial(_FUNCTION, thing), vars(thing).values]
        full = [cell for cell in cells if _content(cell) is not MISSING]
        quick += [functools.partial(_CELL, cell) for cell in full]
        return _made(thing, read, tuple(quick))
    if isinstance(thing, types.MethodType):
        return _made(thing, lambda: [thing.__self__, thing.__func__], ())
    if isinstance(thing, functools.partial):
        return _made(thing, lambda: [thing.func, thing.args, thing.keywords], ())
    if isinstance(thing, functools._lru_cache_wrapper):
        return _made(thing, lambda: [thing.__wrapped__], ())
    if isinstance(thing, (staticmethod, classmethod)):
        return _made(thing, lambda: [thing.__func__], ())
    if isinstance(thing, property):
        return _made(thing, lambda: [thing.fget], ())
    if isinstance(thing, functools.cached_property):
        return _made(thing, lambda: [thing.func], ())
    if isinstance(thing, type):
        return _class(thing)
    return None


_FUNCTION = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
#: Twice, since of one name there is no tuple.
_CELL = operator.attrgetter("cell_contents", "cell_contents")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _class(thing: type) -> _Node | None:
    """Return what a class of user code holds: all that is no part of every class."""
    if not is_user_class(thing):
        return None
    names = [name for name in vars(thing) if not name.startswith("__") and name != "_abc_impl"]

    def read() -> list[Any]:
        return [*thing.__bases__, *(vars(thing).get(name, MISSING) for name in names)]

    return _made(thing, read, (_getter(names, vars(thing)),) if names else ())


def _getter(names: list[str], space: Mapping[Any, Any]) -> Callable[[], Iterable[Any]]:
    get = operator.itemgetter(*names) if len(names) > 1 else operator.itemgetter(names[0], names[0])
    return functools.partial(get, space)


def is_user_class(thing: type) -> bool:
    """Return whether a class is defined in user code."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    return file is not None and is_watched(file)


def _digested(thing: Any) -> _Node | None:
    """Return the node of an object whose state is told by a value that is made when asked."""
    ask: Callable[[], Any]
    if isinstance(thing, np.ndarray):
        ask = lambda: (thing.shape, thing.dtype.str, thing.tobytes())  # noqa: E731
    elif isinstance(thing, itertools.count):
        ask = lambda: repr(thing)  # noqa: E731
    elif isinstance(thing, random.Random):
        ask = thing.getstate
    elif isinstance(thing, (np.random.Generator, np.random.RandomState)):
        bits = thing.bit_generator if isinstance(thing, np.random.Generator) else thing._bit_generator
        ask = lambda: repr(bits.state)  # noqa: E731
    elif isinstance(thing, bytearray):
        ask = lambda: bytes(thing)  # noqa: E731
    elif isinstance(thing, types.GeneratorType):
        ask = lambda: None if thing.gi_frame is None else thing.gi_frame.f_lasti  # noqa: E731
    elif isinstance(thing, Iterator) and not hasattr(thing, "__dict__"):
        ask = lambda: _iterator(thing)  # noqa: E731
    else:
        return None
    return _Node(thing, lambda: [ask()], [ask()], digest=True)


def _iterator(thing: Any) -> Any:
    """Tell how far an iterator of the standard library is."""
    try:
        return repr(thing.__reduce__()[1:])
    except (TypeError, AttributeError):
        return operator.length_hint(thing, -1)


def _instance(thing: Any) -> _Node | None:
    kind = type(thing)
    package = kind.__module__.partition(".")[0]
    if isinstance(thing, (nn.Module, types.ModuleType)) or package in _PROCESS:
        return None
    if package == "torch" and not kind.__module__.startswith(_TORCH_HOLDERS):
        return None
    slots = [name for one in kind.__mro__ for name in _slots(one)]
    space = getattr(thing, "__dict__", None)
    if isinstance(space, dict) and not isinstance(thing, (type, types.FunctionType)):

        def read() -> list[Any]:
            held = [getattr(thing, name, MISSING) for name in slots]
            return [kind, *held, *space.keys(), *space.values()]

        quick: list[Callable[[], Iterable[Any]]] = [space.keys, space.values]
        if slots and all(hasattr(thing, name) for name in slots):
            quick.append(functools.partial(operator.attrgetter(*slots, slots[0]), thing))
        return _made(thing, read, tuple(quick))
    if slots:
        return _made(thing, lambda: [kind, *(getattr(thing, name, MISSING) for name in slots)], (), slow=True)
    return None


def _slots(kind: type) -> list[str]:
    found = vars(kind).get("__slots__", ())
    names = [found] if isinstance(found, str) else list(found)
    return [name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__")]


def _made(
    thing: Any, read: Callable[[], list[Any]], quick: tuple[Callable[[], Iterable[Any]], ...], *, slow: bool = False
) -> _Node:
    return _Node(thing, read, read(), (read,) if slow else quick)


def _known_by_identity(thing: Any) -> bool:
    """Whether nothing that can change is behind an object, or nothing that a forward may count on."""
    kind = type(thing)
    if isinstance(thing, (nn.Module, types.ModuleType, type, types.FunctionType, torch.Generator, weakref.ref)):
        return True
    library = kind.__module__.partition(".")[0]
    if library in (*_PROCESS, "torch", "builtins", "typing", "types", "functools", "operator", "collections", "abc"):
        return True
    return callable(thing) and not is_user_class(kind)


def _equal(before: Any, now: Any) -> bool:
    """Whether two values that are no containers are one value."""
    if type(before) is not type(now) or not isinstance(before, _IMMUTABLE):
        return False
    # NaN is one value here.
    return bool(before == now) or (before != before and now != now)


def _key(node: _Node, index: int) -> Any:
    """Return the key or index by which a part is reached; None if it has none."""
    if isinstance(node.thing, (list, tuple)):
        return index
    half = len(node.parts) // 2
    named = isinstance(node.thing, dict) or hasattr(node.thing, "__dict__")
    key = node.parts[index - half] if named and index >= half else None
    return key if isinstance(key, str) else None


def _told(value: Any, memory: Memory | None = None) -> str:
    node = memory.nodes.get(id(value)) if memory is not None else None
    if node is not None and isinstance(value, (list, tuple, dict)):
        half = len(node.parts) // 2
        held = dict(zip(node.parts[:half], node.parts[half:], strict=True)) if isinstance(value, dict) else node.parts
        return _plain(type(value)(held) if type(value) in (list, tuple, dict) else held)
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, (torch.Tensor, nn.Module)):
        return f"a {type(value).__name__}"
    if isinstance(value, (torch.Size, torch.dtype, torch.device)):
        return str(list(value)) if isinstance(value, torch.Size) else str(value)
    if isinstance(value, (list, tuple, dict, set)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)}"
    if value is MISSING or isinstance(value, (*_IMMUTABLE, list, tuple, dict, set, itertools.count)):
        text = " ".join(repr(value).split())
        return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
    return f"a {type(value).__name__}"


_END = (object(),)


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided


def _tensor_guards(tensors: list[torch.Tensor]) -> Any:
    """Return torch's own check, in C++, of what tensors are like; it looks at requires_grad only with gradients on."""
    sizes, strides = [list(tensor.shape) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
    make: Any = TensorGuards
    if make is None or not tensors:
        return None
    return make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


class Watchdog:
    """Checks in some microseconds that a memory still holds; what it finds is gone through slowly."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._prepare()
        #: How many values are checked at each call.
        self.size = len(self._held) - 1 + len(self._empty) + self._absences + len(self._digests)
        self.size += len(memory.tensors) * len(_FACTS)

    def check(self) -> Change | None:
        """Return the first change, or None."""
        if self._holds():
            return None
        found = next(self._memory.changes(), None)
        if found is None:
            # Other objects of the same values: these are what is looked for from now on.
            self._renew()
        return found

    def _holds(self) -> bool:
        if any(self._empty):
            return False
        try:
            now = itertools.chain(itertools.chain.from_iterable(map(operator.call, self._readers)), _END)
            if not all(map(operator.is_, now, self._held)):
                return False
        except (KeyError, AttributeError, ValueError, RuntimeError):
            return False
        if not all(map(operator.call, self._absent, self._names)):
            return False
        if any(node.read() != node.parts for node in self._digests):
            return False
        return (
            list(map(_REQUIRES_GRAD, self._tensors)) == self._requires_grad
            and (self._quick is None or self._quick.check(*self._strided))
            and list(map(facts, self._others)) == self._facts
        )

    def _prepare(self) -> None:
        memory = self._memory
        spaces: dict[int, tuple[Any, list[str], list[Any]]] = {}
        absent: dict[int, tuple[Any, list[str]]] = {}
        for root in memory.roots.values():
            if root.value is MISSING:
                absent.setdefault(id(root.owner), (root.space, []))[1].append(root.key)
            else:
                _, names, values = spaces.setdefault(id(root.owner), (root.space, [], []))
                names.append(root.key)
                values.append(root.value)
        readers: list[Callable[[], Iterable[Any]]] = []
        held: list[Any] = []
        for space, names, values in spaces.values():
            readers.append(_getter(names, space))
            held += values if len(values) > 1 else values * 2
        self._empty: list[Any] = []
        self._digests = []
        for node in memory.nodes.values():
            if node.digest:
                self._digests.append(node)
            elif not node.parts and isinstance(node.thing, (dict, list, collections.deque)):
                self._empty.append(node.thing)
            elif not isinstance(node.thing, (tuple, frozenset)):
                for read in node.quick:
                    readers.append(read)
                    held += read()
        self._readers = readers
        # Read until the end and no further: one more or less of anything meets it too late or too early.
        self._held = (*held, *_END)
        self._absent = [space.keys().isdisjoint for space, _ in absent.values()]
        self._names = [frozenset(names) for _, names in absent.values()]
        self._absences = sum(map(len, self._names))
        self._tensors = list(memory.tensors.values())
        self._requires_grad = list(map(_REQUIRES_GRAD, self._tensors))
        self._strided = [tensor for tensor in self._tensors if _is_plain_tensor(tensor)]
        self._quick = _tensor_guards(self._strided)
        known = set(map(id, self._strided)) if self._quick is not None else set()
        self._others = [tensor for tensor in self._tensors if id(tensor) not in known]
        self._facts = list(map(facts, self._others))

    def _renew(self) -> None:
        before = self._memory
        fresh = Memory(cached=before.cached)
        for root in before.roots.values():
            fresh.meet(root.owner, root.space, root.key, root.name, root.met)
        self._memory = fresh
        self._prepare()
