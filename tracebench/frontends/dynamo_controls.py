"""What controls are under Dynamo: decorators of modules and functions, marks on functions, settings."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tracebench.controls.orders import Decorator, Order, Orders, decorate_modules, rebound


def _disable(order: Order) -> Decorator:
    return functools.partial(torch.compiler.disable, reason=str(order.instruction))


#: Control -> what makes the decorator that expresses it on a piece.
_DECORATORS: dict[str, Callable[[Order], Decorator]] = {"disable": _disable}


def decorate(model: nn.Module, orders: Orders) -> None:
    """Decorate the submodules of ``model``, a capture's own, that ``orders`` name."""
    for order in orders.of(*_DECORATORS):
        assert order.target is not None
        decorate_modules(order.target.modules(model), _DECORATORS[order.instruction.control](order))


@contextlib.contextmanager
def in_force(orders: Orders) -> Iterator[None]:
    """Within the context, have functions that ``orders`` name be decorated."""
    with contextlib.ExitStack() as during:
        for order in orders.of(*_DECORATORS):
            assert order.target is not None
            if order.target.function is not None:
                decorated: Any = _DECORATORS[order.instruction.control](order)(order.target.function)
                during.enter_context(rebound(order.target, decorated))
        yield
