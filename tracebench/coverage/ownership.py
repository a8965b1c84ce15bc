"""Which autograd nodes were made inside captured graphs: what runs in the backward pass belongs to where its node was.

Autograd numbers its nodes in the order in which a thread makes them, so noting the number at each change of the
signal tells for every node on which side it was made. Nodes that accumulate gradients into leaves have no such number.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator

import torch


def next_node() -> int:
    """Return the number that the next autograd node made on this thread will have."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


class Ownership:
    """The sides of the nodes made between ``begin`` and ``end``, a forward pass of the model on one thread."""

    def __init__(self) -> None:
        self.first = 0
        self._starts: list[int] = []
        self._inside: list[bool | None] = []

    def begin(self) -> None:
        """Note that the model's forward pass begins, outside every graph."""
        self.first = next_node()
        self._note(False)

    def end(self) -> None:
        """Note that it is over: nodes made from now on are the loss's."""
        self._note(None)

    @contextlib.contextmanager
    def switched(self, inside: bool) -> Iterator[None]:
        """Note a stretch of the call on one side; a watcher of ``regions``."""
        before = self._inside[-1]
        self._note(inside)
        try:
            yield
        finally:
            self._note(before)

    def inside(self, node: int) -> bool | None:
        """Return whether the node of that number was made inside a graph; None if it is not the model's."""
        index = bisect_right(self._starts, node) - 1
        return self._inside[index] if index >= 0 else None

    def _note(self, inside: bool | None) -> None:
        self._starts.append(next_node())
        self._inside.append(inside)
