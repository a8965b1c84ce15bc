"""Two snapshots of one call compared, aspect by aspect: output, inputs, state, aliasing, side effects, gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tracebench.probes import ASPECTS
from tracebench.soundness.aliasing import Shared, explain
from tracebench.soundness.blocksums import BlockSums
from tracebench.soundness.compare import (
    KINDS,
    NO_REFERENCE,
    Comparison,
    Difference,
    bitwise_equal,
    compare,
    compare_text,
    merge,
)
from tracebench.soundness.runs import Failure, Snapshot
from tracebench.soundness.state import MISSING, UNKNOWN, State, place_name
from tracebench.soundness.tolerance import GRADIENT_MULTIPLE, Family, compare_values


@dataclass(frozen=True)
class Rules:
    """What counts in comparing the calls of one subject."""

    strides: bool = False
    #: Whether sharing memory with the previous call's output is compared.
    earlier_output: bool = True
    #: Whether floating-point values are judged, or only looked at for whether they are the same to the bit.
    judge_values: bool = True
    #: Names of ``probes.ASPECTS`` that count; of the others nothing is reported.
    aspects: frozenset[str] = frozenset(ASPECTS)
    #: Gradients that eager does not reproduce: their size says nothing about the errors of the others.
    loose_gradients: frozenset[str] = frozenset()


def compare_calls(
    expected: Snapshot, actual: Snapshot, reference: Snapshot | None = None, rules: Rules = Rules()
) -> dict[str, Comparison]:
    """Compare two calls that did not raise; ``reference`` is the same call in float64, None without.

    A reference that itself raised counts as none.
    """
    if reference is not None and reference.failure is not None:
        reference = None
    judged = rules.judge_values
    steps: dict[str, Callable[[], Comparison]] = {
        "output": lambda: compare(
            expected.output,
            actual.output,
            reference and reference.output,
            path="output",
            strides=rules.strides,
            judge_values=judged,
        ),
        "input_mutation": lambda: compare(
            expected.inputs, actual.inputs, reference and reference.inputs, path="input", judge_values=judged
        ),
        "state": lambda: _states(expected.state, actual.state, reference.state if reference else None, judged),
        "attribute": lambda: _attributes(expected.state, actual.state, reference.state if reference else None, judged),
        "alias": lambda: _aliases(expected.alias, actual.alias, rules),
        "observe": lambda: _observed(expected, actual, reference, judged),
        "printed": lambda: compare_text(expected.printed, actual.printed, "stdout"),
        "random_state": lambda: _generators(expected, actual),
        "global": lambda: _globals(expected.globals, actual.globals),
        "grad": lambda: _gradients(
            expected.gradients, actual.gradients, reference.gradients if reference else {}, rules
        ),
    }
    return {aspect: steps[aspect]() if aspect in rules.aspects else Comparison() for aspect in ASPECTS}


def describe(aspect: str, comparison: Comparison) -> str:
    """Return one line for an aspect that differs: what, where and by how much; the first few places only."""
    words = list(dict.fromkeys(KINDS[difference.kind] for difference in comparison.differences))
    head = {
        "output": "output " + "/".join(words),
        "observe": "side effect (observe)",
        "printed": "side effect (printed)",
        "random_state": "side effect (random state)",
        "global": "side effect (global)",
        "input_mutation": "input mutation",
    }.get(aspect, aspect)
    first = comparison.differences[:3]
    shown = "; ".join(found.detail if aspect == "random_state" else str(found) for found in first)
    more = len(comparison.differences) - 3
    return f"{head}: {shown}" + (f"; and {more} more" if more > 0 else "")


def _states(expected: State, actual: State, reference: State | None, judged: bool) -> Comparison:
    parts = []
    for name in sorted(expected.names | actual.names):
        if name not in actual.names:
            parts.append(_one(name, "keys", "missing"))
        elif name not in expected.names:
            parts.append(_one(name, "keys", "not in eager's state"))
        elif name not in expected.changed and name not in actual.changed:
            # Both as in the pristine model.
            continue
        else:
            after = None
            if reference is not None and name in reference.names:
                after = reference.get(name, torch.float64) if expected.get(name).is_floating_point() else None
            parts.append(
                compare(
                    expected.get(name),
                    actual.get(name),
                    after,
                    path=name,
                    requires_grad=False,
                    strides=None,
                    judge_values=judged,
                )
            )
    return merge(parts)


def _attributes(expected: State, actual: State, reference: State | None, judged: bool) -> Comparison:
    """Compare the plain Python attributes that either call changed; of one that did not change nothing is said."""
    parts = []
    for place in sorted({*expected.attributes, *actual.attributes}):
        name = place_name(place)
        wanted, found = expected.attribute(place), actual.attribute(place)
        if wanted is MISSING or found is MISSING:
            if wanted is not found:
                parts.append(_one(name, "keys", "missing" if found is MISSING else "not there in eager"))
        elif wanted is UNKNOWN and found is UNKNOWN:
            parts.append(Comparison(notes=(f"{name}: changed to what cannot be copied, not compared",)))
        elif wanted is UNKNOWN or found is UNKNOWN:
            what = "what cannot be copied instead of a plain value"
            parts.append(_one(name, "value", what if found is UNKNOWN else "a plain value instead of eager's object"))
        else:
            after = reference.attributes.get(place) if reference is not None else None
            after = None if after is MISSING or after is UNKNOWN else after
            parts.append(
                compare(wanted, found, after, path=name, requires_grad=False, strides=None, judge_values=judged)
            )
    return merge(parts)


def _one(path: str, kind: str, detail: str) -> Comparison:
    return Comparison((Difference(path, kind, detail),))


def _aliases(expected: frozenset[Shared], actual: frozenset[Shared], rules: Rules) -> Comparison:
    if not rules.earlier_output:
        expected, actual = (
            frozenset(s for s in side if not s.second.startswith("earlier output")) for side in (expected, actual)
        )
    return Comparison(tuple(Difference("memory", "value", text) for text in explain(expected, actual)))


def _observed(expected: Snapshot, actual: Snapshot, reference: Snapshot | None, judged: bool) -> Comparison:
    wanted, found = expected.observed, actual.observed
    if isinstance(wanted, Failure) or isinstance(found, Failure):
        if isinstance(wanted, Failure) and isinstance(found, Failure):
            return Comparison(notes=(f"observe() failed on both sides: {wanted}",))
        failed = f"failed: {found}" if isinstance(found, Failure) else f"failed only in eager: {wanted}"
        return _one("observe()", "value", failed)
    after = reference.observed if reference is not None and not isinstance(reference.observed, Failure) else None
    return compare(wanted, found, after, path="observe()", judge_values=judged)


def _generators(expected: Snapshot, actual: Snapshot) -> Comparison:
    """Compare where two calls left the generators: all later random numbers of the program hang on it."""
    return Comparison(
        tuple(
            Difference("generators", "value", f"{name} generator advanced differently")
            for name, state in expected.randomness.items()
            if actual.randomness.get(name) != state
        )
    )


def _globals(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Comparison:
    parts = []
    for name in sorted({*expected, *actual}):
        if name not in actual:
            parts.append(_one(name, "keys", "missing"))
        elif name not in expected:
            parts.append(_one(name, "keys", "not there in eager"))
        elif expected[name] is not actual[name]:
            parts.append(compare(expected[name], actual[name], path=name))
    # Only what differs: that unchanged numbers agree is no evidence, and no figure.
    return Comparison(tuple(difference for part in parts for difference in part.differences))


Gradients = Mapping[str, torch.Tensor | BlockSums | None]


def _gradients(expected: Gradients, actual: Gradients, reference: Gradients, rules: Rules) -> Comparison:
    parts = []
    judged = rules.judge_values
    steady = {name: gradient for name, gradient in expected.items() if name not in rules.loose_gradients}
    family: Family | None = None
    for name in [*expected, *(name for name in actual if name not in expected)]:
        wanted, found, after = expected.get(name), actual.get(name), reference.get(name)
        if name not in actual or (found is None and wanted is not None):
            parts.append(_one(name, "value", "no gradient, where eager has one"))
        elif name not in expected or (wanted is None and found is not None):
            parts.append(_one(name, "value", "a gradient, where eager has none"))
        elif isinstance(wanted, BlockSums) and isinstance(found, BlockSums):
            if judged and family is None and not torch.equal(wanted.sums, found.sums):
                family = _family(steady, reference)
            sums = after.sums if isinstance(after, BlockSums) else None
            parts.append(_block_sums(wanted, found, sums, name, family, judged))
        elif isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
            if judged and family is None and not bitwise_equal(wanted, found):
                family = _family(steady, reference)
            parts.append(
                compare(
                    wanted,
                    found,
                    after,
                    path=name,
                    requires_grad=False,
                    strides=None,
                    family=family,
                    judge_values=judged,
                )
            )
    return merge(parts)


def _family(expected: Gradients, reference: Gradients) -> Family:
    """Return what eager's gradients say together about the size of their errors."""
    family = Family(GRADIENT_MULTIPLE)
    for name, gradient in expected.items():
        after = reference.get(name)
        if isinstance(gradient, BlockSums):
            same = isinstance(after, BlockSums) and after.shape == gradient.shape
            sums = after.sums if isinstance(after, BlockSums) and same else None
            family = family.joined(gradient.sums, sums, gradient.dtype)
        elif gradient is not None and gradient.layout is torch.strided and gradient.is_floating_point():
            dense = isinstance(after, torch.Tensor) and after.layout is torch.strided and after.shape == gradient.shape
            family = family.joined(
                gradient, after if isinstance(after, torch.Tensor) and dense else None, gradient.dtype
            )
    return family


def _block_sums(
    wanted: BlockSums, found: BlockSums, after: torch.Tensor | None, name: str, family: Family | None, judged: bool
) -> Comparison:
    if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
        return _one(name, "dtype", f"{found.dtype} {list(found.shape)} instead of {wanted.dtype} {list(wanted.shape)}")
    if torch.equal(wanted.sums, found.sums):
        return Comparison(max_error=0.0, bitwise=True)
    if not torch.equal(torch.isfinite(wanted.sums), torch.isfinite(found.sums)):
        return Comparison((Difference(name, "nan", "NaN or infinity in other places"),), bitwise=False)
    if not judged:
        return Comparison(bitwise=False, inexact=True)
    values = compare_values(wanted.sums, found.sums, after, wanted.dtype, family)
    notes = ["gradients compared as sums over blocks of 64 elements, to save memory"]
    if after is None:
        notes.append(NO_REFERENCE)
    detail = f"{values.wrong} of {values.total} blocks of 64 elements differ, largest error {values.max_error:.3g}"
    differences = (Difference(name, "value", detail),) if values.wrong else ()
    return Comparison(differences, values.max_error, False, True, tuple(notes))
