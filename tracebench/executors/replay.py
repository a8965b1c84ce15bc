"""The plainest executor, which the others vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx, nn

Tell = Callable[[str], None]


def silent(note: str) -> None:
    """Leave it unsaid."""


class Replay:
    """Runs graphs as captured, without a compiler: what remains against eager is the front end's own cost."""

    #: Whether graphs are lowered through a compiler, which would look into the Python that a graph calls.
    compiles = False
    #: Whether random ops draw other numbers than eager does from the same seed.
    own_random_numbers = False

    def __init__(self, name: str = "replay", tell: Tell = silent) -> None:
        self.name = name
        self.compilations = 0
        #: Takes what is worth saying of how graphs are run.
        self.tell = tell

    def lower(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the graph's own code."""
        return graph.forward

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return the module itself."""
        return module
