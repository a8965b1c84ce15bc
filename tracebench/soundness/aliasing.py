"""Which tensors share memory: outputs with each other, with inputs, with the model's state, with earlier outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from tracebench.soundness.structure import TensorLeaf, to_tree, walk

#: Above this many elements of storage, overlap is judged by address range alone.
_EXACT_LIMIT = 1 << 26


@dataclass(frozen=True)
class Shared:
    """Two tensors that lie on the same memory: ``same`` elements, or ``overlap`` in part."""

    first: str
    second: str
    how: str

    def __str__(self) -> str:
        verb = "shares its memory with" if self.how == "same" else "overlaps"
        return f"{self.first} {verb} {self.second}"


@dataclass(frozen=True)
class _Region:
    path: str
    role: str
    tensor: torch.Tensor


def aliasing(trees: Mapping[str, Any]) -> frozenset[Shared]:
    """Return who shares memory among the tensors of ``trees``, a mapping from role (``output``, ...) to value.

    Pairs within ``input`` and within ``state``, which no capture decides, are left out, and so is ``earlier output``
    against anything but ``output``. Tensors that share a storage without sharing an element of it do not count:
    writing into one does not show in the other. Tensors without memory of their own (meta, empty) share with nobody.
    """
    by_storage: dict[tuple[str, int], list[_Region]] = defaultdict(list)
    for role, tree in trees.items():
        for path, leaf in walk(to_tree(tree), role):
            for suffix, tensor in _components(leaf):
                address = _address(tensor)
                if address is not None:
                    by_storage[address].append(_Region(path + suffix, role, tensor))
    return frozenset(
        Shared(first.path, second.path, how)
        for regions in by_storage.values()
        for first, second in combinations(_distinct(regions), 2)
        if _counts(first.role, second.role) and (how := _overlap(first.tensor, second.tensor)) is not None
    )


def explain(expected: frozenset[Shared], actual: frozenset[Shared]) -> list[str]:
    """Return what differs between two signatures, one sentence a pair."""
    pairs_expected = {(s.first, s.second): s for s in expected}
    pairs_actual = {(s.first, s.second): s for s in actual}
    found = [f"{pairs_actual[pair]}; eager's does not" for pair in pairs_actual if pair not in pairs_expected]
    missing = [pair for pair in pairs_expected if pair not in pairs_actual]
    found += [f"in eager {pairs_expected[pair]}; here it does not" for pair in missing]
    found += [
        f"{pairs_actual[pair]}; in eager {pairs_expected[pair]}"
        for pair in pairs_actual
        if pair in pairs_expected and pairs_expected[pair].how != pairs_actual[pair].how
    ]
    return sorted(found)


def _counts(first: str, second: str) -> bool:
    roles = {first, second}
    if "earlier output" in roles:
        return roles == {"earlier output", "output"}
    return "output" in roles or len(roles) > 1


def _components(leaf: TensorLeaf) -> Iterable[tuple[str, torch.Tensor]]:
    tensor = leaf.value
    if tensor.layout is torch.sparse_coo:
        return [("._indices()", tensor._indices()), ("._values()", tensor._values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [
            (".crow_indices()", tensor.crow_indices()),
            (".col_indices()", tensor.col_indices()),
            (".values()", tensor.values()),
        ]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [
            (".ccol_indices()", tensor.ccol_indices()),
            (".row_indices()", tensor.row_indices()),
            (".values()", tensor.values()),
        ]
    return [("", tensor)]


def _address(tensor: torch.Tensor) -> tuple[str, int] | None:
    if tensor.is_meta or tensor.numel() == 0:
        return None
    try:
        pointer = tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        # Tensors that are not plain memory: functorch wrappers, some subclasses, opaque backends.
        return None
    return (str(tensor.device), pointer) if pointer else None


def _distinct(regions: list[_Region]) -> list[_Region]:
    """Drop state names that are further names of one tensor (tied weights), so that each pair is told once."""
    kept: list[_Region] = []
    for region in regions:
        if region.role == "state" and any(
            other.role == "state" and _overlap(other.tensor, region.tensor) == "same" for other in kept
        ):
            continue
        kept.append(region)
    return kept


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and the last byte of the storage that ``tensor`` reaches."""
    size = tensor.element_size()
    start = int(tensor.storage_offset())
    last = start + sum((n - 1) * int(stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * size, (last + 1) * size - 1


def _overlap(a: torch.Tensor, b: torch.Tensor) -> str | None:
    (a_low, a_high), (b_low, b_high) = _span(a), _span(b)
    if a_high < b_low or b_high < a_low:
        return None
    if (a_low, a_high) == (b_low, b_high) and a.numel() == b.numel():
        return "same"
    low, high = min(a_low, b_low), max(a_high, b_high)
    size = a.element_size()
    if size != b.element_size() or (high - low) // size > _EXACT_LIMIT:
        return "overlap"
    # Exact, for windows that interleave: mark the elements of one, look under the other.
    marks = torch.zeros((high - low + 1) // size, dtype=torch.bool)
    _window(marks, a, low).fill_(True)
    return "overlap" if bool(_window(marks, b, low).any()) else None


def _window(marks: torch.Tensor, tensor: torch.Tensor, low: int) -> torch.Tensor:
    return marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - low // tensor.element_size())
