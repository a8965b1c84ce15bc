"""Arguments of a model's call by name or position, with dimensions of their tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tracebench.errors import RequestError, unknown_choice

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Argument:
    """One argument, wherever a call has it, and dimensions of all tensors in it."""

    name: str
    #: None for one that is given by name alone.
    position: int | None
    dims: frozenset[int]

    def value(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a call gives for it, or None."""
        if self.position is not None and self.position < len(args):
            return args[self.position]
        return kwargs.get(self.name)


def resolve_argument(
    name: str, dims: Any, model: nn.Module, example: tuple[Sequence[Any], Mapping[str, Any]] | None, control: str
) -> Argument:
    """Return the argument of ``model`` with that name or position; ``example`` is what a call gives.

    Raises:
        RequestError: no such argument, no list of dimensions, or the example has no tensor with them there.
    """
    parameters = list(inspect.signature(model.forward).parameters.values())
    names = [found.name for found in parameters if found.kind in _POSITIONAL]
    if name.isdigit():
        found = names[int(name)] if int(name) < len(names) else ""
        argument = Argument(found, int(name), _dims(dims, f"controls.{control}.{name}"))
        known = argument.position is not None and (
            bool(found) or any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
        )
    else:
        position = names.index(name) if name in names else None
        argument = Argument(name, position, _dims(dims, f"controls.{control}.{name}"))
        by_name = {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
        known = position is not None or name in by_name or takes_any
    if not known:
        raise unknown_choice(f"argument in controls.{control}", name, [one.name for one in parameters])
    if example is not None:
        tensors = [leaf for leaf in pytree.tree_leaves(argument.value(*example)) if isinstance(leaf, torch.Tensor)]
        if not any(max(argument.dims) < tensor.dim() for tensor in tensors):
            sizes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor"
            raise RequestError(
                f"controls.{control}.{name}={dims!r}: the example has no such dimensions there, but {sizes}."
            )
    return argument


def _dims(dims: Any, key: str) -> frozenset[int]:
    found = [dims] if isinstance(dims, int) else dims
    if not isinstance(found, (list, tuple)) or not found or not all(type(dim) is int and dim >= 0 for dim in found):
        raise RequestError(f"{key}={dims!r} must be a list of dimensions counted from 0, such as [0].")
    return frozenset(found)
