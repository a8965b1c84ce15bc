"""Python that a tape calls as it is, and what it answered, for a run that must not have it run twice.

When a check fails after such Python has run, the tape's own ops are taken back and the model runs from the start. What
has run once and cannot be taken back then answers as it did, and leaves the random generators as it left them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracebench.frontends.form import Form
from tracebench.frontends.tape.ambient import Casting
from tracebench.frontends.tape.errors import GuardError
from tracebench.frontends.tape.undo import random_states, set_random_states


class Region:
    """Runs Python on a list of tensors: one node of a tape. Whatever else the recorded call took is kept with it."""

    def __init__(self, run: Callable[..., Any], name: str, inputs: Form, outputs: Form, casting: Casting) -> None:
        self._run = run
        self._inputs = inputs
        self._outputs = outputs
        # A tape runs with autocast off, whatever the caller's is.
        self._casting = casting if casting else None
        self.name = name
        called = getattr(run, "__name__", "region")
        # Graphs write the names of what they call: a lambda has none.
        self.__name__ = self.__qualname__ = called if called.isidentifier() else "region"
        self.__module__ = __name__

    @property
    def form(self) -> Any:
        """What two calls of one piece have in common if they stand for each other."""
        return self.name, self._inputs, self._outputs, self._casting

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        answers = _state.answers
        if answers is None:
            return self._results(tensors)
        with answers.noted(self.name, self._inputs, tensors) as note:
            results = self._results(tensors)
            note(self._outputs, results)
        return results

    def _results(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = self._inputs.join(tensors)
        if self._casting:
            with self._casting.on():
                found = self._run(*args, **kwargs)
        else:
            found = self._run(*args, **kwargs)
        outputs, results = Form.split(found, "a result")
        if outputs != self._outputs:
            raise GuardError("a region left to Python returns another structure than when the tape was recorded")
        return results


@dataclass(frozen=True)
class Answer:
    """What one piece answered in one call."""

    name: str
    inputs: Form
    shapes: tuple[Any, ...]
    outputs: Form
    results: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    #: For a result that is an input, which one it is.
    same: tuple[int | None, ...]
    random: dict[torch.device, torch.Tensor]

    def again(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return what it returned; ``tensors`` are its inputs now."""
        set_random_states(self.random)
        pairs = zip(self.results, self.same, strict=True)
        return self.outputs.join([result if place is None else tensors[place] for result, place in pairs])


@dataclass
class Answers:
    """What the pieces of one call answered so far. ``watched`` are tensors that others than they read."""

    watched: Sequence[torch.Tensor] = ()
    found: list[Answer] = field(default_factory=list)
    #: Why the pieces cannot be handed their answers; None if they can.
    unsafe: str | None = None
    _next: int = 0

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Within the context, pieces that run on this thread are noted."""
        before, _state.answers = _state.answers, self
        try:
            yield
        finally:
            _state.answers = before

    @contextlib.contextmanager
    def noted(
        self, name: str, inputs: Form, tensors: Sequence[torch.Tensor]
    ) -> Iterator[Callable[[Form, list[torch.Tensor]], None]]:
        """Within the context, a piece runs once; hand its results to the function that this gives."""
        outside = [tensor for tensor in (*self.watched, *tensors) if not tensor.is_inference()]
        before = [tensor._version for tensor in outside]
        shapes = _like(tensors)

        def note(outputs: Form, results: list[torch.Tensor]) -> None:
            if [tensor._version for tensor in outside] != before:
                self.unsafe = self.unsafe or f"{name} has changed a tensor in place"
            if not all(map(_plain, (*results, *tensors))) or len(outside) < len(self.watched) + len(tensors):
                self.unsafe = self.unsafe or f"what {name} takes or returns cannot be told apart"
                return
            places = {id(tensor): place for place, tensor in enumerate(tensors)}
            same = tuple(places.get(id(result)) for result in results)
            memory = {tensor.untyped_storage()._cdata for tensor in (*self.watched, *tensors) if _plain(tensor)}
            fresh = [result for result, place in zip(results, same, strict=True) if place is None]
            if any(result.untyped_storage()._cdata in memory for result in fresh):
                self.unsafe = self.unsafe or f"{name} has returned a view of what it was given"
            versions = tuple(result._version for result in results)
            self.found.append(Answer(name, inputs, shapes, outputs, tuple(results), versions, same, random_states()))

        # A piece that raises has run, too.
        ran, self.unsafe = self.unsafe, self.unsafe or f"{name} has raised"
        yield note
        if self.unsafe == f"{name} has raised":
            self.unsafe = ran

    def check(self, *, kept: bool) -> None:
        """Ask whether the model can run from the start with these answers; ``kept`` if the tape has taken back writes.

        Raises:
            GuardError: it cannot.
        """
        for answer in self.found:
            for result, version, place in zip(answer.results, answer.versions, answer.same, strict=True):
                if place is None and result._version != version:
                    self.unsafe = self.unsafe or f"what {answer.name} has returned was changed in place"
                if kept and result.requires_grad and place is None:
                    self.unsafe = self.unsafe or f"gradients flow through {answer.name} past what was taken back"
        if self.unsafe is not None:
            raise GuardError(self.unsafe)

    def next(self, name: str, inputs: Form | None, tensors: Sequence[torch.Tensor]) -> Answer | None:
        """Return the answer of the piece that is called now; None once all are given.

        Raises:
            GuardError: another piece is called, or with other inputs, than when the answers were noted.
        """
        if self._next == len(self.found):
            return None
        answer = self.found[self._next]
        if answer.name != name or answer.inputs != inputs or answer.shapes != _like(tensors):
            raise GuardError(
                f"{name} is called where {answer.name} was, or with other inputs: something unseen was read"
            )
        self._next += 1
        return answer


NO_ANSWERS = Answers()


class _State(threading.local):
    answers: Answers | None = None


_state = _State()


def _like(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return tuple((tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in tensors)


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
