"""A trace hook of our own: the ATen ops of one run are taped onto ``fx`` graphs, which are then replayed.

A tape is static, and says so: whatever the recorded run took for granted is checked on every call, and where it no
longer holds ``GuardError`` is raised instead of computing something else. Checked before the tape runs are the
arguments, the settings of the thread, and the attributes, globals and closures that the run read; within the tape the
Python numbers and sizes that the run read from tensors. What a tape cannot repeat is refused at capture, with its line:
a forward that writes state of Python, prints, asks the clock, draws Python's random numbers or hands memory to others.

Where a check fails, the model can also run the call itself, or be recorded again: tapes then form a tree whose branches
share what they do up to the check that tells them apart.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tracebench.controls.orders import NO_ORDERS, Orders
from tracebench.frontends.base import UNSAVED, Capture, Events, Executor, Inputs, unsaved
from tracebench.frontends.form import PLAIN
from tracebench.frontends.tape import artifact
from tracebench.frontends.tape.answers import NO_ANSWERS, Answers
from tracebench.frontends.tape.errors import GuardError, UntapeableError
from tracebench.frontends.tape.runs import Recorder
from tracebench.frontends.tape.segments import Branch, Eager, Unlike
from tracebench.frontends.tape.tree import Grounds, MissedError, Root, Tapes
from tracebench.observe.run import no_collection

__all__ = ["GuardError", "Hook", "UntapeableError"]

#: Tapes that one capture holds at most, unless asked otherwise.
RETRACE_LIMIT = 16


@dataclass(frozen=True)
class Hook:
    """Records one run of the model on the example inputs.

    ``on_guard_failure`` says what becomes of a call that the tape does not hold for: ``raise``; ``eager``, the model
    itself is called; or ``retrace``, it is recorded again, up to ``retrace_limit`` tapes in all, eager from then on.
    """

    on_guard_failure: str = "raise"
    retrace_limit: int = RETRACE_LIMIT
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
        if (error := _unguarded(leaves)) is not None:
            raise error
        recorder = Recorder(model, orders, marked)
        grounds = Grounds.of(leaves, spec, _state(model))
        taken = recorder.take(inputs.args, inputs.kwargs)
        if taken.passing:
            # What is made at the first call and kept (sizes, tables) is there at the second.
            taken = recorder.take(inputs.args, inputs.kwargs)
        if taken.tape is None:
            assert taken.refused is not None
            raise taken.refused
        events = Events(leaves=True)
        if taken.regions:
            events.notes.append(unsaved(taken.regions))
        tapes = Tapes(executor, marked, events, self.on_guard_failure == "retrace")
        tapes.plant(Root(grounds, taken.memory), *taken.tape)
        tapes.tell()
        # Pieces left to Python are told above.
        if (why := artifact.obstacle(tapes)) is not None and not taken.regions:
            events.notes.append(f"{UNSAVED}{why}")
        events.refresh = tapes.tell
        return Capture(
            call=_Caller(self, model, recorder, tapes),
            module=model,
            events=events,
            compilations=lambda: events.compilations,
            save=None if why is not None else functools.partial(artifact.save, tapes),
        )


class _TooLateError(GuardError):
    """A check failed after Python had run whose effects nobody knows."""


class _Caller:
    """A call of the captured model: a tape that holds for it, or what is to happen where none does."""

    def __init__(self, hook: Hook, model: nn.Module, recorder: Recorder, tapes: Tapes) -> None:
        self._model = model
        self._recorder = recorder
        self.tapes = tapes
        self._on = hook.on_guard_failure
        self._limit = hook.retrace_limit
        #: Runs recorded so far, those that no tape can hold included.
        self._taken = 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, spec = pytree.tree_flatten((args, kwargs))
        try:
            root = self.tapes.find(given, spec)
        except GuardError as error:
            # Nothing has run.
            if self._on == "raise":
                raise
            if self._on == "eager" or self._is_full():
                return self._model(*args, **kwargs)
            return self._first(error, args, kwargs, given, spec)
        if isinstance(root.top, Eager):
            root.top.calls += 1
            return self._model(*args, **kwargs)
        if not root.breaks:
            return root.replay(given)
        return self._guarded(root, args, kwargs, given, spec)

    def _guarded(
        self, root: Root, args: Sequence[Any], kwargs: Mapping[str, Any], given: list[Any], spec: pytree.TreeSpec
    ) -> Any:
        """Replay tapes, one of whose checks may fail on the way."""
        restore = root.undo.save(given)
        # Code that a compiler has made of Python notes nothing.
        noting = self._on == "retrace" and root.undo.never and not self.tapes.executor.compiles
        answers = root.answers(given) if noting else NO_ANSWERS
        try:
            with answers.on() if answers is not NO_ANSWERS else contextlib.nullcontext():
                return root.replay(given)
        except MissedError as error:
            restore()
            missed: Exception = error
            if root.undo.never:
                if self._on != "retrace":
                    raise _too_late(error, "") from error
                self._hand_back(root, answers, error, given, spec)
        except Exception as error:
            # An op that has not failed before: the forward may catch that.
            if isinstance(error, GuardError) or self._on != "retrace" or not root.undo.covers(root.undo_all):
                raise
            restore()
            missed = error
            if root.undo.never:
                try:
                    self._hand_back(root, answers, GuardError(str(error)), given, spec)
                except GuardError:
                    raise error from None
        if self._on == "raise":
            raise missed
        known = missed.found if isinstance(missed, MissedError) else None
        if known is not None:
            assert isinstance(known.to, Eager)
            known.to.calls += 1
        if self._on == "eager" or known is not None or self._is_full():
            if answers.found:
                return self._recorder.take(args, kwargs, lenient=True, answers=answers).result
            return self._model(*args, **kwargs)
        return self._branch(root, missed, args, kwargs, answers)

    def _hand_back(
        self, root: Root, answers: Answers, error: GuardError, given: list[Any], spec: pytree.TreeSpec
    ) -> None:
        """Ask whether the model can run from the start although Python has run that is not taken back.

        Raises:
            GuardError: it cannot.
        """
        if self.tapes.executor.compiles:
            raise _too_late(error, "the executor has compiled through it") from error
        try:
            answers.check(kept=bool(root.undo.arguments or root.undo.state))
            # It may have changed what the run had read by then.
            root.check(given, spec)
        except GuardError as why:
            raise _too_late(error, str(why)) from error

    def _first(
        self,
        error: GuardError,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: list[Any],
        spec: pytree.TreeSpec,
    ) -> Any:
        """Record the run of a call that no tape begins like."""
        if (unguarded := _unguarded(given)) is not None:
            self._note(f"eager: {unguarded}")
            return self._model(*args, **kwargs)
        grounds = Grounds.of(given, spec, _state(self._model))
        self._count(error)
        taken = self._recorder.take(args, kwargs, lenient=True)
        root = Root(grounds, taken.memory, why=str(error))
        if taken.tape is not None:
            self.tapes.plant(root, *taken.tape)
        elif not taken.passing:
            root.top = self._eager(taken.refused)
            self.tapes.roots.insert(0, root)
        return taken.result

    def _branch(
        self, root: Root, missed: Exception, args: Sequence[Any], kwargs: Mapping[str, Any], answers: Answers
    ) -> Any:
        """Record the run of a call that begins like a tape and goes on otherwise."""
        self._count(missed)
        taken = self._recorder.take(args, kwargs, lenient=True, answers=answers)
        if taken.tape is not None:
            try:
                self.tapes.graft(root, *taken.tape, taken.memory)
            except Unlike as unlike:
                # The shared part can no longer be trusted.
                root.top = self._eager(
                    f"two runs on equal grounds did other ops, at {unlike}: the forward reads something unseen"
                )
        elif not taken.passing and isinstance(missed, MissedError):
            missed.guard.branches[missed.key] = Branch(missed.text, self._eager(taken.refused))
        return taken.result

    def _count(self, missed: Exception) -> None:
        events = self.tapes.events
        self._taken += 1
        events.compilations += 1
        told = str(missed) if isinstance(missed, GuardError) else f"{type(missed).__name__}: {missed}, no error on tape"
        events.recompiles.append(" ".join(told.split()))

    def _is_full(self) -> bool:
        if self._taken < self._limit:
            return False
        self._note(
            f"eager from now on where no tape holds: {self._taken} runs are recorded, which is the limit "
            "(frontend.retrace_limit)"
        )
        return True

    def _eager(self, reason: object) -> Eager:
        self._note(f"the model itself runs where a tape is refused: {reason}")
        return Eager(str(reason))

    def _note(self, text: str) -> None:
        notes = self.tapes.events.notes
        if text not in notes:
            notes.append(text)


def _too_late(error: GuardError, why: str) -> GuardError:
    why = f" ({why})" if why else ""
    return _TooLateError(f"{error}; Python that was left to run as it is has run already{why}")


def _unguarded(leaves: Sequence[Any]) -> UntapeableError | None:
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            return UntapeableError(f"an input of type {type(leaf).__name__} cannot be guarded by a tape")
    return None


def _state(model: nn.Module) -> dict[int, str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {id(tensor): name for name, tensor in named}
