"""Random numbers of an executor that draws other ones than eager by design: are they as good?

Where capture and eager draw the same stream, every probe compares the values themselves. A compiler's own generator
draws others, so three things are asked of it: are the numbers fresh from seed to seed, does a seed give them again,
and do they have eager's distribution? Distributions are compared by a few statistics of each output, each call one
sample, with the rank-sum test (Mann and Whitney 1947, normal approximation).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tracebench.frontends.base import Capture, Inputs
from tracebench.record import Probe
from tracebench.soundness.compare import bitwise_equal
from tracebench.soundness.numerics import exact_numerics
from tracebench.soundness.runs import call_inputs
from tracebench.soundness.structure import to_tree, walk
from tracebench.subject import Subject, seed_everything

#: Calls of eager and of the capture, each with a seed of its own.
CALLS = 32
#: Rank-sum z beyond which two sets of ``CALLS`` statistics differ: by chance once in two million, and 6.9 is the most
#: that sets of this size can have.
_LIMIT = 5.0

_Call = Callable[..., Any]


def judge_random_numbers(subject: Subject, capture_fn: Callable[[nn.Module, Inputs], Capture]) -> Probe | None:
    """Return the probe ``random``, or None where eager draws no random numbers that show in the outputs.

    Raises:
        Exception: whatever ``capture_fn`` raises.
    """
    with subject.restoring_globals(), exact_numerics(), subject.grad_mode():
        eager = subject.fresh_model()
        try:
            first, second = (_outputs(subject, eager, seed) for seed in (1, 2))
        except Exception as error:
            return Probe("random", "n/a", f"eager itself raises {type(error).__name__} when called again")
        if _same(first, second):
            return None
        capture = capture_fn(subject.fresh_model(), call_inputs(subject, subject.example))
        try:
            one, again, other = (_outputs(subject, capture.call, seed) for seed in (1, 1, 2))
            if _same(one, other):
                return Probe("random", "diverge", "two calls with different seeds return the same values")
            if not _same(one, again):
                return Probe("random", "diverge", "a seed does not give the same values again")
            expected = [_statistics(_outputs(subject, eager, seed)) for seed in range(CALLS)]
            actual = [_statistics(_outputs(subject, capture.call, seed)) for seed in range(CALLS)]
        except Exception as error:
            return Probe("random", "raise", f"raises {type(error).__name__}: {error}")
    for name in expected[0]:
        z = rank_sum_z([found[name] for found in expected], [found.get(name, math.nan) for found in actual])
        if not abs(z) <= _LIMIT:
            means = [math.fsum(found[name] for found in side) / CALLS for side in (expected, actual)]
            detail = f"{name} is {means[1]:.4g} over {CALLS} calls, {means[0]:.4g} in eager (rank-sum z {z:.1f})"
            return Probe("random", "diverge", f"another distribution: {detail}")
    return Probe("random", "match", f"the same distribution as eager over {CALLS} calls, other numbers by design")


def rank_sum_z(a: list[float], b: list[float]) -> float:
    """Return the z score of the rank-sum test of two samples, ties counted half; NaN if a value is NaN."""
    if any(math.isnan(value) for value in [*a, *b]):
        return math.nan
    above = sum((x > y) + 0.5 * (x == y) for x in a for y in b)
    n, m = len(a), len(b)
    return (above - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)


def _outputs(subject: Subject, call: _Call, seed: int) -> list[torch.Tensor]:
    inputs = call_inputs(subject, subject.example)
    seed_everything(subject.seed + seed)
    with subject.hooks.call_context(0):
        output = call(*inputs.args, **inputs.kwargs)
    return [leaf.value for _, leaf in walk(to_tree(output))]


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(bitwise_equal(x, y) for x, y in zip(a, b, strict=True))


def _statistics(outputs: list[torch.Tensor]) -> dict[str, float]:
    found = {}
    for i, tensor in enumerate(outputs):
        if not tensor.numel() or tensor.is_complex() or tensor.layout is not torch.strided:
            continue
        values = tensor.double()
        found[f"the mean of output {i}"] = float(values.mean())
        found[f"the mean square of output {i}"] = float(values.square().mean())
        found[f"the share of zeros in output {i}"] = float((values == 0).double().mean())
    return found
