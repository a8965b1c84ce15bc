"""What one run of a model reads and does in Python, seen while it runs.

Lines of user code tell which globals and closures are read (``sys.settrace``), calls of C functions what is called that
nobody can see through (``sys.setprofile``), and attributes of modules pass through one function while the run lasts.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import gc
import importlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from tracebench.observe import calls
from tracebench.observe.codelines import line_at
from tracebench.observe.memory import MISSING, Change, Memory, is_user_class
from tracebench.observe.places import Place, is_watched, place

_HOLDERS = ("_parameters", "_buffers", "_modules")
#: Whether trace functions are switched at no cost. Where they rest on ``sys.monitoring``, code is instrumented anew.
_SWITCHES = not hasattr(sys, "monitoring")
#: Torch's own way of calling a module, and what it reads of each module that it calls.
_CALLER = nn.Module._wrapped_call_impl.__code__
_CALLED = (
    "_call_impl",
    "forward",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
)
#: What is called for each attribute or op is called in ways that are not profiled, as builtins are: an id, ...
_NUMBER = object.__hash__
#: ... the frame that called the function which calls this, ...
_CALLER_FRAME = functools.partial(sys._getframe, 1)
#: ... and what watches a thread.
_PROFILER, _SET_PROFILER = functools.partial(sys.getprofile), functools.partial(sys.setprofile)
_TRACER = functools.partial(sys.gettrace)
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)


@dataclass(frozen=True)
class Effect:
    """Something that a run did besides computing: what, and where."""

    what: str
    place: Place | None
    #: Whether it left something of the memory changed, which another run may find settled.
    lasting: bool = False


@dataclass(frozen=True)
class Write:
    """An attribute of a module that a run assigned without having read it before."""

    module: nn.Module
    name: str
    #: What it is to a run that cannot do it again.
    effect: Effect

    @property
    def value(self) -> Any:
        """What was assigned last; ``MISSING`` where that is no plain attribute."""
        return object.__getattribute__(self.module, "__dict__").get(self.name, MISSING)

    def again(self, value: Any) -> None:
        """Assign anew."""
        object.__getattribute__(self.module, "__dict__")[self.name] = value


@dataclass
class Run:
    """One run under watch. ``effects`` are complete once ``on()`` has ended."""

    model: nn.Module
    memory: Memory = field(default_factory=Memory)
    effects: list[Effect] = field(default_factory=list)
    #: Assignments that whoever replays the run may make anew. The memory does not hold what they replaced.
    writes: list[Write] = field(default_factory=list)
    #: While true, nothing is noted: what runs is run at each call anyway.
    paused: bool = False

    def __post_init__(self) -> None:
        self._paths = {id(module): path for path, module in self.model.named_modules()}
        self._alive: list[Any] = []
        self._read: set[tuple[int, str]] = set()
        #: Lines that have run, in order, by id of their code: to hash code is to hash all that it holds.
        self._lines: dict[tuple[int, int], CodeType] = {}
        #: By id of code that has run: what traces its lines, None for code that is no user's.
        self._steps: dict[int, Callable[..., Any] | None] = {}
        self._closures: set[int] = set()
        #: By class and name: the class that holds the attribute, if one does.
        self._classes: dict[tuple[type, str], type | None] = {}
        #: None for what was read before it was assigned.
        self._assigned: dict[tuple[int, str], nn.Module | None] = {}
        self._made: dict[int, nn.Module] = {}
        self._writes: dict[tuple[int, str], Place | None] = {}
        self.memory.opaque = self._opaque

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch this thread while the context lasts."""
        before = sys.gettrace(), sys.getprofile()
        randomness = _python_randomness()
        hooks = vars(torch.nn.modules.module)
        for name in _GLOBAL_HOOKS:
            if name in hooks:
                self.memory.meet(torch.nn.modules.module, hooks, name, f"torch's {name}", None)
        for kind in {one for module in self.model.modules() for one in type(module).__mro__ if is_user_class(one)}:
            # By type(self) an attribute of the class is reached unseen.
            for key in [key for key in vars(kind) if not key.startswith("__") and key != "_abc_impl"]:
                self.memory.meet(kind, vars(kind), key, f"class attribute {kind.__qualname__}.{key}", None)
        with self._attributes(), self._imports(), no_collection(), self._monitored() as monitored:
            if not monitored:
                sys.settrace(self._enter)
            sys.setprofile(self._profiler())
            try:
                yield
            finally:
                sys.setprofile(before[1])
                sys.settrace(before[0])
        for name, state in _python_randomness().items():
            if state != randomness[name] and not any("random" in effect.what for effect in self.effects):
                where = self._line_naming("random", called=True)
                self.effects.append(Effect(f"draws {name} random numbers", where))
        for change in list(self.memory.changes()):
            effect = Effect(f"changes {change.name}", self._where(change), lasting=True)
            assigned = next((key for key in self._assigned if change.root == self._root_name(key)), None)
            module = None if assigned is None else self._assigned[assigned]
            if assigned is None or module is None:
                self.effects.append(effect)
            else:
                self.writes.append(Write(module, assigned[1], effect))
                del self.memory.roots[assigned]

    def write_again(self, wanted: Callable[[Any], bool]) -> None:
        """Count as written what was assigned as it had been before, too, where ``wanted`` says so of the value."""
        for key, module in self._assigned.items():
            root = self.memory.roots.get(key)
            if module is not None and root is not None:
                write = Write(module, key[1], Effect(f"changes {root.name}", self._writes.get(key)))
                if wanted(write.value):
                    self.writes.append(write)
                    del self.memory.roots[key]

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Look away: what runs within the context is run at each call."""
        watchers = self.look_away()
        try:
            yield
        finally:
            self.look_again(watchers)

    def look_away(self) -> tuple[Any, Any] | None:
        """Note nothing from now on; return what ``look_again`` takes. For what is too frequent for ``pause``."""
        if self.paused:
            return None
        self.paused = True
        watchers = _PROFILER(), _TRACER()
        if _SWITCHES:
            # They would be called at each step of what nobody watches.
            _SET_PROFILER(None)
            sys.settrace(None)
        return watchers

    def look_again(self, watchers: tuple[Any, Any] | None) -> None:
        """Note again what this thread does, if it was so before the ``look_away`` that returned ``watchers``."""
        if watchers is None:
            return
        self.paused = False
        if _SWITCHES:
            sys.settrace(watchers[1])
            sys.setprofile(watchers[0])

    @contextlib.contextmanager
    def _attributes(self) -> Iterator[None]:
        original_set, original_del, original_init = nn.Module.__setattr__, nn.Module.__delattr__, nn.Module.__init__
        made = self._made
        get = object.__getattribute__
        read = self._read

        def __getattribute__(module: nn.Module, name: str) -> Any:
            if (_NUMBER(module), name) not in read and not self.paused:
                frame = _CALLER_FRAME()
                # By __dict__ torch itself reads what it is asked for, which is noted.
                if name != "__dict__" or is_watched(frame.f_code.co_filename):
                    watchers = self.look_away()
                    try:
                        self._note_read(module, name, frame)
                    finally:
                        self.look_again(watchers)
            return get(module, name)

        def __setattr__(module: nn.Module, name: str, value: Any) -> None:
            if not self.paused and id(module) not in made:
                self._note_write(module, name, sys._getframe(1))
            original_set(module, name, value)

        def __delattr__(module: nn.Module, name: str) -> None:
            if not self.paused and id(module) not in made:
                self._note_write(module, name, sys._getframe(1))
            original_del(module, name)

        def __init__(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            # A module that the run makes is no state of the model.
            if id(module) not in self._paths:
                made[id(module)] = module
            original_init(module, *args, **kwargs)

        nn.Module.__getattribute__ = __getattribute__  # type: ignore[method-assign,assignment]
        nn.Module.__setattr__ = __setattr__  # type: ignore[method-assign,assignment]
        nn.Module.__delattr__ = __delattr__  # type: ignore[method-assign]
        nn.Module.__init__ = __init__  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            del nn.Module.__getattribute__
            nn.Module.__setattr__ = original_set  # type: ignore[method-assign]
            nn.Module.__delattr__ = original_del  # type: ignore[method-assign]
            nn.Module.__init__ = original_init  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _imports(self) -> Iterator[None]:
        """Look away while modules are imported: that is done once, and no part of computing."""
        before = builtins.__import__, importlib.import_module

        def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                watchers = self.look_away()
                try:
                    return function(*args, **kwargs)
                finally:
                    self.look_again(watchers)

            return call

        builtins.__import__, importlib.import_module = quietly(before[0]), quietly(before[1])
        try:
            yield
        finally:
            builtins.__import__, importlib.import_module = before

    def _name(self, module: nn.Module, key: str) -> str:
        path = self._paths.get(id(module))
        owner = type(module).__name__ if path is None else path
        return f"attribute {owner}.{key}" if owner else f"attribute {key}"

    def _note_read(self, module: nn.Module, name: str, frame: FrameType) -> None:
        if id(module) in self._made:
            return
        self._read.add((_NUMBER(module), name))
        if id(module) not in self._paths:
            # Its id stays its own.
            self._alive.append(module)
        if name == "__dict__":
            self._note_all(module, frame)
        elif not name.startswith("__"):
            where = place(frame)
            self._meet(module, name, where)
            if name == "_compiled_call_impl" and frame.f_code is _CALLER and self._plainly_called(module):
                for one in _CALLED:
                    if (_NUMBER(module), one) not in self._read:
                        self._read.add((_NUMBER(module), one))
                        self._meet(module, one, where)

    def _plainly_called(self, module: nn.Module) -> bool:
        """Whether torch is about to read ``_CALLED``, as it does unless the module is compiled."""
        return object.__getattribute__(module, "_compiled_call_impl") is None

    def _note_all(self, module: nn.Module, frame: FrameType) -> None:
        space = object.__getattribute__(module, "__dict__")
        held = {"all": space}
        self._alive.append(held)
        self.memory.meet(held, held, "all", self._name(module, "__dict__"), place(frame))

    def _meet(self, module: nn.Module, name: str, where: Place | None) -> None:
        space = object.__getattribute__(module, "__dict__")
        title = self._name(module, name)
        # Where it is not there: what an instance gets later hides what its class has.
        self.memory.meet(module, space, name, title, where)
        if name in space:
            return
        for holder in _HOLDERS:
            held = space.get(holder)
            if held is not None and name in held:
                self.memory.meet(held, held, name, title, where)
                return
        key = (type(module), name)
        if key not in self._classes:
            kind = next((kind for kind in key[0].__mro__ if name in vars(kind)), None)
            self._classes[key] = kind
            if kind is not None and is_user_class(kind):
                self.memory.meet(kind, vars(kind), name, f"class attribute {kind.__qualname__}.{name}", where)
        if self._classes[key] is not None:
            return
        for holder in _HOLDERS:
            held = space.get(holder)
            if held is not None:
                self.memory.meet(held, held, name, title, where)

    def _note_write(self, module: nn.Module, name: str, frame: FrameType) -> None:
        where = place(frame)
        key = (id(module), name)
        self._writes[key] = where
        if key not in self._assigned:
            self._assigned[key] = None if (_NUMBER(module), name) in self._read else module
        for one in (name, *_HOLDERS):
            self._read.add((_NUMBER(module), one))
            self._meet(module, one, where)

    @contextlib.contextmanager
    def _monitored(self) -> Iterator[bool]:
        """Have ``sys.monitoring``, if it is there and has a place left, tell each line of the user's once."""
        monitoring: Any = getattr(sys, "monitoring", None)
        free = [] if monitoring is None else [tool for tool in range(6) if monitoring.get_tool(tool) is None]
        if not free:
            yield False
            return
        tool, events, thread = free[0], monitoring.events, threading.get_ident()

        def start(code: CodeType, offset: int) -> Any:
            if not is_watched(code.co_filename):
                return monitoring.DISABLE
            if self.paused or threading.get_ident() != thread:
                return None
            if id(code) not in self._steps:
                self._alive.append(code)
                self._steps[id(code)] = None
                monitoring.set_local_events(tool, code, events.LINE)
                watched.append(code)
            return monitoring.DISABLE

        def line(code: CodeType, number: int) -> Any:
            if self.paused or threading.get_ident() != thread:
                return None
            if (id(code), number) not in self._lines:
                self._lines[id(code), number] = code
                self._line(sys._getframe(1))
            return monitoring.DISABLE

        watched: list[CodeType] = []
        monitoring.use_tool_id(tool, "tracebench")
        try:
            monitoring.register_callback(tool, events.PY_START, start)
            monitoring.register_callback(tool, events.LINE, line)
            monitoring.set_events(tool, events.PY_START)
            # What an earlier run has seen is to be seen again.
            monitoring.restart_events()
            yield True
        finally:
            monitoring.set_events(tool, events.NO_EVENTS)
            for code in watched:
                monitoring.set_local_events(tool, code, events.NO_EVENTS)
            for event in (events.PY_START, events.LINE):
                monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.paused:
            return None
        code = frame.f_code
        if id(code) not in self._steps:
            self._alive.append(code)
            self._steps[id(code)] = self._step if is_watched(code.co_filename) else None
        return self._steps[id(code)]

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self.paused:
            key = (id(frame.f_code), frame.f_lineno)
            if key not in self._lines:
                self._lines[key] = frame.f_code
                self._line(frame)
        return self._step

    def _line(self, frame: FrameType) -> None:
        """Note the globals and closures that a line reads, before it runs for the first time."""
        code, space = frame.f_code, frame.f_globals
        where = (code.co_filename, frame.f_lineno)
        for name in _globals_at(code).get(frame.f_lineno, ()):
            if name in ("environ", "getenv"):
                self.memory.meet(os.environ, vars(os.environ), "_data", "the environment", where)
            if name not in space:
                self.memory.meet(space, space, name, f"global {name}", where)
                continue
            value = space[name]
            if isinstance(value, ModuleType):
                if is_watched(getattr(value, "__file__", None) or "<"):
                    self._module(value, code.co_names, where, 0)
                continue
            self.memory.meet(space, space, name, f"global {name}", where)
        for name in _imports_at(code).get(frame.f_lineno, ()):
            found = sys.modules.get(name)
            if found is not None and is_watched(getattr(found, "__file__", None) or "<"):
                self._module(found, code.co_names, where, 0)
        if code.co_freevars and id(code) not in self._closures:
            self._closures.add(id(code))
            self._closure(code, where)

    def _module(self, module: ModuleType, names: tuple[str, ...], where: Place, depth: int) -> None:
        space = vars(module)
        for name in names:
            if name in space:
                value = space[name]
                if isinstance(value, ModuleType):
                    if depth < 4 and is_watched(getattr(value, "__file__", None) or "<"):
                        self._module(value, names, where, depth + 1)
                else:
                    self.memory.meet(space, space, name, f"global {module.__name__}.{name}", where)

    def _closure(self, code: CodeType, where: Place) -> None:
        """Meet the function that runs ``code``, unless it is met by its name or is made within the run."""
        if any(code in outer.co_consts for outer in {id(outer): outer for outer in self._lines.values()}.values()):
            return
        if any(
            isinstance(node.thing, FunctionType) and node.thing.__code__ is code for node in self.memory.nodes.values()
        ):
            return
        for function in gc.get_referrers(code):
            if isinstance(function, FunctionType):
                held = {"function": function}
                self.memory.meet(held, held, "function", f"function {function.__qualname__}", where)

    def _profiler(self) -> Callable[[FrameType, str, Any], None]:
        # Called for each call and return of anything: all it needs is at hand, and the rarest is asked first.
        names, codes = calls.NAMES, {id(code) for code in calls.CODES}

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            if event == "c_call":
                what = calls.effect_of(arg, frame) if arg.__name__ in names and not self.paused else None
            elif event == "call" and id(frame.f_code) in codes and not self.paused:
                what = calls.effect_of_frame(frame)
            else:
                return
            if what:
                self.effects.append(Effect(what, place(frame)))

        return profile

    def _opaque(self, thing: Any) -> None:
        kind = type(thing)
        self.effects.append(
            Effect(f"reads an object of type {kind.__module__}.{kind.__qualname__}, unseen inside", None)
        )

    def _where(self, change: Change) -> Place | None:
        """Return the line that made a change: of an attribute exactly, of what is inside a container by its source."""
        for key, where in self._writes.items():
            if self._root_name(key) == change.name:
                return where
        for name in reversed(change.keys):
            if (where := self._line_naming(name)) is not None:
                return where
        for name in reversed(change.keys):
            if (where := self._line_naming(name, called=True)) is not None:
                return where
        return change.met

    def _root_name(self, key: tuple[int, str]) -> str | None:
        root = self.memory.roots.get(key)
        return None if root is None else root.name

    def _line_naming(self, name: str, *, called: bool = False) -> Place | None:
        """Return the executed line that changes what goes by ``name``, or (``called``) that calls something on it."""
        for (_, number), code in self._lines.items():
            line = line_at(code.co_filename, number)
            if name in line.changes or (called and name in line.text and "(" in line.text):
                return code.co_filename, number
        return None


@functools.lru_cache(maxsize=4096)
def _globals_at(code: CodeType) -> dict[int, tuple[str, ...]]:
    """Return the names of globals by line of ``code`` that reads or changes them."""
    found: dict[int, dict[str, None]] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL") or (
            instruction.argval in ("environ", "getenv")
        ):
            found.setdefault(line, {})[instruction.argval] = None
    return {number: tuple(names) for number, names in found.items()}


@functools.lru_cache(maxsize=4096)
def _imports_at(code: CodeType) -> dict[int, tuple[str, ...]]:
    """Return the names of modules by line of ``code`` that imports them."""
    found: dict[int, tuple[str, ...]] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME" and instruction.positions is not None:
            line = instruction.positions.lineno or code.co_firstlineno
            found[line] = (*found.get(line, ()), instruction.argval)
    return found


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Within the context no garbage is collected: what runs then, finalizers and callbacks, is not the forward's."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _python_randomness() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return {"Python's": random.getstate(), "numpy's": (name, bytes(np.asarray(keys)), *rest)}
