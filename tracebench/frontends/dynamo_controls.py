"""What controls are under Dynamo: put together from decorators of pieces, marks, and settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from tracebench.controls.orders import Orders, decorate_modules, rebound
from tracebench.frontends import dynamo_inputs, dynamo_marks, dynamo_settings
from tracebench.frontends.dynamo_decorators import DECORATORS, check, decorator


@contextlib.contextmanager
def in_force(orders: Orders) -> Iterator[None]:
    """Within the context, have functions that ``orders`` name be decorated or marked, and settings be set.

    What Dynamo compiled before and within it is forgotten, for it may hold what the orders are no part of.

    Raises:
        RequestError: this torch lacks something, or a control cannot be expressed on its piece.
    """
    if not orders:
        yield
        return
    import torch._dynamo as dynamo

    for order in orders.of(*DECORATORS):
        check(order)
    dynamo_settings.check(orders)
    dynamo.reset()
    try:
        with contextlib.ExitStack() as during:
            during.enter_context(dynamo_settings.configured(orders))
            for order in orders.of(*DECORATORS):
                assert order.target is not None
                function = order.target.function
                if function is None:
                    continue
                if order.instruction.control in dynamo_marks.MARKS:
                    during.enter_context(dynamo_marks.marked(order))
                else:
                    during.enter_context(rebound(order.target, decorator(order)(function)))
            for order in orders.of("substitute_in_graph"):
                during.enter_context(dynamo_marks.substituted(order))
            yield
    finally:
        dynamo.reset()
        dynamo_settings.forget_inputs()


def decorate(model: nn.Module, orders: Orders) -> None:
    """Decorate the submodules of ``model``, a capture's own, that ``orders`` name."""
    for order in orders.of(*DECORATORS):
        assert order.target is not None
        if order.target.is_function:
            continue
        decorate_modules(order.target.modules(model), decorator(order))


def compile_options(orders: Orders) -> dict[str, Any]:
    """Return what ``torch.compile`` gets beyond the front end's own options."""
    return dynamo_settings.compile_options(orders)


def settles_after(orders: Orders) -> int:
    """Return after how many calls on the same inputs Dynamo has compiled what it compiles for them."""
    return dynamo_settings.settles_after(orders)


def controlled_call(call: Callable[..., Any], orders: Orders) -> Callable[..., Any]:
    """Return ``call``, a new capture, with the inputs marked at each call and under the stance; as is without these."""
    return dynamo_inputs.marking(dynamo_settings.under_stance(call, orders), orders)
