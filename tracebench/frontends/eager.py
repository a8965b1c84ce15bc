"""The null front end: captures nothing, so that eager is timed against eager and the harness's bias shows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tracebench.frontends.base import Capture, Events, Executor, Inputs


@dataclass(frozen=True)
class Eager:
    """Returns the model as it is."""

    name = "eager"
    lazy = False

    def capture(self, model: nn.Module, inputs: Inputs, executor: Executor, *, marked: bool = False) -> Capture:
        """Return ``model``; no graph, whatever the executor."""
        return Capture(call=model, module=model, events=Events())
