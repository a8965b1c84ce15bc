"""One comparison for arbitrary Python values: what differs, where, and by how much.

Structure first (types, keys and their order, lengths), then of tensors the layout, dtype, device, shape and
``requires_grad``, then values (see ``tolerance``). Strides alone are a note, unless they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from tracebench.soundness.structure import Branch, Opaque, TensorLeaf, Tree, Value, same_number, to_tree
from tracebench.soundness.tolerance import Family, compare_values, tolerance_of

#: Kinds of difference, each with the word under which a probe's detail names it.
KINDS = {
    "type": "structure",
    "length": "structure",
    "keys": "structure",
    "key order": "structure",
    "layout": "structure",
    "dtype": "dtype",
    "device": "device",
    "shape": "shape",
    "requires_grad": "requires_grad",
    "strides": "strides",
    "nan": "value",
    "inf": "value",
    "value": "value",
}

NO_REFERENCE = "no float64 reference: compared with the fallback tolerance"
LEFT_REFERENCE = "the float64 run differs from eager by more than rounding in places: fallback tolerance there"


@dataclass(frozen=True)
class Difference:
    """One thing in which ``actual`` differs; ``kind`` is a key of ``KINDS``."""

    path: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path or 'value'}: {self.detail}"


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    differences: tuple[Difference, ...] = ()
    #: Largest ``|actual - expected|`` over all floating-point values; None where there were none to compare.
    max_error: float | None = None
    #: Whether all values agreed to the bit; None where no value was compared.
    bitwise: bool | None = None
    #: Whether a float64 reference would sharpen the judgement: floating-point values that differ somewhere.
    inexact: bool = False
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def compare(
    expected: Any,
    actual: Any,
    reference: Any = None,
    *,
    path: str = "",
    requires_grad: bool = True,
    strides: bool | None = False,
    family: Family | None = None,
    judge_values: bool = True,
) -> Comparison:
    """Compare ``actual`` with ``expected``; ``reference`` is ``expected`` computed in float64, None without.

    ``requires_grad`` and ``strides`` say whether a difference in these counts; strides that do not are noted, or
    with None ignored. Paths start with ``path``.
    ``family`` is that of ``tolerance.compare_values``. Without ``judge_values`` floating-point
    values that are not the same to the bit are only reported as ``inexact``, but for NaN and infinity.
    """
    walk = _Walk(requires_grad, strides, family, judge_values)
    with torch.no_grad():
        walk.visit(to_tree(expected), to_tree(actual), None if reference is None else to_tree(reference), path)
    notes = tuple(dict.fromkeys(walk.notes))
    return Comparison(tuple(walk.differences), walk.max_error, walk.bitwise, walk.inexact, notes)


def merge(comparisons: Iterable[Comparison]) -> Comparison:
    """Return several comparisons as one."""
    parts = list(comparisons)
    errors = [part.max_error for part in parts if part.max_error is not None]
    bits = [part.bitwise for part in parts if part.bitwise is not None]
    return Comparison(
        tuple(difference for part in parts for difference in part.differences),
        max(errors) if errors else None,
        all(bits) if bits else None,
        any(part.inexact for part in parts),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, device, layout and shape, and the same bits.

    Tensors without data (meta) are equal if they are alike.
    """
    if a is b:
        return True
    if a.dtype != b.dtype or a.device != b.device or a.layout != b.layout or a.shape != b.shape:
        return False
    if a.is_meta:
        return True
    a, b = _dense(a.detach()), _dense(b.detach())
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.is_floating_point():
        # As integers, so that NaN equals itself and -0.0 differs from 0.0.
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        a, b = a.contiguous().view(bits), b.contiguous().view(bits)
    return torch.equal(a, b)


def compare_text(expected: str, actual: str, path: str) -> Comparison:
    """Compare printed text: equal but for decimal fractions, which may differ by rounding.

    A fraction may be off by one unit of its last printed digit plus the float32 fallback tolerance.
    """
    if expected == actual:
        return Comparison()
    pattern = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?")
    if pattern.split(expected) == pattern.split(actual):
        pairs = list(zip(pattern.findall(expected), pattern.findall(actual), strict=True))
        if all(_printed_alike(e, a) for e, a in pairs):
            return Comparison(notes=(f"{path}: fractions differ by rounding",))
    lines = (len(expected.splitlines()), len(actual.splitlines()))
    if lines[0] != lines[1]:
        return Comparison((Difference(path, "value", f"{lines[1]} lines printed instead of {lines[0]}"),))
    first = next(
        (pair for pair in zip(expected.splitlines(), actual.splitlines(), strict=True) if pair[0] != pair[1]),
        (expected, actual),
    )
    return Comparison((Difference(path, "value", f"printed {_short(first[1])} instead of {_short(first[0])}"),))


@dataclass
class _Walk:
    """One comparison under way."""

    check_requires_grad: bool
    check_strides: bool | None
    family: Family | None
    judge_values: bool
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    max_error: float | None = None
    bitwise: bool | None = None
    inexact: bool = False

    def visit(self, expected: Tree, actual: Tree, reference: Tree | None, path: str) -> None:
        if isinstance(expected, TensorLeaf) and isinstance(actual, TensorLeaf):
            self._tensors(expected, actual, reference.value if isinstance(reference, TensorLeaf) else None, path)
        elif isinstance(expected, Branch) and isinstance(actual, Branch):
            self._branches(expected, actual, reference, path)
        elif isinstance(expected, Value) and isinstance(actual, Value):
            self._plain(expected.value, actual.value, reference.value if isinstance(reference, Value) else None, path)
        elif isinstance(expected, Opaque) and isinstance(actual, Opaque):
            self._type(expected.type, actual.type, path)
            self.notes.append(f"{path or 'value'}: compared by type only, {expected.why}")
        else:
            self._type(_type_of(expected), _type_of(actual), path)
            if not self.differences or self.differences[-1].path != path:
                self._differ(path, "type", f"{_name(expected)} became {_name(actual)}")

    def _differ(self, path: str, kind: str, detail: str) -> None:
        self.differences.append(Difference(path, kind, detail))

    def _type(self, expected: type, actual: type, path: str) -> bool:
        if expected is not actual:
            names = (expected.__qualname__, actual.__qualname__)
            if names[0] == names[1]:
                names = (f"{expected.__module__}.{names[0]}", f"{actual.__module__}.{names[1]}")
            self._differ(path, "type", f"{names[1]} instead of {names[0]}")
        return expected is actual

    def _value(self, equal: bool) -> None:
        self.bitwise = equal and self.bitwise is not False

    def _branches(self, expected: Branch, actual: Branch, reference: Tree | None, path: str) -> None:
        self._type(expected.type, actual.type, path)
        wanted, found = [step for step, _ in expected.items], [step for step, _ in actual.items]
        in_reference = dict(reference.items) if isinstance(reference, Branch) else {}
        if set(wanted) != set(found):
            if expected.kind == actual.kind and expected.kind in ("dict", "dataclass", "inputs"):
                missing = [step for step in wanted if step not in found]
                extra = [step for step in found if step not in wanted]
                words = (("lacks", missing), ("adds", extra))
                parts = [f"{word} {', '.join(steps[:4])}" for word, steps in words if steps]
                self._differ(path, "keys", "; ".join(parts))
            elif len(wanted) != len(found):
                self._differ(path, "length", f"{len(found)} items instead of {len(wanted)}")
            elif expected.type is actual.type:
                self._differ(path, "keys", f"{', '.join(found[:4])} instead of {', '.join(wanted[:4])}")
            else:
                # Of different types, which has been said; what they hold is compared in order.
                for (step, item), (_, other) in zip(expected.items, actual.items, strict=True):
                    self.visit(item, other, in_reference.get(step), path + step)
                return
        elif wanted != found:
            self._differ(path, "key order", f"{', '.join(found[:4])} instead of {', '.join(wanted[:4])}")
        by_step = dict(actual.items)
        for step, item in expected.items:
            if step in by_step:
                self.visit(item, by_step[step], in_reference.get(step), path + step)

    def _plain(self, expected: Any, actual: Any, reference: Any, path: str) -> None:
        if not self._type(type(expected), type(actual), path):
            return
        if isinstance(expected, (float, complex)):
            self._numbers(expected, actual, reference, path)
            return
        equal: Any
        if isinstance(expected, np.ndarray):
            equal = bool(np.array_equal(expected, actual))
        elif expected is not None and not isinstance(expected, type) and not _defines_equality(type(expected)):
            self.notes.append(f"{path or 'value'}: {_name_of(expected)} compared by type only, it defines no ==")
            return
        else:
            equal = expected == actual
        if not isinstance(equal, (bool, np.bool_)):
            self.notes.append(f"{path or 'value'}: {_name_of(expected)} compared by type only, its == gives no bool")
            return
        self._value(bool(equal))
        if not equal:
            self._differ(path, "value", f"{_short(actual)} instead of {_short(expected)}")

    def _numbers(self, expected: complex, actual: complex, reference: Any, path: str) -> None:
        # A Python float usually comes out of a tensor, so it may carry that tensor's rounding: judged as float32.
        def tensor(number: complex) -> torch.Tensor:
            return torch.tensor([complex(number).real, complex(number).imag], dtype=torch.float64)

        if isinstance(expected, float) and isinstance(actual, float) and same_number(expected, actual):
            self._value(True)
            return
        usable = tensor(reference) if isinstance(reference, (float, complex)) else None
        self._floats(tensor(expected), tensor(actual), usable, torch.float32, path, _short(actual), _short(expected))

    def _tensors(self, expected: TensorLeaf, actual: TensorLeaf, reference: torch.Tensor | None, path: str) -> None:
        e, a = expected.value, actual.value
        self._type(expected.type, actual.type, path)
        if e.layout != a.layout:
            self._differ(path, "layout", f"{a.layout} instead of {e.layout}")
        if e.dtype != a.dtype:
            self._differ(path, "dtype", f"{_dtype(a)} instead of {_dtype(e)}")
        if e.device != a.device:
            self._differ(path, "device", f"{a.device} instead of {e.device}")
        if self.check_requires_grad and expected.requires_grad != actual.requires_grad:
            self._differ(path, "requires_grad", f"{actual.requires_grad} instead of {expected.requires_grad}")
        if e.shape != a.shape:
            self._differ(path, "shape", f"{list(a.shape)} instead of {list(e.shape)}")
            return
        self._strides(expected, actual, path)
        if e.is_meta or a.is_meta:
            self.notes.append(f"{path or 'value'}: on the meta device, no values to compare")
            return
        if bitwise_equal(e, a):
            self._value(True)
            if e.is_floating_point() or e.is_complex():
                self.max_error = max(self.max_error or 0.0, 0.0)
            return
        e, a = _dense(e), _dense(a).to(e.device)
        if reference is not None:
            reference = _dense(reference)
            reference = reference.to(e.device) if reference.shape == e.shape and not reference.is_meta else None
        if e.is_complex() and a.is_complex():
            real = torch.view_as_real(reference.to(torch.complex128).resolve_conj()) if reference is not None else None
            e, a = torch.view_as_real(e.resolve_conj()), torch.view_as_real(a.resolve_conj())
            self._floats(e, a, real, e.dtype, path)
        elif e.is_floating_point() and not a.is_complex():
            # Where the dtypes differ the coarser of the two sets the tolerance; the dtype has been reported.
            coarser = a.is_floating_point() and torch.finfo(a.dtype).eps > torch.finfo(e.dtype).eps
            self._floats(e, a, reference, a.dtype if coarser else e.dtype, path)
        else:
            unequal = e != a
            wrong = int(unequal.sum())
            self._value(False)
            if wrong:
                largest = "" if e.dtype == torch.bool or e.is_complex() or a.is_complex() else _gap(e, a)
                self._differ(path, "value", f"{wrong} of {e.numel()} elements differ{largest}")

    def _strides(self, expected: TensorLeaf, actual: TensorLeaf, path: str) -> None:
        if self.check_strides is None or expected.stride is None or actual.stride is None or expected.value.numel() < 2:
            return
        # The stride of a dimension of size one means nothing.
        wanted, found = (
            tuple(s for s, size in zip(leaf.stride or (), leaf.value.shape, strict=True) if size > 1)
            for leaf in (expected, actual)
        )
        if wanted != found:
            detail = f"strides {list(actual.stride)} instead of {list(expected.stride)}"
            if self.check_strides:
                self._differ(path, "strides", detail)
            else:
                self.notes.append(f"{path or 'value'}: {detail}")

    def _floats(
        self,
        e: torch.Tensor,
        a: torch.Tensor,
        reference: torch.Tensor | None,
        dtype: torch.dtype,
        path: str,
        actual_text: str = "",
        expected_text: str = "",
    ) -> None:
        self._value(False)
        said = f"{actual_text} instead of {expected_text}" if actual_text else ""
        wide_e, wide_a = (t.float() if t.element_size() == 1 else t for t in (e, a))
        nans = int((torch.isnan(wide_e) != torch.isnan(wide_a)).sum())
        if nans:
            self._differ(path, "nan", said or f"NaN in other places, at {nans} of {e.numel()} elements")
            return
        infinite = torch.isinf(wide_e) | torch.isinf(wide_a)
        infs = int((infinite & (wide_e != wide_a)).sum())
        if infs:
            self._differ(path, "inf", said or f"infinity in other places or of other sign, at {infs} of {e.numel()}")
            return
        self.inexact = True
        if not self.judge_values:
            return
        found = compare_values(e, a, reference, dtype, self.family)
        self.max_error = max(self.max_error or 0.0, found.max_error)
        if reference is None and found.max_error > 0:
            name = str(dtype).removeprefix("torch.")
            self.notes.append(f"{NO_REFERENCE} ({tolerance_of(dtype).fallback:g} for {name})")
        if found.unreferenced:
            self.notes.append(LEFT_REFERENCE)
        if found.wrong:
            count = f"{found.wrong} of {found.total} elements differ, largest error {found.max_error:.3g}"
            self._differ(path, "value", said or count)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _gap(e: torch.Tensor, a: torch.Tensor) -> str:
    return f", largest error {float((e.double() - a.double()).abs().max()):.3g}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _type_of(tree: Tree) -> type:
    return type(tree.value) if isinstance(tree, Value) else tree.type


def _defines_equality(kind: type) -> bool:
    # Of these there is one object a value, also after copying, so that identity is equality.
    if issubclass(kind, (torch.dtype, torch.layout, torch.memory_format, Enum, FunctionType, BuiltinFunctionType)):
        return True
    equality: object = kind.__eq__
    return equality is not object.__eq__


def _name_of(value: Any) -> str:
    return type(value).__qualname__


def _name(tree: Tree) -> str:
    return _type_of(tree).__qualname__


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _printed_alike(expected: str, actual: str) -> bool:
    digits = len(re.split(r"[eE]", expected.partition(".")[2])[0])
    exponent = int(re.split(r"[eE]", expected)[1]) if re.search(r"[eE]", expected) else 0
    unit = 10.0 ** (exponent - digits)
    fallback = tolerance_of(torch.float32).fallback
    return abs(float(expected) - float(actual)) <= 1.01 * unit + fallback * abs(float(expected))
