"""Does a capture follow what its user does to the model afterwards: another mode, dtype or device, a new parameter?

No part of the verdict: a trace never follows a mode switch, of no model, so it must be said without making every
verdict ``unsound``.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tracebench.frontends.base import Inputs
from tracebench.probes import LIFECYCLE
from tracebench.record import Probe
from tracebench.soundness.calls import Call
from tracebench.soundness.compare import Comparison
from tracebench.soundness.globals import Globals
from tracebench.soundness.numerics import exact_numerics
from tracebench.soundness.observations import Rules, compare_calls, describe
from tracebench.soundness.reference import default_float64, in_float64
from tracebench.soundness.runs import Failure, Snapshot, Target, run
from tracebench.soundness.stage import CaptureFn, capture_copy
from tracebench.soundness.structure import to_tree, walk
from tracebench.subject import Subject, devices

#: What shows whether a change took effect. State is left out: the changes themselves write to it.
_SHOWING = ("output", "input_mutation", "alias", "printed", "grad")
_RULES = Rules(aspects=frozenset(_SHOWING))


@dataclass(frozen=True)
class _Change:
    """Something done to a model between two calls; the second call has inputs to suit."""

    name: str
    #: Takes the source model and the module that the capture uses, which may be the same or share its pieces.
    apply: Callable[[nn.Module, nn.Module], None] = lambda model, module: None
    inputs: Callable[[Inputs], Inputs] = lambda inputs: inputs
    #: Why the change cannot be made at all.
    impossible: str | None = None


@dataclass(frozen=True)
class _Pair:
    """A call before the change and one after it, or what the change itself ended in."""

    before: Snapshot
    after: Snapshot | None = None
    failure: Failure | None = None

    @property
    def why(self) -> Failure | None:
        """What the change or the call after it raised."""
        return self.failure if self.after is None else self.after.failure


def follow(subject: Subject, capture_fn: CaptureFn, *, seconds: float = math.inf) -> tuple[Probe, ...]:
    """Return one probe for each change made to model and capture between two calls on the example.

    ``match``: the capture does what eager does after the change. ``diverge``: it silently does something else, mostly
    what it did before. ``raise``: it, or making the change to it, raises. ``n/a``: nothing could be seen, the reason is
    in the detail. Each probe works on a fresh model and a fresh capture, and the subject is left as it was. After
    ``seconds`` no further change is tried, and its probe says so. ``Subject.probes`` may choose; without any of these
    names, all are made.

    Raises:
        Exception: whatever ``capture_fn`` raises.
    """
    started = time.monotonic()
    wanted = subject.probes.intersection(LIFECYCLE) or frozenset(LIFECYCLE)
    with subject.restoring_globals(), exact_numerics():
        unchanged = _pair(subject, _eager(subject), _Change("none"))
        probes = []
        for change in _changes(subject):
            if change.name not in wanted:
                continue
            if time.monotonic() - started < seconds:
                probes.append(_probe(subject, capture_fn, change, unchanged))
            else:
                why = f"not tried within soundness.lifecycle_seconds={seconds:g}"
                probes.append(Probe(change.name, "n/a", why))
        return tuple(probes)


def _changes(subject: Subject) -> Iterator[_Change]:
    yield _Change("train_eval_switch", _switch_mode)
    yield _Change("dtype_move", lambda model, module: _both(model, module, nn.Module.double), in_float64)
    other = _other_device(subject.device)
    if other is None:
        yield _Change("device_move", impossible="there is no second device here")
    else:
        yield _Change(
            "device_move",
            lambda model, module: _both(model, module, lambda part: part.to(other)),
            lambda inputs: _on_device(inputs, other),
        )
    name = _replaceable(subject.model)
    if name is None:
        yield _Change("parameter_replaced", impossible="the model has no floating-point parameters")
    else:
        yield _Change("parameter_replaced", lambda model, module: _replace_parameter(model, module, name))
    path = next(
        (path for path, part in subject.model.named_modules() if path and list(part.parameters(recurse=False))), None
    )
    if path is None:
        yield _Change("hook_added", impossible="the model has no submodule with parameters")
    else:
        yield _Change("hook_added", lambda model, module: _add_hook(model, module, path))


def _probe(subject: Subject, capture_fn: CaptureFn, change: _Change, unchanged: _Pair) -> Probe:
    def not_seen(why: str) -> Probe:
        return Probe(change.name, "n/a", why)

    if change.impossible is not None:
        return not_seen(change.impossible)
    expected, again = (_pair(subject, _eager(subject), change) for _ in range(2))
    for pair in (unchanged, expected, again):
        if pair.why is not None:
            return not_seen(f"eager itself raises {pair.why}")
    assert expected.after is not None
    assert again.after is not None
    assert unchanged.after is not None
    loose = _differing(expected.after, again.after) | _differing(expected.before, again.before)
    effect = [aspect for aspect in _differing(unchanged.after, expected.after) if aspect not in loose]
    if not effect:
        blur = "; eager itself does not reproduce " + ", ".join(loose) if loose else ""
        return not_seen(f"the change leaves what eager does as it was, so nothing could be seen{blur}")

    target, _ = capture_copy(subject, capture_fn, Globals(subject.model))
    actual = _pair(subject, target, change)
    if actual.before.failure is not None:
        return not_seen(f"the capture raises before the change: {actual.before.failure}")
    if actual.why is not None:
        return Probe(change.name, "raise", f"raises {actual.why}")
    assert actual.after is not None
    found = _differing(expected.after, actual.after, effect)
    if any(part.inexact for part in found.values()) or _differing(expected.before, actual.before, effect):
        reference = _in_float64(subject, change)
        if earlier := _differing(expected.before, actual.before, effect, reference.before):
            return not_seen(f"the capture differs from eager before the change: {_told(earlier)}")
        found = _differing(expected.after, actual.after, effect, reference.after)
    if not found:
        return Probe(change.name, "match")
    # A replaced parameter has no gradient in a capture that goes on with the old one.
    stays = not _differing(unchanged.after, actual.after, [a for a in effect if a != "grad"] or effect)
    return Probe(change.name, "diverge", ("goes on as before. " if stays else "") + _told(found))


def _told(found: dict[str, Comparison]) -> str:
    return ". ".join(describe(aspect, part) for aspect, part in found.items())


def _differing(
    expected: Snapshot, actual: Snapshot, aspects: Sequence[str] = _SHOWING, reference: Snapshot | None = None
) -> dict[str, Comparison]:
    found = compare_calls(expected, actual, reference, _RULES)
    return {aspect: found[aspect] for aspect in aspects if found[aspect].differences}


def _eager(subject: Subject) -> Target:
    return Target.eager(subject.fresh_model())


def _pair(
    subject: Subject, target: Target, change: _Change, prepare: Callable[[Inputs], Inputs] = lambda inputs: inputs
) -> _Pair:
    calls = (Call("before", subject.example), Call("after", change.inputs(subject.example)))
    steps = run(subject, calls, target, prepare=prepare)
    # The first call comes before the change, or what captures lazily would be captured changed.
    before = next(steps)
    if before.failure is not None:
        return _Pair(before, failure=before.failure)
    try:
        change.apply(target.model, target.module)
    except Exception as error:
        return _Pair(before, failure=Failure(type(error).__name__, str(error), None))
    return _Pair(before, next(steps))


def _in_float64(subject: Subject, change: _Change) -> _Pair:
    model = subject.fresh_model().double()
    with default_float64(torch.get_default_dtype()):
        return _pair(subject, Target.eager(model), change, in_float64)


def _both(model: nn.Module, module: nn.Module, act: Callable[[nn.Module], Any]) -> None:
    act(model)
    if module is not model:
        act(module)


def _switch_mode(model: nn.Module, module: nn.Module) -> None:
    mode = not model.training
    _both(model, module, lambda part: part.train(mode))


def _other_device(device: torch.device) -> torch.device | None:
    found = [torch.device(name) for name in devices()]
    here = device.index or 0
    apart = [other for other in found if other.type != device.type]
    apart += [other for other in found if other.index not in (None, here)]
    return apart[0] if apart else None


def _on_device(inputs: Inputs, device: torch.device) -> Inputs:
    moved: dict[int, Any] = {}
    for _, leaf in walk(to_tree(inputs)):
        tensor = leaf.live
        moved[id(tensor)] = tensor.detach().to(device).requires_grad_(tensor.requires_grad)
    return copy.deepcopy(inputs, moved)


def _part(module: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule at ``path``, or None: a graph need not have it."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _replaceable(model: nn.Module) -> str | None:
    """Return the first floating-point parameter that goes by one name only, or failing that by several."""
    named = [(name, p) for name, p in model.named_parameters(remove_duplicate=False) if p.is_floating_point()]
    uses = Counter(id(parameter) for _, parameter in named)
    return min(named, key=lambda entry: uses[id(entry[1])] > 1, default=(None, None))[0]


def _replace_parameter(model: nn.Module, module: nn.Module, name: str) -> None:
    path, _, key = name.rpartition(".")
    old = model.get_parameter(name)
    # Neither zero nor a multiple, which a normalisation might undo.
    values = old.detach() * 0.5 + torch.linspace(0.1, 0.5, old.numel()).to(old).view(old.shape)
    new = nn.Parameter(values, requires_grad=old.requires_grad)
    setattr(model.get_submodule(path), key, new)
    part = _part(module, path)
    if part is not None and part is not model.get_submodule(path) and key in dict(part.named_parameters(recurse=False)):
        setattr(part, key, new)


def _add_hook(model: nn.Module, module: nn.Module, path: str) -> None:
    own = model.get_submodule(path)
    own.register_forward_hook(_halve)
    part = _part(module, path)
    if part is not None and part is not own:
        part.register_forward_hook(_halve)


def _halve(module: nn.Module, args: Any, output: Any) -> Any:
    return _half(output)


def _half(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value * 0.5
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_half(item) for item in value)
    return value
