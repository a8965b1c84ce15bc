"""What a call's arguments must have in common with those that a tape was recorded on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tracebench.frontends.tape.errors import GuardError

_FIELDS = ("shape", "stride", "dtype", "device", "layout", "requires_grad", "type", "conjugate or negative view")


@dataclass(frozen=True)
class Signature:
    """Structure, plain values, what tensors are like, and which of them are or share what."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    identities: tuple[int, ...]
    #: For each tensor, the first one in the same memory; tensors of the model's state count as such by their place.
    memory: tuple[Any, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], spec: pytree.TreeSpec, state: dict[int, str]) -> Signature:
        """Return the signature of flat arguments; ``state`` holds the model's tensors by id."""
        return cls(spec, tuple(map(_signature, leaves)), _identities(leaves), _memory(leaves, state))

    def check(self, given: Sequence[Any], spec: pytree.TreeSpec, state: dict[int, str]) -> None:
        """Compare with the arguments of a call.

        Raises:
            GuardError: something differs.
        """
        if spec != self.spec:
            raise GuardError("the arguments have another structure than when the tape was recorded")
        for index, (leaf, recorded) in enumerate(zip(given, self.leaves, strict=True)):
            now = _signature(leaf)
            if now != recorded:
                raise GuardError(f"argument {index}: {_difference(recorded, now)}")
        if _identities(given) != self.identities:
            raise GuardError("the same tensor was passed in other places than when the tape was recorded")
        if _memory(given, state) != self.memory:
            raise GuardError("other arguments share memory than when the tape was recorded")


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        stride = leaf.stride() if leaf.layout is torch.strided else None
        lazy = (leaf.is_conj(), leaf.is_neg())
        return (leaf.shape, stride, leaf.dtype, leaf.device, leaf.layout, leaf.requires_grad, type(leaf), lazy)
    # NaN equals itself by its text, and 0.0 is not -0.0.
    return (type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else leaf)


def _identities(leaves: Sequence[Any]) -> tuple[int, ...]:
    """For each tensor, the first place the same tensor stands at."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(leaf), i) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))


def _memory(leaves: Sequence[Any], state: dict[int, str]) -> tuple[Any, ...]:
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    owned = tuple(state.get(id(tensor)) for tensor in tensors)
    if len(tensors) < 2:
        return owned
    first: dict[int, int] = {}
    plain = [tensor for tensor in tensors if type(tensor) in (torch.Tensor, torch.nn.Parameter)]
    return (*owned, *(first.setdefault(tensor.untyped_storage()._cdata, i) for i, tensor in enumerate(plain)))


def _difference(recorded: Any, now: Any) -> str:
    """Say in what two signatures differ, and no more."""
    if not (isinstance(recorded[0], torch.Size) and isinstance(now[0], torch.Size)):
        return f"{recorded[1]!r} on tape, {now[1]!r} now"
    for name, before, after in zip(_FIELDS, recorded, now, strict=True):
        if before != after:
            told = [list(value) if isinstance(value, tuple) else value for value in (before, after)]
            return f"{name} {told[0]} on tape, {told[1]} now"
    raise AssertionError("the signatures are equal")
