"""Which calls a capture is judged on, in which order.

The example comes first, again, and once more at the end: some captures are wrong only on a second call, some only on
returning to the first state. A model file's hooks count on this order: call 0 is the example, 1 the example
again, then ``other_inputs`` one by one, then the example last; ``invalid_inputs`` follow. ``Subject.probes`` says
which of these are made.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracebench.errors import RequestError
from tracebench.frontends.base import Inputs
from tracebench.probes import USE
from tracebench.record import Probe
from tracebench.soundness.synthesize import (
    CannotBatch,
    common_batch,
    fresh_values,
    has_both_signs,
    same_values,
    with_batch,
)
from tracebench.subject import Subject

#: How many times the example's magnitude the large fresh values have.
LARGE = 8.0


@dataclass(frozen=True)
class Call:
    """One call: the probe it makes, and its inputs (pristine: every run copies them)."""

    name: str
    inputs: Inputs
    #: Inputs on which eager is meant to raise: the probe asks whether the capture raises too.
    invalid: bool = False


@dataclass(frozen=True)
class Plan:
    """The calls of one run, and the probes for which no inputs could be made."""

    calls: tuple[Call, ...]
    skipped: tuple[Probe, ...] = ()
    notes: tuple[str, ...] = ()


def plan(subject: Subject) -> Plan:
    """Return the calls on which captures of ``subject`` are judged."""
    calls = [Call("same", subject.example), Call("same_again", subject.example)]
    skipped: list[Probe] = []
    notes: list[str] = []
    wanted = subject.probes
    if subject.declares_inputs:
        if "other" in wanted:
            calls += [Call(f"other{i}", inputs) for i, inputs in enumerate(subject.other_inputs)]
    else:
        if "fresh" in wanted:
            _fresh(subject, calls, skipped, notes)
        if "batch" in wanted:
            _batches(subject, calls, skipped)
    if "shape" in wanted:
        _shapes(subject, calls, skipped)
    calls.append(Call("same_last", subject.example))
    if "invalid" in wanted:
        calls += [Call(f"invalid{i}", inputs, invalid=True) for i, inputs in enumerate(subject.invalid_inputs)]
    left_out = [name for name in USE if name not in wanted]
    if left_out:
        notes.append(f"the verdict rests on fewer probes, as soundness.probes says: without {', '.join(left_out)}")
    return Plan(tuple(calls), tuple(skipped), tuple(notes))


def _fresh(subject: Subject, calls: list[Call], skipped: list[Probe], notes: list[str]) -> None:
    drawn = None
    if subject.redraw is not None:
        try:
            drawn = subject.redraw(subject.seed + 101)
        except RequestError as error:
            notes.append(f"drawing the example anew failed, fresh values are our own: {error}")
    if drawn is None or same_values(drawn, subject.example):
        drawn = fresh_values(subject.example, subject.seed + 101)
    made = {"fresh0": drawn, "fresh1": fresh_values(subject.example, subject.seed + 102)}
    if has_both_signs(subject.example):
        # Branches on a magnitude or a norm, which values of the example's own size never take.
        made["fresh_large"] = fresh_values(subject.example, subject.seed + 103, scale=LARGE)
        made["fresh_small"] = fresh_values(subject.example, subject.seed + 104, scale=1 / LARGE**2)
    for name, inputs in made.items():
        if same_values(inputs, subject.example):
            skipped.append(Probe(name, "n/a", "the inputs hold no tensor whose values could be drawn anew"))
        else:
            calls.append(Call(name, inputs))


def _batches(subject: Subject, calls: list[Call], skipped: list[Probe]) -> None:
    """Add one sample less and one more, then one sample and none: sizes 0 and 1 are where captures specialise."""
    size = subject.batch_size
    given = subject.with_batch if size is not None else None
    if given is None:
        try:
            size = common_batch(subject.example)
        except CannotBatch as error:
            skipped.append(Probe("batch", "n/a", f"no other batch size can be made: {error}"))
            return
    assert size is not None
    for other in dict.fromkeys((size - 1, size + 1, 1, 0)):
        if other < 0 or other == size:
            continue
        name = f"batch_{other}"
        try:
            made = given(other) if given else with_batch(subject.example, other, subject.seed + 105 + other)
            calls.append(Call(name, made))
        except RequestError as error:
            skipped.append(Probe(name, "n/a", f"the model's example_inputs() fails at this batch size: {error}"))


def _shapes(subject: Subject, calls: list[Call], skipped: list[Probe]) -> None:
    for name, draw in subject.other_shapes.items():
        try:
            calls.append(Call(name, draw()))
        except RequestError as error:
            skipped.append(Probe(name, "n/a", f"the model's example_inputs() fails at this shape: {error}"))
