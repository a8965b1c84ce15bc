"""The soundness stage: is a capture right on every call it is meant for?"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from tracebench.frontends.base import Capture, Inputs
from tracebench.probes import ASPECTS
from tracebench.record import Probe
from tracebench.soundness.calls import Call, plan
from tracebench.soundness.compare import Comparison, compare, merge
from tracebench.soundness.globals import Globals
from tracebench.soundness.numerics import exact_numerics
from tracebench.soundness.observations import Rules, compare_calls, describe
from tracebench.soundness.reference import run_in_float64
from tracebench.soundness.runs import Snapshot, Target, call_inputs, generators, run
from tracebench.soundness.state import adopt, restore_pristine
from tracebench.soundness.structure import to_tree
from tracebench.subject import Subject

#: A call of the capture this long, and this many times as long as eager's, is worth a note.
_SLOW_SECONDS, _SLOW_RATIO = 10.0, 20.0
#: How many notes on values and strides a judgement carries; the rest are counted.
_NOTES = 12

CaptureFn = Callable[[nn.Module, Inputs], Capture]


@dataclass(frozen=True)
class Soundness:
    """The verdict, the probes it rests on, and what else is worth saying. None where no probe applied."""

    verdict: str | None
    probes: tuple[Probe, ...]
    notes: tuple[str, ...] = ()

    def joined(self, probe: Probe) -> Soundness:
        """Return the judgement with one probe more."""
        probes = (*self.probes, probe)
        return replace(self, verdict=verdict_of(probes), probes=probes)


def judge(subject: Subject, capture_fn: CaptureFn) -> Soundness:
    """Judge the capture that ``capture_fn`` makes of a copy of the subject's model and example inputs.

    The subject is left as it was. What capturing itself changes in the model is put back before the first call,
    and noted.

    Raises:
        Exception: whatever ``capture_fn`` raises.
    """
    with subject.restoring_globals(), exact_numerics():
        return _judge(subject, capture_fn)


def verdict_of(probes: Sequence[Probe]) -> str | None:
    """Return the verdict that probes add up to; None if none of them applied.

    Agreement on a batch of no samples is no evidence by itself: even what eager never reproduces agrees there.
    """
    outcomes = {probe.outcome for probe in probes}
    if "diverge" in outcomes:
        return "unsound"
    if "raise" in outcomes:
        return "restricted"
    return "sound" if any(probe.outcome == "match" and probe.name != "batch_0" for probe in probes) else None


@dataclass(frozen=True)
class _Excuse:
    """What is not held against the capture: an aspect, or some places of it, with the reason."""

    aspect: str
    why: str
    #: Empty for the whole aspect.
    places: frozenset[str] = frozenset()
    #: Whether the reason is worth telling where nothing differs.
    always: bool = True


@dataclass
class _Finding:
    """One call under judgement: the two snapshots are kept only while a float64 reference may still be needed."""

    call: Call
    probe: Probe | None = None
    expected: Snapshot | None = None
    actual: Snapshot | None = None
    aspects: dict[str, Comparison] | None = None
    rules: Rules = field(default_factory=Rules)
    excuses: tuple[_Excuse, ...] = ()


def _judge(subject: Subject, capture_fn: CaptureFn) -> Soundness:
    if subject.hooks.reset is not None:
        subject.fresh_model()  # what the globals start from
    watched = Globals(subject.model)
    try:
        return _judge_watched(subject, capture_fn, watched)
    finally:
        watched.restore()


def _judge_watched(subject: Subject, capture_fn: CaptureFn, watched: Globals) -> Soundness:
    planned = plan(subject)
    calls = planned.calls
    notes = list(planned.notes)
    if left_out := [aspect for aspect in ASPECTS if aspect not in subject.aspects]:
        notes.append(f"not compared, as soundness.aspects says: {', '.join(left_out)}")
    watched.restore()
    eager = list(run(subject, calls, Target.eager(subject.fresh_model()), watched=watched))
    watched.restore()
    unstable = [
        _not_reproduced(first, second)
        for first, second in zip(
            eager, run(subject, calls, Target.eager(subject.fresh_model()), watched=watched), strict=True
        )
    ]
    target, changed = capture_copy(subject, capture_fn, watched)
    if changed:
        notes.append("capturing changed: " + _listed(changed) + "; the model was put back before the first call")

    findings = []
    out_of_step: str | None = None
    previous_failed = False
    for i, actual in enumerate(run(subject, calls, target, watched=watched)):
        call, expected = calls[i], eager[i]
        rules = Rules(
            subject.check_strides,
            earlier_output=not previous_failed,
            aspects=subject.aspects,
            loose_gradients=unstable[i]["grad"].places if "grad" in unstable[i] else frozenset(),
        )
        finding = _Finding(call, rules=rules)
        findings.append(finding)
        previous_failed = expected.failure is not None or actual.failure is not None
        if i > 0 and actual.seconds > max(_SLOW_SECONDS, _SLOW_RATIO * expected.seconds):
            notes.append(
                f"on {call.name} the capture took {actual.seconds:.0f} s, eager {expected.seconds:.2g} s: "
                "most likely it was compiled again for such inputs"
            )
        finding.probe = _by_failure(call, expected, actual, unstable[i])
        if finding.probe is None:
            finding.excuses = tuple(unstable[i].values())
            if out_of_step is not None:
                reason = f"after {out_of_step} raised, Python state may be out of step"
                finding.excuses += tuple(
                    _Excuse(aspect, reason, always=False) for aspect in ("attribute", "observe", "printed", "global")
                )
            finding.aspects = compare_calls(expected, actual, rules=rules)
            if any(part.inexact for part in finding.aspects.values()):
                finding.expected, finding.actual = expected, actual
        elif previous_failed:
            # What the failed call had done by then differs; the next call starts from eager's state.
            adopt(target.model, target.module, subject.model, expected.state)
            watched.adopt(expected.globals)
            if finding.probe.outcome == "raise":
                out_of_step = call.name

    watched.restore()
    _refine(subject, calls, findings, notes)
    said: dict[str, list[str]] = {}
    probes = tuple(_probe(finding, said) for finding in findings) + planned.skipped
    notes += [f"{note} (in {', '.join(names)})" for note, names in list(said.items())[:_NOTES]]
    if len(said) > _NOTES:
        notes.append(f"and {len(said) - _NOTES} more notes like these")
    verdict = verdict_of(probes)
    if verdict is None:
        notes.append("no verdict: not one probe applies")
    return Soundness(verdict, probes, tuple(dict.fromkeys(notes)))


def _not_reproduced(first: Snapshot, second: Snapshot) -> dict[str, _Excuse]:
    """Return what two eager runs of one call do not agree on.

    Rounding within the fallback tolerance does not count: the noise of a parallel sum from run to run is no larger
    than the error that a capture is allowed anyway.
    """
    if (first.failure is None) != (second.failure is None):
        return {aspect: _Excuse(aspect, "eager itself raises in one of two runs") for aspect in ASPECTS}
    if first.failure is not None:
        return {}
    excuses = {}
    for aspect, found in compare_calls(first, second).items():
        if found.differences:
            why = f"eager itself does not reproduce this ({describe(aspect, found)})"
            # Gradients and state are many tensors by name: the others still count.
            by_name = aspect in ("grad", "state", "attribute")
            places = frozenset(difference.path for difference in found.differences) if by_name else frozenset()
            excuses[aspect] = _Excuse(aspect, why, places)
    return excuses


def capture_copy(subject: Subject, capture_fn: CaptureFn, watched: Globals) -> tuple[Target, list[str]]:
    """Capture a copy of the model and put back what that changed; return what to run, and what had changed."""
    watched.restore()
    model = subject.fresh_model()
    inputs = call_inputs(subject, subject.example)
    before = to_tree(inputs, own=True)
    randomness = generators(subject.device)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), subject.grad_mode():
        capture = capture_fn(model, inputs)
    drawn = generators(subject.device)
    changed = restore_pristine(model, capture.module, subject.model)
    if compare(before, inputs, requires_grad=False).differences:
        changed.append("the example inputs")
    changed += [f"random state ({name})" for name, state in drawn.items() if state != randomness[name]]
    changed += [f"global {name}" for name in watched.restore()]
    if printed.getvalue():
        changed.append("printed output")
    if subject.hooks.reset is not None:
        subject.hooks.reset(model)
    return Target(capture.call, model, capture.module), changed


def _by_failure(call: Call, expected: Snapshot, actual: Snapshot, unstable: dict[str, _Excuse]) -> Probe | None:
    """Return the probe of a call that raised on either side, or that cannot be compared; None if it can."""
    if "output" in unstable:
        return Probe(call.name, "n/a", unstable["output"].why)
    if call.invalid:
        if expected.failure is None:
            return Probe(call.name, "n/a", "eager accepts these inputs, which the model file says are invalid")
        if actual.failure is None:
            return Probe(call.name, "diverge", f"returns where eager raises {expected.failure}")
        same = actual.failure.type == expected.failure.type
        return Probe(call.name, "match", "" if same else f"raises {actual.failure}; eager: {expected.failure}")
    if expected.failure is not None:
        also = "the capture raises too" if actual.failure is not None else "the capture returns"
        return Probe(call.name, "n/a", f"eager itself raises {expected.failure}; {also}")
    if actual.failure is not None:
        return Probe(call.name, "raise", f"raises {actual.failure}")
    return None


def _refine(subject: Subject, calls: Sequence[Call], findings: list[_Finding], notes: list[str]) -> None:
    """Compare once more, against a float64 run, the calls whose floating-point values are not the same to the bit."""
    last = max((i for i, finding in enumerate(findings) if finding.expected is not None), default=None)
    if last is None:
        return
    failed: str | None = None
    try:
        for i, reference in enumerate(run_in_float64(subject, calls[: last + 1])):
            finding = findings[i]
            if reference.failure is not None and finding.expected is not None:
                failed = failed or f"on {finding.call.name}: {reference.failure}"
            if finding.expected is not None and finding.actual is not None:
                finding.aspects = compare_calls(finding.expected, finding.actual, reference, finding.rules)
                finding.expected = finding.actual = None
    except RuntimeError as error:
        # Quantised or otherwise fixed models have no float64 form.
        failed = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for finding in findings:
        if finding.expected is not None and finding.actual is not None:
            finding.aspects = compare_calls(finding.expected, finding.actual, None, finding.rules)
    if failed is not None:
        notes.append(f"the model does not run in float64 ({failed}); fallback tolerances where values differ")


def _probe(finding: _Finding, said_of: dict[str, list[str]]) -> Probe:
    if finding.probe is not None:
        return finding.probe
    assert finding.aspects is not None
    counted = dict(finding.aspects)
    untold = []
    for excuse in finding.excuses:
        found = finding.aspects[excuse.aspect]
        kept = tuple(
            item for item in counted[excuse.aspect].differences if excuse.places and item.path not in excuse.places
        )
        counted[excuse.aspect] = replace(found, differences=kept) if excuse.places else Comparison()
        if excuse.always or found.differences:
            what = f"{excuse.aspect} of {len(excuse.places)} tensors" if excuse.places else excuse.aspect
            untold.append(f"not compared: {what}, {excuse.why}")
    said = [describe(aspect, found) for aspect, found in counted.items() if found.differences]
    outcome = "diverge" if said else "match"
    said += untold
    total = merge(counted.values())
    for note in total.notes:
        said_of.setdefault(note, []).append(finding.call.name)
    return replace(Probe(finding.call.name, outcome, ". ".join(said)), max_error=total.max_error, bitwise=total.bitwise)


def _listed(items: list[str], limit: int = 8) -> str:
    more = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {more} more" if more > 0 else "")
