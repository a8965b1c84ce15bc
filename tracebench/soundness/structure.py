"""Arbitrary Python values as one kind of tree, so that they can be copied, compared and searched for tensors alike."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tracebench.frontends.base import Inputs


@dataclass(frozen=True, eq=False)
class TensorLeaf:
    """A tensor, detached, with what a copy of it would lose."""

    value: torch.Tensor
    requires_grad: bool
    #: None where the layout has none.
    stride: tuple[int, ...] | None
    type: type
    #: The tensor itself, where the tree does not own copies.
    live: torch.Tensor


@dataclass(frozen=True, eq=False)
class Branch:
    """A container: its type, and its items in order, each with the text that leads to it (``[0]``, ``.name``)."""

    type: type
    kind: str
    items: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Value:
    """Anything else, held as it is."""

    value: Any


@dataclass(frozen=True, eq=False)
class Opaque:
    """An object that can neither be copied nor looked into; only its type is known."""

    type: type
    why: str


Tree = TensorLeaf | Branch | Value | Opaque
TREE_TYPES = (TensorLeaf, Branch, Value, Opaque)


def to_tree(value: Any, *, own: bool = False) -> Tree:
    """Return ``value`` as a tree; with ``own`` tensors and objects are copied, so that nothing live is held."""
    return _tree(value, own, ())


def walk(tree: Tree, path: str = "") -> Iterator[tuple[str, TensorLeaf]]:
    """Yield the tensors of ``tree`` with their paths, in order."""
    if isinstance(tree, TensorLeaf):
        yield path, tree
    elif isinstance(tree, Branch):
        for step, item in tree.items:
            yield from walk(item, path + step)


def _tree(value: Any, own: bool, above: tuple[int, ...]) -> Tree:
    if isinstance(value, TREE_TYPES):
        return value
    if id(value) in above:
        return Opaque(type(value), "it contains itself")
    if isinstance(value, torch.Tensor):
        return _tensor(value, own, above)
    if isinstance(value, np.ndarray):
        return _array(value)
    pairs = _children(value)
    if pairs is not None:
        kind, items = pairs
        return Branch(type(value), kind, tuple((step, _tree(item, own, (*above, id(value)))) for step, item in items))
    if not own or value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.Size, type)):
        return Value(value)
    try:
        return Value(copy.deepcopy(value))
    except Exception as error:
        return Opaque(type(value), f"it cannot be copied ({type(error).__name__})")


def _children(value: Any) -> tuple[str, list[tuple[str, Any]]] | None:
    if isinstance(value, Inputs):
        items = [(f".args[{i}]", item) for i, item in enumerate(value.args)]
        return "inputs", items + [(f".kwargs[{key!r}]", item) for key, item in value.kwargs.items()]
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, dict):
        return "dict", [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "tuple", [(f".{name}", item) for name, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return "list" if isinstance(value, list) else "tuple", [(f"[{i}]", item) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return "dataclass", [(f".{name}", getattr(value, name)) for name in fields]
    node = pytree.SUPPORTED_NODES.get(type(value))
    if node is not None:
        # Containers that a library registered with pytree, such as the caches of transformers.
        flatten: Callable[[Any], tuple[Any, Any]] = node.flatten_fn
        return "container", [(f"<{i}>", item) for i, item in enumerate(flatten(value)[0])]
    return None


def _tensor(value: torch.Tensor, own: bool, above: tuple[int, ...]) -> Tree:
    if value.is_nested:
        return Branch(type(value), "nested", tuple((step, _tree(part, own, above)) for step, part in _parts(value)))
    stride = tuple(value.stride()) if value.layout is torch.strided else None
    held = value.detach()
    if own:
        held = held.clone()
    kind = torch.Tensor if type(value) is torch.nn.Parameter else type(value)
    return TensorLeaf(held, value.requires_grad, stride, kind, held if own else value)


def _parts(nested: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    if nested.layout is torch.jagged:
        return [(".values()", nested.values()), (".offsets()", nested.offsets())]  # type: ignore[attr-defined]
    return [(f".unbind()[{i}]", part) for i, part in enumerate(nested.unbind())]


def _array(value: np.ndarray[Any, Any]) -> Tree:
    try:
        tensor = torch.from_numpy(np.array(value, order="C", copy=True))
    except TypeError:
        return Value(copy.deepcopy(value))
    return Branch(np.ndarray, "ndarray", (("", TensorLeaf(tensor, False, None, torch.Tensor, tensor)),))


def same_number(a: float, b: float) -> bool:
    """Return whether two Python numbers are equal, NaN being equal to NaN."""
    return a == b or (math.isnan(a) and math.isnan(b))
