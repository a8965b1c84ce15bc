"""A trace hook of our own: the ATen ops of one run are taped onto an ``fx.Graph``, which is then replayed.

The tape is static, and says so: whatever the recorded run took for granted is checked on every call, and where it no
longer holds ``GuardError`` is raised instead of computing something else. Checked before the tape runs are the
arguments, the settings of the thread, and the attributes, globals and closures that the run read; within the tape the
Python numbers and sizes that the run read from tensors. What a tape cannot repeat is refused at capture, with its line:
a forward that writes state of Python, prints, asks the clock, draws Python's random numbers or hands memory to others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tracebench.controls.orders import NO_ORDERS, Orders, rebound, stand_in_forward
from tracebench.frontends import regions
from tracebench.frontends.base import Capture, Events, Executor, Inputs, count_nodes, unsaved
from tracebench.frontends.fixed import merged
from tracebench.frontends.form import PLAIN
from tracebench.frontends.tape import ambient
from tracebench.frontends.tape.arguments import Signature
from tracebench.frontends.tape.errors import GuardError, UntapeableError
from tracebench.frontends.tape.recording import Tape
from tracebench.frontends.tape.straight import straight
from tracebench.frontends.tape.undo import Undo
from tracebench.observe.memory import MISSING, Watchdog
from tracebench.observe.places import spelled
from tracebench.observe.run import Run, no_collection
from tracebench.record import Specialisation

__all__ = ["GuardError", "Hook", "UntapeableError"]

#: Characters of a plain input that are told.
_VALUE_LIMIT = 80


@dataclass(frozen=True)
class Hook:
    """Records one run of the model on the example inputs.

    ``on_guard_failure`` says what becomes of a call that the tape does not hold for: ``raise``, or ``eager``: the model
    itself is called.
    """

    on_guard_failure: str = "raise"
    name = "hook"
    lazy = False

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Nothing: functions stand in for others only while the tape is recorded."""
        return contextlib.nullcontext()

    # All that it makes is kept: to look for garbage meanwhile is in vain.
    @no_collection()
    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Run ``model`` once and tape it.

        Raises:
            UntapeableError: an input or output is no tensor, plain value or container of them, or the run does what a
                tape cannot repeat.
            Exception: what the model raises.
        """
        leaves, spec = pytree.tree_flatten((tuple(inputs.args), dict(inputs.kwargs)))
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                raise UntapeableError(f"an input of type {type(leaf).__name__} cannot be guarded by a tape")
        state = _state(model)
        signature = Signature.of(leaves, spec, state)
        settings = ambient.settings()
        run, tape, result = _recorded(model, inputs, leaves, orders, marked=marked)
        if run.effects and all(effect.lasting for effect in run.effects):
            # What is made at the first call and kept (sizes, tables) is there at the second.
            run, tape, result = _recorded(model, inputs, leaves, orders, marked=marked)
        _refuse(run)
        writes = run.writes
        now, now_spec = pytree.tree_flatten((tuple(inputs.args), dict(inputs.kwargs)))
        if now_spec != spec or list(map(id, now)) != list(map(id, leaves)):
            raise UntapeableError("the forward changes its arguments' containers, which a tape cannot repeat")
        if (after := ambient.settings()) != settings:
            raise UntapeableError(f"the forward leaves a setting changed: {ambient.difference(settings, after)}")
        outputs, output_spec = pytree.tree_flatten(result)
        graph = tape.finish([*outputs, *(write.value for write in writes)])
        returned = len(outputs)
        dog = Watchdog(run.memory)
        events = Events(
            leaves=True,
            constants=tape.constants,
            specialised=merged([*(_fixed_input(*leaf) for leaf in enumerate(leaves)), *tape.fixed]),
            guards=len(leaves) + tape.guards + len(settings) + dog.size,
        )
        if tape.regions:
            events.notes.append(unsaved(tape.regions))
        number = events.add_graph(graph, count_nodes(graph.graph))
        inner = straight(graph, leaves) if executor.name == "replay" else executor.wrap(graph)
        inner = regions.inside(inner, number) if marked and number is not None else inner
        guarded = _Guarded(signature, state, settings, dog, tape.undo, inner, tape.guards > 0)

        def call(*args: Any, **kwargs: Any) -> Any:
            given, given_spec = pytree.tree_flatten((args, kwargs))
            try:
                outputs = guarded(given, given_spec)
            except GuardError as error:
                if self.on_guard_failure != "eager" or isinstance(error, _TooLate):
                    raise
            else:
                for write, value in zip(writes, outputs[returned:], strict=True):
                    write.again(value)
                return pytree.tree_unflatten(outputs[:returned], output_spec)
            return model(*args, **kwargs)

        return Capture(call=call, module=model, events=events)


class _TooLate(GuardError):
    """A guard failed after Python had run whose effects nobody knows."""


@dataclass(frozen=True)
class _Guarded:
    """A tape with all that is checked before it runs and what is taken back if a guard within it fails."""

    signature: Signature
    state: dict[int, str]
    settings: tuple[Any, ...]
    dog: Watchdog
    undo: Undo
    run: Callable[..., Any]
    guards_within: bool

    def __call__(self, given: list[Any], spec: pytree.TreeSpec) -> Any:
        """Replay the tape on flat arguments.

        Raises:
            GuardError: something is not as it was recorded; nothing has been changed then.
        """
        self.signature.check(given, spec, self.state)
        ambient.check(self.settings)
        if (change := self.dog.check()) is not None:
            met = f"; read at {spelled(change.met)}" if change.met else ""
            raise GuardError(f"{change.name}: {change.before} on tape, {change.now} now{met}")
        restore = self.undo.save(given) if self.guards_within else None
        grad = torch.is_grad_enabled()
        try:
            if ambient.autocasts(self.settings):
                with ambient.without_autocast():
                    return self.run(*given)
            return self.run(*given)
        except GuardError as error:
            assert restore is not None
            restore()
            if self.undo.never:
                raise _TooLate(f"{error}; Python that was left to run as it is has run already") from error
            raise
        finally:
            torch._C._set_grad_enabled(grad)


def _recorded(
    model: nn.Module, inputs: Inputs, leaves: list[Any], orders: Orders, *, marked: bool
) -> tuple[Run, Tape, Any]:
    """Run the model once under watch; return what was seen, the open tape and the result."""
    run = Run(model)
    tape = Tape(model, run)
    tape.placeholders(leaves)
    with run.on(), _regions(tape, run, model, orders, marked=marked), tape.beside(), tape:
        result = model(*inputs.args, **inputs.kwargs)
    # What a tape can return can be assigned anew after each of its runs.
    run.effects += [write.effect for write in run.writes if not tape.can_return(write.value)]
    return run, tape, result


def _state(model: nn.Module) -> dict[int, str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {id(tensor): name for name, tensor in named}


def _refuse(run: Run) -> None:
    """Raise if a run did something that a tape cannot repeat.

    Raises:
        UntapeableError: it did.
    """
    if run.effects:
        effect = next((effect for effect in run.effects if effect.place is not None), run.effects[0])
        where = f" at {spelled(effect.place)}" if effect.place is not None else ""
        raise UntapeableError(f"the forward {effect.what}{where}, which a tape cannot repeat")


@contextlib.contextmanager
def _regions(tape: Tape, run: Run, model: nn.Module, orders: Orders, *, marked: bool) -> Iterator[None]:
    """Within the context, have the tape hold one call of Python for each piece that ``orders`` keep out or whole."""
    stands_for = run.memory.stands_for
    with contextlib.ExitStack() as during:
        for order in orders.of("disable", "opaque"):
            assert order.target is not None
            outside = marked and order.instruction.control == "disable"
            for part in order.target.modules(model):
                inner = regions.outside(part.forward) if outside else part.forward
                call = tape.call_of(inner, order.instruction.target)
                stands_for[id(call)] = vars(part).get("forward", MISSING)
                during.enter_context(stand_in_forward(part, call))
            if (function := order.target.function) is not None:
                call = tape.call_of(regions.outside(function) if outside else function, order.instruction.target)
                stands_for[id(call)] = function
                during.enter_context(rebound(order.target, call))
        yield


def _fixed_input(index: int, leaf: Any) -> Specialisation:
    """What the signature holds an input to that differs from call to call."""
    if isinstance(leaf, torch.Tensor):
        return Specialisation("shape", f"argument {index}", value=str(list(leaf.shape)))
    return Specialisation("argument", f"argument {index}", value=repr(leaf)[:_VALUE_LIMIT])
