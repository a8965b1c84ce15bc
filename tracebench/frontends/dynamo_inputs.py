"""Marks on the dimensions of inputs, which Dynamo reads off the tensors at each call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tracebench.controls.orders import Orders
from tracebench.frontends.dynamo_marks import needed

#: Control -> where the function of that name notes dimensions on a tensor.
_NOTED = {
    "mark_dynamic": "_dynamo_dynamic_indices",
    "maybe_mark_dynamic": "_dynamo_weak_dynamic_indices",
    "mark_static": "_dynamo_static_indices",
    "mark_unbacked": "_dynamo_unbacked_indices",
}


def marking(call: Callable[..., Any], orders: Orders) -> Callable[..., Any]:
    """Return ``call`` with the tensors of its arguments marked before it, once each; as is if nothing is asked for."""
    asked = []
    for order in orders.of(*_NOTED):
        assert order.argument is not None
        control = order.instruction.control
        asked.append((order.argument, needed("torch._dynamo.decorators", control), _NOTED[control]))
    if not asked:
        return call

    @functools.wraps(call, updated=())
    def marked(*args: Any, **kwargs: Any) -> Any:
        for argument, mark, noted in asked:
            value = argument.value(args, kwargs)
            # Mostly a tensor: flattening takes longer than the rest.
            for leaf in (value,) if isinstance(value, torch.Tensor) else pytree.tree_leaves(value):
                if not isinstance(leaf, torch.Tensor) or argument.dims <= getattr(leaf, noted, frozenset()):
                    continue
                for dim in argument.dims:
                    if dim < leaf.dim():
                        mark(leaf, dim)
        return call(*args, **kwargs)

    return marked
