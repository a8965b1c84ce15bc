"""What one call does in Python: the lines of user code it runs, and the Python values that decide what it computes.

A value that decides is what a graph cannot see: a tensor that becomes a number, a fact about a tensor (its shape, its
dtype), an attribute or a global.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tracebench.observe.codelines import Chain, line_at, spelled
from tracebench.userlocation import is_user_file

#: Events that are kept of one call; a call of a large model has some 10^5.
LIMIT = 1_000_000
_TEXT = 60
_FEW_ITEMS, _MANY_ITEMS = 32, 10_000
_MISSING = object()
_SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)
_SHAPES = {"shape", "size", "__len__", "numel", "nelement", "dim", "ndim", "ndimension", "stride", "storage_offset"}
_SHAPES |= {"nbytes", "element_size", "itemsize"}
_FACTS = {"dtype", "device", "layout", "requires_grad", "is_contiguous", "is_leaf", "get_device", "type", "is_set_to"}
_FOREIGN = {"data_ptr", "numpy", "__array__", "__dlpack__"}
#: Where methods of tensors that are written in Python live.
_METHODS = {torch._tensor.__file__, torch.overrides.__file__}
#: Text is made to be shown, and hardly ever to compute with.
_SHOWN = {"__repr__", "__str__", "__format__"}


class Event(NamedTuple):
    """One step. Two calls take the same way as long as ``where``, ``kind`` and ``name`` agree, step by step."""

    #: How many frames of user code are open, then file and line.
    where: tuple[int, str, int]
    #: line | raise | value | shape | fact | foreign | state | argument
    kind: str
    name: str = ""
    #: In a form that can be compared and shown; empty for lines.
    value: str = ""
    #: Whether ``value`` is no plain value but says which object it is.
    identity: bool = False

    @property
    def step(self) -> tuple[Any, ...]:
        """What must agree for two calls to be on the same way."""
        return self[:3]


class Watch:
    """Notes the events of the call that runs within ``on()``. ``tensors=False`` leaves out what tensors are asked."""

    def __init__(self, deadline: float, *, tensors: bool = True, limit: int = LIMIT) -> None:
        self.events: list[Event] = []
        self.default_dtype = torch.get_default_dtype()
        #: Why the events end before the call does; empty if they do not.
        self.cut = ""
        self._deadline, self._tensors, self._limit = deadline, tensors, limit
        self._known: dict[Event, Event] = {}
        # Objects that stand for themselves stay alive, so that no other gets their id.
        self._alive: list[Any] = []
        self._depth = 0
        self._active = False

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch this thread while the context lasts; a trace function that was there before is put back."""
        previous = sys.gettrace()
        self.default_dtype = torch.get_default_dtype()
        self._active = True
        with _Reads(self) if self._tensors else contextlib.nullcontext():
            sys.settrace(self._enter)
            try:
                yield
            finally:
                # What the model's own trace functions leave behind goes, too.
                sys.settrace(previous)
                self._active = False

    def note(self, event: Event) -> None:
        """Add one event."""
        if self._active:
            self.events.append(self._known.setdefault(event, event))
            if len(self.events) >= self._limit:
                self._stop(f"after {self._limit} steps")
            elif len(self.events) % 4096 == 0 and time.monotonic() >= self._deadline:
                self._stop("by the time limit")

    def _stop(self, why: str) -> None:
        self.cut = why
        self._active = False

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self._active or not is_watched(frame.f_code.co_filename):
            return None
        self._depth += 1
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self._active:
            # A generator that is resumed later still has this function.
            return None
        if event == "return":
            self._depth -= 1
            return self._step
        where = (self._depth, frame.f_code.co_filename, frame.f_lineno)
        if event == "line":
            self.note(Event(where, "line"))
            if reads := line_at(*where[1:]).reads:
                scope = frame.f_locals
                for chain in reads:
                    self._state(frame, scope, where, chain)
        elif event == "exception" and not issubclass(arg[0], (StopIteration, GeneratorExit)):
            self.note(Event(where, "raise", arg[0].__name__))
        return self._step

    def _state(self, frame: FrameType, scope: Mapping[str, Any], where: tuple[int, str, int], chain: Chain) -> None:
        """Note what an attribute, a global or an argument of the call is at a line that names it."""
        root, code = chain[0], frame.f_code
        local = root in code.co_varnames
        arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        # Deeper down, arguments are made from what is noted already.
        argument = self._depth == 1 and root in code.co_varnames[:arguments]
        if local and len(chain) == 1 and not argument:
            return
        value = scope.get(root, _MISSING) if local or root in code.co_freevars else _MISSING
        value = frame.f_globals.get(root, _MISSING) if value is _MISSING and not local else value
        reached = 1
        for step in chain[1:]:
            if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in ("torch", "math", "numpy"):
                return
            found = _follow(value, *step)
            if found is _MISSING:
                # A method or property: what it is called on was read.
                break
            value, reached = found, reached + 1
        if value is _MISSING or (local and reached == 1 and not argument):
            return
        whole = argument and reached == 1
        told, identity = (_structure(value), False) if whole else self._told(value, chain[1:reached])
        if told:
            self.note(Event(where, "argument" if whole else "state", spelled(chain[:reached]), told, identity))

    def _told(self, value: Any, steps: Chain) -> tuple[str, bool]:
        """Return the value in words, and whether these say only which object it is; no words for functions."""
        if isinstance(value, (torch.Tensor, nn.Module)):
            if all(how != "attr" for how, _ in steps):
                # Arguments are other tensors in every call.
                return "", False
            self._alive.append(value)
            return f"{type(value).__name__} #{id(value)}", True
        return digest(value), False


class _Reads(TorchFunctionMode):
    """Notes whatever is no tensor and comes out of one."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        name = getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name
        if name in _SHOWN or isinstance(result, (torch.Tensor, nn.Module, type(None))):
            return result
        kind = _kind(name)
        told = "" if kind == "foreign" and not isinstance(result, np.ndarray) else digest(result, _MANY_ITEMS)
        if told or kind == "foreign":
            caller = sys._getframe(1)
            while caller.f_code.co_filename in _METHODS and caller.f_back is not None:
                caller = caller.f_back
            inside = not is_watched(caller.f_code.co_filename)
            # Torch's own layers look at shapes all the time; a value they take out counts as ours.
            if not (inside and kind != "value"):
                self._watch.note(Event((self._watch._depth, *_place(caller)), kind, name, told))
        return result


def _kind(name: str) -> str:
    if name in _FOREIGN:
        return "foreign"
    if name in _SHAPES:
        return "shape"
    return "fact" if name in _FACTS or (name.startswith("is_") and name != "is_nonzero") else "value"


def _place(frame: FrameType) -> tuple[str, int]:
    """Return file and line of the innermost watched frame; without one, of ``frame`` itself."""
    seen: FrameType | None = frame
    while seen is not None:
        if is_watched(seen.f_code.co_filename):
            return seen.f_code.co_filename, seen.f_lineno
        seen = seen.f_back
    return frame.f_code.co_filename, frame.f_lineno


def is_watched(filename: str) -> bool:
    """Return whether lines of this file can be suspected."""
    return is_user_file(filename) and "/site-packages/numpy/" not in filename


def _follow(holder: Any, how: str, key: Any) -> Any:
    """Return an attribute or item of ``holder`` without running code of its class; ``_MISSING`` if that is needed."""
    if isinstance(holder, torch.Tensor):
        return _MISSING
    if how == "item":
        plain = type(holder) in (dict, list, tuple)
        try:
            return holder[key] if plain else _MISSING
        except (LookupError, TypeError):
            return _MISSING
    places = [getattr(holder, "__dict__", {})]
    if isinstance(holder, nn.Module):
        places += [places[0].get(name) or {} for name in ("_parameters", "_buffers", "_modules")]
    classes = type.mro(holder) if isinstance(holder, type) else type(holder).__mro__
    places += [vars(one) for one in classes]
    for place in places:
        if key in place:
            found = place[key]
            return _MISSING if hasattr(type(found), "__get__") else found
    return _MISSING


def _structure(value: Any) -> str:
    """Return what of an argument is fixed in a graph: a plain value itself, of others how they are put together."""
    if isinstance(value, dict):
        return f"keys {', '.join(map(str, value))}"[:200]
    if isinstance(value, (list, tuple)):
        return f"{len(value)} items"
    return digest(value) or f"a {type(value).__name__}"


def digest(value: Any, limit: int = _FEW_ITEMS) -> str:
    """Return ``value`` in words that are equal for equal values; empty for functions and classes.

    Of containers with more than ``limit`` items, or with items that are not plain, only the number of items is told.
    """
    if isinstance(value, np.ndarray):
        return (
            f"array {value.shape} with digest {hash(value.tobytes()):x}" if value.nbytes < 1 << 24 else "a large array"
        )
    if isinstance(value, torch.Size):
        return str(list(value))
    if isinstance(value, (torch.dtype, torch.device, torch.layout)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (*_SCALARS, itertools.count)):
        return _short(repr(value))
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        if len(value) <= limit:
            items = [*value, *value.values()] if isinstance(value, dict) else value
            if all(isinstance(item, (*_SCALARS, list, tuple)) for item in items):
                return _short(repr(value))
        return f"{len(value)} items"
    if callable(value) or isinstance(value, ModuleType):
        return ""
    return f"a {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 12]}... ({hash(text) & 0xFFFF:04x})"
