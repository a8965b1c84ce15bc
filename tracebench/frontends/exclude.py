"""Best effort where a front end refuses: the module that refuses is left to Python, the rest is captured around it.

A tracer that fails says, by its traceback, in whose ``forward`` it failed. That module becomes a hole in the graph of
the module being traced, and tracing starts again. Where the module being traced refuses itself, its ``forward`` runs as
Python and the modules that it calls are captured each by itself. The same is done inside every hole.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from tracebench.controls.targets import Target
from tracebench.failures import first_line, is_out_of_memory
from tracebench.frontends import regions
from tracebench.frontends.base import UNSAVED, Capture, Events, Inputs, saver
from tracebench.frontends.fixed import merged
from tracebench.record import Constant, Excluded, Specialisation
from tracebench.userlocation import definition


@dataclass(frozen=True)
class Traced:
    """One module as one graph: a callable with the module's signature, and what is to be told of it."""

    call: Callable[..., Any]
    module: nn.Module
    #: Nodes that compute something.
    nodes: int
    constants: Sequence[Constant] = ()
    specialised: Sequence[Specialisation] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Hole:
    """A submodule or function that the graph of a module must leave to Python; ``run`` is what Python runs."""

    path: str
    piece: nn.Module | Target
    run: Callable[..., Any]


_SCATTERED = "modules were left to Python"
#: Traces a module on its inputs around the holes; raises whatever the tracer raises.
Trace = Callable[[nn.Module, Inputs, Sequence[Hole]], Traced]


def capture_of(traced: Traced, *, marked: bool) -> Capture:
    """Return the capture of a whole model that is one graph."""
    events = Events(
        leaves=True,
        constants=list(traced.constants),
        specialised=list(traced.specialised),
        notes=list(traced.notes),
    )
    number = events.add_graph(traced.module, traced.nodes)
    call = regions.inside(traced.call, number) if marked and number is not None else traced.call
    whole = not any(note.startswith(UNSAVED) for note in traced.notes)
    return Capture(call=call, module=traced.module, events=events, save=saver(traced.module) if whole else None)


def capture_excluding(model: nn.Module, inputs: Inputs, trace: Trace, *, holes: bool, marked: bool) -> Capture:
    """Capture ``model`` with ``trace``, again and again, leaving to Python what refuses.

    ``model`` is changed: modules whose forward is captured by itself get it as an instance attribute. Without ``holes``
    no graph has any (a compiler would have to look into them), so that all modules around one that refuses stay Python.

    Raises:
        Exception: what the tracer raised first, if no submodule could be captured either.
    """
    work = _Work(model, _recorded(model, inputs), trace, holes, marked)
    whole = work.capture("", model, inputs)
    if not work.captured:
        raise work.refusals[0]
    if whole is None:
        return Capture(call=model, module=model, events=work.events, unsavable=_SCATTERED)
    if work.events.excluded:
        return Capture(call=whole.call, module=whole.module, events=work.events, unsavable=_SCATTERED)
    return Capture(call=whole.call, module=whole.module, events=work.events, save=saver(whole.module))


@dataclass
class _Work:
    model: nn.Module
    recorded: dict[str, Inputs]
    trace: Trace
    holes: bool
    marked: bool
    events: Events = field(default_factory=lambda: Events(leaves=True))
    captured: bool = False
    refusals: list[Exception] = field(default_factory=list)
    done: set[int] = field(default_factory=set)

    def capture(self, path: str, module: nn.Module, inputs: Inputs) -> Traced | None:
        """Capture ``module``, or leave its forward to Python and return None."""
        self.done.add(id(module))
        holes: dict[str, tuple[Hole, Exception]] = {}
        while True:
            try:
                # Tracing runs the model, which must not see what it did before.
                traced = self.trace(module, copy.deepcopy(inputs), [hole for hole, _ in holes.values()])
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.refusals.append(error)
                inner = innermost_module(error.__traceback__, module) if self.holes else ""
                if not inner or inner in holes:
                    self._leave(path, module, error)
                    return None
                part = module.get_submodule(inner)
                # What lies in a larger hole is captured, or left, when that is looked into.
                holes = {at: found for at, found in holes.items() if not at.startswith(f"{inner}.")}
                holes[inner] = (Hole(inner, part, self._python(part)), error)
            else:
                break
        self.captured = True
        self.events.constants += traced.constants
        self.events.specialised = merged([*self.events.specialised, *traced.specialised])
        self.events.notes += traced.notes
        number = self.events.add_graph(traced.module, traced.nodes)
        for inner, (_, why) in holes.items():
            self._leave(_join(path, inner), module.get_submodule(inner), why)
        call = regions.inside(traced.call, number) if self.marked and number is not None else traced.call
        return Traced(call, traced.module, traced.nodes)

    def _leave(self, path: str, module: nn.Module, error: Exception) -> None:
        self.done.add(id(module))
        reason = f"{type(error).__name__}: {first_line(error)}"
        self.events.excluded.append(Excluded(path, type(module).__name__, definition(module.forward), reason))
        self._parts(path, module)

    def _parts(self, path: str, module: nn.Module) -> None:
        for name, child in module.named_children():
            inner = _join(path, name)
            if id(child) in self.done:
                continue
            if inner not in self.recorded:
                # Never called itself, as a list of modules: what it holds may be.
                self._parts(inner, child)
                continue
            captured = self.capture(inner, child, self.recorded[inner])
            if captured is not None:
                # Past nn.Module's own rules, by which a module would become a submodule.
                vars(child)["forward"] = captured.call

    def _python(self, module: nn.Module) -> Callable[..., Any]:
        return regions.outside(module.forward) if self.marked else module.forward


def innermost_module(trace: TracebackType | None, root: nn.Module) -> str:
    """Return the path below ``root`` of the innermost module in whose method the traceback ``trace`` passes."""
    names = {id(module): name for name, module in root.named_modules()}
    found = ""
    while trace is not None:
        frame = trace.tb_frame
        owner = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        # Not nn.Module.__call__, which every module passes: that it was called is no fault of its own.
        inside = frame.f_code.co_filename != nn.modules.module.__file__
        if inside and isinstance(owner, nn.Module) and id(owner) in names:
            found = names[id(owner)]
        trace = trace.tb_next
    return found


def _recorded(model: nn.Module, inputs: Inputs) -> dict[str, Inputs]:
    """Return what each submodule gets at its first call in an eager run, by path, where that can be copied."""
    running, given = copy.deepcopy((model, inputs))
    found: dict[str, Inputs] = {}

    def recorder(path: str) -> Callable[..., None]:
        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if path not in found:
                # Autograd's tensors do not copy; a module whose inputs do not is not captured by itself.
                with contextlib.suppress(RuntimeError), torch.no_grad():
                    found[path] = copy.deepcopy(_detached(Inputs(args, kwargs)))

        return record

    for path, module in running.named_modules(remove_duplicate=False):
        if not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_pre_hook(recorder(path), with_kwargs=True)
    with torch.random.fork_rng(), contextlib.redirect_stdout(io.StringIO()):
        running(*given.args, **given.kwargs)
    return found


def _detached(inputs: Inputs) -> Inputs:
    def detach(leaf: Any) -> Any:
        return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = torch.utils._pytree.tree_map(detach, (tuple(inputs.args), dict(inputs.kwargs)))
    return Inputs(args, kwargs)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
