"""Which submodule is at fault: the smallest that shows a capture's fault when it is captured by itself.

The search descends from the whole model. Each submodule is judged on the inputs it really gets inside the model, and
the first that shows the fault is looked into next.
"""

from __future__ import annotations

import contextlib
import copy
import io
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tracebench.errors import CaptureError
from tracebench.failures import first_line, is_out_of_memory, own_error
from tracebench.frontends.base import Inputs
from tracebench.record import Blame
from tracebench.soundness.calls import Call, plan
from tracebench.soundness.compare import compare
from tracebench.soundness.numerics import exact_numerics
from tracebench.soundness.runs import Target, run
from tracebench.soundness.stage import CaptureFn, judge
from tracebench.soundness.structure import to_tree, walk
from tracebench.subject import Hooks, Subject
from tracebench.userlocation import definition, user_location

#: How many submodules a note names; the rest are counted.
_NAMED = 4
_REPEATS = ("same", "same_again", "same_last")


def find_blame(
    subject: Subject, capture_fn: CaptureFn, verdict: str, detail: str, *, lazy: bool, seconds: float
) -> Blame:
    """Return the smallest submodule whose capture by itself is ``verdict`` too; the whole model if none is.

    ``capture_fn`` raises ``CaptureError`` where the front end refuses. ``detail`` says what is wrong with the whole
    model's capture. ``lazy`` says that capturing ends with the first call
    of the capture. After ``seconds`` no further submodule is judged, and the answer is the best so far.

    A submodule counts as refused only if it is refused as the whole model is: at the same line of user code, or, where
    the refusal passes through none, with the same message. Else a layer that the front end takes as one op inside the
    model, but cannot look into, would get the blame.

    The subject is left as it was.

    Raises:
        ValueError: ``verdict`` is neither ``unsound`` nor ``refused``.
    """
    if verdict not in ("unsound", "refused"):
        raise ValueError(f"blame is for the verdicts unsound and refused, not {verdict!r}")
    started = time.monotonic()
    search = _Search(subject, capture_fn, verdict, lazy, started + seconds)
    # Every submodule's warnings were there when the whole model was captured.
    with subject.restoring_globals(), warnings.catch_warnings(record=True):
        warnings.simplefilter("ignore")
        return search.descend(detail)


class _CannotJudge(Exception):
    """A submodule cannot be judged by itself; the message says why."""


@dataclass(frozen=True)
class _Refusal:
    type: str
    message: str
    location: str | None

    def same_as(self, other: _Refusal) -> bool:
        if self.location is not None or other.location is not None:
            return (self.type, self.location) == (other.type, other.location)
        return (self.type, self.message) == (other.type, other.message)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass
class _Search:
    subject: Subject
    capture_fn: CaptureFn
    verdict: str
    lazy: bool
    deadline: float

    def descend(self, detail: str) -> Blame:
        model = self.subject.model
        refusal = _refusal(self.subject, self.capture_fn, self.lazy) if self.verdict == "refused" else None
        path = ""
        while True:
            here = model.get_submodule(path)
            answer = Blame(path, type(here).__name__, definition(here.forward), self.verdict, detail)
            if next(here.children(), None) is None:
                return answer
            if time.monotonic() >= self.deadline:
                return replace(answer, complete=False, note=self._stopped(answer, "none of its submodules was judged"))
            recorded = _record(self.subject, path)
            skipped = dict(recorded.skipped)
            for i, (name, child) in enumerate(recorded.subjects.items()):
                if time.monotonic() >= self.deadline:
                    so_far = f"{i} of its {len(recorded.subjects)} submodules were judged, and show no such fault"
                    note = ". ".join(filter(None, [self._stopped(answer, so_far), _told(skipped)]))
                    return replace(answer, complete=False, note=note)
                try:
                    found = self._fault(child, refusal)
                except _CannotJudge as error:
                    skipped[name] = str(error)
                    continue
                if found is not None:
                    path, detail = (f"{path}.{name}" if path else name), found
                    break
            else:
                return replace(answer, note=_told(skipped))

    def _fault(self, child: Subject, whole: _Refusal | None) -> str | None:
        """Return what is wrong with the capture of ``child``, or None if that is not what we look for."""
        try:
            if self.verdict == "refused":
                refusal = _refusal(child, self.capture_fn, self.lazy)
                if refusal is None or (whole is not None and not refusal.same_as(whole)):
                    return None
                return str(refusal)
            found = judge(child, self.capture_fn)
        except _CannotJudge:
            raise
        except CaptureError as error:
            raise _CannotJudge(f"refused by itself: {_described(error)}") from error
        except Exception as error:
            raise _CannotJudge(str(_described(error))) from error
        if found.verdict is None:
            raise _CannotJudge("not one probe applies to it by itself")
        if found.verdict != self.verdict:
            return None
        return next(probe.detail for probe in found.probes if probe.outcome == "diverge")

    def _stopped(self, answer: Blame, so_far: str) -> str:
        where = f"at {answer.path}" if answer.path else "at the whole model"
        return f"the time limit ended the search {where}: {so_far}"


def _refusal(subject: Subject, capture_fn: CaptureFn, lazy: bool) -> _Refusal | None:
    """Return how the front end refuses ``subject``, or None if it does not.

    Raises:
        _CannotJudge: eager raises, or there is not enough memory.
    """
    with contextlib.redirect_stdout(io.StringIO()), subject.grad_mode():
        try:
            model, inputs = subject.fresh_model(), subject.fresh_inputs()
            with subject.hooks.call_context(0):
                model(*inputs.args, **inputs.kwargs)
            model, inputs, again = subject.fresh_model(), subject.fresh_inputs(), subject.fresh_inputs()
        except Exception as error:
            raise _CannotJudge(f"eager raises {_described(error)}") from error
        try:
            made = capture_fn(model, inputs)
            if lazy:
                with subject.hooks.call_context(0):
                    made.call(*again.args, **again.kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                raise _CannotJudge(str(_described(error))) from error
            return _described(error)
    return None


def _described(error: Exception) -> _Refusal:
    cause = own_error(error)
    return _Refusal(type(cause).__name__, first_line(cause), user_location(cause))


@dataclass(frozen=True)
class _Recorded:
    """The submodules below one module: those that can be judged, in the order of their calls, and why others cannot."""

    subjects: dict[str, Subject]
    skipped: dict[str, str]


def _record(subject: Subject, path: str) -> _Recorded:
    """Run the model eagerly and return what the submodules nearest below ``path`` get as inputs.

    One that is never called itself, as a ``ModuleList`` or one whose methods are called instead, is looked through.
    """
    calls = plan(subject).calls
    model = subject.fresh_model()
    recorder = _Recorder()
    with recorder.hooked(model.get_submodule(path)), exact_numerics():
        for _ in run(subject, calls, Target.eager(model)):
            recorder.next_call()

    below = subject.model.get_submodule(path)
    subjects: dict[str, Subject] = {}
    skipped: dict[str, str] = {}
    for name, entries in recorder.entries.items():
        try:
            subjects[name] = _alone(subject, f"{path}.{name}" if path else name, calls, entries)
        except _CannotJudge as error:
            skipped[name] = str(error)
    called = {id(below.get_submodule(name)) for name in recorder.entries}
    for name in _uncalled(below, called):
        scripted = isinstance(below.get_submodule(name), torch.jit.ScriptModule)
        skipped[name] = "TorchScript takes no hooks" if scripted else "never called"
    return _Recorded(subjects, skipped)


def _uncalled(module: nn.Module, called: set[int]) -> Iterator[str]:
    """Yield the names of the submodules that are not in ``called`` and hold none that is."""
    for name, child in module.named_children():
        if id(child) in called:
            continue
        if any(id(inner) in called for inner in child.modules()):
            yield from (f"{name}.{inner}" for inner in _uncalled(child, called))
        else:
            yield name


@dataclass
class _Entry:
    """The first call of a submodule within one call of the model; ``inputs`` is None if they cannot be copied."""

    call: int
    inputs: Inputs | None
    #: Whether that call came to its end.
    returned: bool = False


class _Recorder:
    """Keeps the inputs of the submodules nearest below a module: of those that are called, not of what they call."""

    def __init__(self) -> None:
        #: By name, in the order of the first calls.
        self.entries: dict[str, list[_Entry]] = {}
        self._call = 0
        self._depth = 0

    def next_call(self) -> None:
        self._call += 1
        self._depth = 0

    @contextlib.contextmanager
    def hooked(self, module: nn.Module) -> Iterator[None]:
        """Record while the context lasts. Modules that are there twice go by their first name."""
        handles = []
        for name, child in module.named_modules():
            if name and not isinstance(child, torch.jit.ScriptModule):
                # First of all hooks: the model's own hooks change the inputs again when the submodule is judged.
                handles.append(child.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True))
                handles.append(child.register_forward_hook(self._leave, always_call=True))
                handles.append(child.register_forward_hook(self._returned(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._depth += 1
            entries = self.entries.get(name, [])
            if self._depth == 1 and not (entries and entries[-1].call == self._call):
                self.entries.setdefault(name, []).append(_Entry(self._call, _copied(Inputs(args, kwargs))))

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1

    def _returned(self, name: str) -> Callable[..., None]:
        def returned(module: nn.Module, args: Any, output: Any) -> None:
            entries = self.entries.get(name, [])
            if entries and entries[-1].call == self._call:
                entries[-1].returned = True

        return returned


def _copied(inputs: Inputs) -> Inputs | None:
    """Return a copy, aliasing kept, whose tensors are leaves of no graph; None if there is none."""
    try:
        memo: dict[int, Any] = {}
        for _, leaf in walk(to_tree(inputs)):
            tensor = leaf.live
            # deepcopy takes leaves only. ``leaf.value`` is this tensor, detached; the memo keeps shared memory shared.
            if not tensor.is_leaf and id(tensor) not in memo:
                memo[id(tensor)] = copy.deepcopy(leaf.value, memo).requires_grad_(tensor.requires_grad)
        return copy.deepcopy(inputs, memo)
    except Exception:
        return None


def _alone(subject: Subject, path: str, calls: Sequence[Call], entries: Sequence[_Entry]) -> Subject:
    """Return the submodule ``path`` as a subject of its own.

    Its example is what it gets in the example call, or in the first call that reaches it.

    Raises:
        _CannotJudge: its inputs cannot be copied, or only calls that are meant to fail reach it.
    """
    # Where a call of the model must raise, the submodule that raised must do so by itself.
    valid = [entry for entry in entries if not calls[entry.call].invalid or entry.returned]
    if not valid:
        raise _CannotJudge("called on invalid inputs only")
    example = valid[0].inputs
    if example is None:
        raise _CannotJudge("its inputs cannot be copied")
    others = []
    for entry in valid[1:]:
        # What the example's repetitions bring anew only a model with a memory of its own can tell.
        repeated = calls[entry.call].name in _REPEATS
        if entry.inputs is not None and not (repeated and not compare(to_tree(example), entry.inputs).differences):
            others.append(entry.inputs)
    invalid = [entry.inputs for entry in entries if calls[entry.call].invalid and not entry.returned]
    return replace(
        subject,
        name=f"{subject.name}.{path}",
        model=subject.fresh_model().get_submodule(path),
        example=example,
        redraw=None,
        with_batch=None,
        other_shapes={},
        other_inputs=tuple(others),
        invalid_inputs=tuple(inputs for inputs in invalid if inputs is not None),
        declares_inputs=True,
        batch_size=None,
        hooks=Hooks(),
        expect={},
    )


def _told(skipped: dict[str, str]) -> str:
    """Return the note on submodules that were passed over; empty if there are none."""
    if not skipped:
        return ""
    listed = ", ".join(f"{name} ({why})" for name, why in list(skipped.items())[:_NAMED])
    more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    return f"submodules that could not be judged by themselves: {listed}{more}"
