"""How far a value may lie from eager's: the constant table, and the rule that uses it.

The yardstick is eager's own error. With ``e`` eager's value, ``a`` the capture's and ``r`` the same value
computed in float64, errors are measured elementwise in units of ``s = |r| + typical(r)``, where ``typical`` is
the median magnitude of the tensor's non-zero elements. ``s`` rather than ``|r|``, because an element that is small
by cancellation carries the rounding noise of its neighbours; the median rather than the maximum, because one
huge element must not hide a wrong one elsewhere. ``a`` passes if ``|a - r| <= s * (m * Y + k * eps)`` with ``Y``
the largest ``|e - r| / s`` of the tensor. Hence whatever lies within ``k * eps * s`` of eager passes, and
whatever lies further off than ``s * ((m + 1) * Y + k * eps)`` is found.

What that means at the edges: an element far below the typical magnitude is checked on the scale of the typical one.
Where eager and the float64 run differ by more than rounding (another branch, other random numbers), ``r`` says
nothing about that element and ``a`` must meet the fallback tolerance plus ``m * Y`` against ``e`` instead.
Where ``r`` is far smaller than ``e`` throughout, eager's values are themselves rounding noise around zero (the
gradient of a bias in front of a batch norm), and ``a`` must be noise of the same size.

The idea of a float64 reference with multiplier m follows ``same()`` in ``torch/_dynamo/utils.py``, which works on
whole-tensor RMS errors and so cannot see a single wrong element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Tolerance:
    """What one dtype may lose. All but ``multiple`` are relative to the scale ``s`` of the module's docstring."""

    #: m: how many times eager's own error is allowed.
    multiple: float
    #: k: the floor, in units of the dtype's eps.
    floor_eps: float
    #: Above this, a difference between eager and the float64 run is not rounding.
    rounding_limit: float
    #: Allowed against eager itself where there is no float64 reference.
    fallback: float


#: The one table of tolerances. The floors cover sums of a few thousand terms in another order; the fallbacks are
#: looser than ``torch.testing.assert_close`` (1.3e-6 for float32), which is meant for a single operation.
TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(multiple=2, floor_eps=4096, rounding_limit=1e-8, fallback=1e-9),
    torch.float32: Tolerance(multiple=2, floor_eps=64, rounding_limit=0.1, fallback=1e-4),
    torch.float16: Tolerance(multiple=3, floor_eps=8, rounding_limit=0.5, fallback=1e-2),
    torch.bfloat16: Tolerance(multiple=3, floor_eps=4, rounding_limit=0.5, fallback=5e-2),
}
#: m for gradients, whose Y is the largest of all gradients of the call: rounding of one layer spreads to those below it
#: and flips the odd ReLU on its way, so its largest values scatter. Measured on ResNet-18 in float32 on small batches,
#: where the same kernels in channels_last erred up to 7 times as much as in contiguous layout.
GRADIENT_MULTIPLE = 10.0
#: For the 8-bit and smaller types: half a step either way is about eps.
_SMALL = Tolerance(multiple=3, floor_eps=2, rounding_limit=1.0, fallback=0.25)

#: A tensor whose reference is this much smaller than eager's value is rounding noise around zero.
_NOISE_RATIO = 0.1
#: Largest magnitudes of two draws of noise differ by less than this, even for a handful of elements.
_NOISE_MULTIPLE = 10.0
#: Elements worked on at a time, so that float64 copies stay small (32 MiB each).
_CHUNK = 1 << 22
#: Elements looked at to find the typical magnitude.
_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Values:
    """How two floating-point tensors compare. Counts are elements, ``max_error`` is ``max |a - e|``."""

    wrong: int
    total: int
    max_error: float
    #: Elements that had no usable reference, though one was given.
    unreferenced: int = 0


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """Return the table's entry for a floating-point or complex dtype."""
    return TOLERANCES.get(dtype.to_real() if dtype.is_complex else dtype, _SMALL)


@dataclass(frozen=True)
class _Survey:
    """Eager against the float64 run, over one tensor."""

    typical: float
    #: Y: largest error in units of the scale, over elements that differ by no more than rounding.
    worst: float
    #: Elements that differ by more.
    unreferenced: int
    #: Whether eager's values are rounding noise around zero.
    noise: bool
    #: Largest absolute error.
    largest: float


@dataclass(frozen=True)
class Family:
    """What is known of tensors that were computed together, such as the gradients of one backward pass."""

    #: m, in place of the table's.
    multiple: float
    #: The largest Y of the family; used where it is more than the tensor's own.
    worst: float = 0.0
    #: The largest typical magnitude in the family. Tensors that vanish beside it are noise around zero, which may be
    #: as large as ``k * eps * background``.
    background: float = 0.0

    def joined(self, expected: torch.Tensor, reference: torch.Tensor | None, dtype: torch.dtype) -> Family:
        """Return the family with one member more."""
        if reference is None:
            return replace(self, background=max(self.background, typical_magnitude(expected)))
        survey = _survey(expected, reference, tolerance_of(dtype), 0.0)
        worst = self.worst if survey.noise else max(self.worst, survey.worst)
        return replace(self, worst=worst, background=max(self.background, survey.typical))


def compare_values(
    expected: torch.Tensor,
    actual: torch.Tensor,
    reference: torch.Tensor | None,
    dtype: torch.dtype,
    family: Family | None = None,
) -> Values:
    """Compare real tensors of one shape whose NaN and infinity patterns agree, by the rule for ``dtype``.

    Where ``family`` is given, what it knows counts beside what the tensor shows by itself.
    """
    rule = tolerance_of(dtype)
    family = family or Family(rule.multiple)
    info = torch.finfo(dtype.to_real() if dtype.is_complex else dtype)
    background = rule.floor_eps * info.eps * family.background
    if reference is None:
        typical, survey = typical_magnitude(expected), None
    else:
        survey = _survey(expected, reference, rule, background)
        typical = survey.typical
    own = family.multiple * max(survey.worst if survey else 0.0, family.worst)
    eager_typical = typical_magnitude(expected) if survey and survey.unreferenced else typical
    wrong, max_error = 0, 0.0
    for e, a, r in _chunks(expected, actual, reference):
        gap = (a - e).abs()
        max_error = max(max_error, _largest(gap))
        if survey is None:
            good = gap <= rule.fallback * (e.abs() + typical) + max(info.tiny, background)
        elif survey.noise:
            good = (a - r).abs() <= max(_NOISE_MULTIPLE * survey.largest, background) + info.tiny
        else:
            scale = r.abs() + typical
            good = (a - r).abs() <= scale * (own + rule.floor_eps * info.eps) + info.tiny
            if survey.unreferenced:
                near = gap <= (own + rule.fallback) * (e.abs() + eager_typical) + info.tiny
                good = torch.where((e - r).abs() <= rule.rounding_limit * scale, good, near)
        wrong += int((~good).sum())
    unreferenced = survey.unreferenced if survey and not survey.noise else 0
    return Values(wrong=wrong, total=expected.numel(), max_error=max_error, unreferenced=unreferenced)


def _survey(expected: torch.Tensor, reference: torch.Tensor, rule: Tolerance, background: float) -> _Survey:
    typical = typical_magnitude(reference)
    worst = max_expected = max_reference = largest = 0.0
    unreferenced = 0
    for e, _, r in _chunks(expected, expected, reference):
        error, scale = (e - r).abs(), r.abs() + typical
        followed = (error <= rule.rounding_limit * scale) & (scale > 0)
        unreferenced += int((error > rule.rounding_limit * scale).sum())
        worst = max(worst, _largest(torch.where(followed, error / scale, torch.zeros_like(error))))
        max_expected, max_reference = max(max_expected, _largest(e.abs())), max(max_reference, _largest(r.abs()))
        largest = max(largest, _largest(error))
    noise = unreferenced > 0 and max_reference < _NOISE_RATIO * max(max_expected, background)
    return _Survey(typical, worst, unreferenced, noise, largest)


def typical_magnitude(tensor: torch.Tensor) -> float:
    """Return the median magnitude of the finite non-zero elements, 0 if there are none (big tensors: of a sample)."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() > _SAMPLE:
        flat = flat[:: flat.numel() // _SAMPLE + 1]
    flat = _double(flat).abs()
    flat = flat[torch.isfinite(flat) & (flat > 0)]
    return float(flat.median()) if flat.numel() else 0.0


def _chunks(
    expected: torch.Tensor, actual: torch.Tensor, reference: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield float64 pieces of the three; elements that are not finite become 0 in all of them.

    Without a reference the expected value stands in for it.
    """
    flat_e, flat_a = expected.detach().reshape(-1), actual.detach().reshape(-1)
    flat_r = flat_e if reference is None else reference.detach().reshape(-1)
    for start in range(0, flat_e.numel(), _CHUNK):
        piece = slice(start, start + _CHUNK)
        e, a, r = _double(flat_e[piece]), _double(flat_a[piece]), _double(flat_r[piece])
        finite = torch.isfinite(e)
        zero = torch.zeros_like(e)
        e, a = torch.where(finite, e, zero), torch.where(finite, a, zero)
        # A reference that overflowed or became NaN where eager did not says nothing; eager's value stands in.
        yield e, a, torch.where(finite & torch.isfinite(r), r, e)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    # Not every accelerator has float64 (mps, xpu); the comparison is exact on the CPU.
    return (tensor if tensor.device.type in ("cpu", "cuda") else tensor.cpu()).double()


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0
