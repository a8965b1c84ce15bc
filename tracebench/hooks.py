"""What a trace hook of your own can tell of its capture, beside the callable; docs/hooks.md has the contract."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from tracebench.record import GraphBreak
from tracebench.userlocation import is_user_file, short

__all__ = ["GraphBreak", "Graphs", "Traced", "model_line"]


class Graphs(list[nn.Module]):
    """Graphs that a hook makes while it is called: ``append`` each before it is first called."""

    #: The harness's; it marks the graph, or has a compiler lower it.
    on_append: Callable[[nn.Module], None] = staticmethod(lambda graph: None)

    def append(self, graph: nn.Module) -> None:
        """Add a graph."""
        self.on_append(graph)
        super().append(graph)


@dataclass(frozen=True)
class Traced:
    """A captured model: ``call`` has the module's own signature, and runs ``graphs``.

    Each graph is a ``torch.fx.GraphModule`` or a TorchScript module that ``call`` calls as a module or by its
    ``forward``. ``graphs`` is ``Graphs()`` where they are made while ``call`` runs. Graph breaks and notes may be lists
    that are added to by then.
    """

    call: Callable[..., Any]
    graphs: Sequence[nn.Module] = ()
    #: Where control goes back to Python, with the reason.
    graph_breaks: Sequence[GraphBreak] = ()
    #: What else a user should know of this capture.
    notes: Sequence[str] = ()


def model_line() -> str | None:
    """Return ``file:line`` of the innermost line of user code that is not in the caller's own file.

    Called by a hook while the model runs, that is the model's line.
    """
    frame = sys._getframe(1)
    own = frame.f_code.co_filename
    found: Any = frame
    while found is not None:
        filename = found.f_code.co_filename
        if filename != own and is_user_file(filename):
            return short(filename, found.f_lineno)
        found = found.f_back
    return None
