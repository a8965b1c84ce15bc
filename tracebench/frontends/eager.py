"""The null front end: captures nothing, so that eager is timed against eager and the harness's bias shows."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import nn

from tracebench.controls.orders import NO_ORDERS, Orders
from tracebench.frontends.base import Capture, Events, Executor, Inputs


@dataclass(frozen=True)
class Eager:
    """Returns the model as it is."""

    name = "eager"
    lazy = False

    def controlled(self, orders: Orders) -> AbstractContextManager[None]:
        """Nothing: eager has no controls."""
        return contextlib.nullcontext()

    def capture(
        self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False, orders: Orders = NO_ORDERS
    ) -> Capture:
        """Return ``model``; no graph, whatever the executor."""
        return Capture(call=model, module=model, events=Events(), unsavable="eager captures nothing")
