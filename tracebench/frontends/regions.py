"""The one signal coverage hangs on: is control inside a captured graph, or back in Python?"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

#: Returns the context in which the stretch runs that begins: inside a graph, or in the Python that a graph calls.
Watcher = Callable[[bool], AbstractContextManager[Any]]


class _State(threading.local):
    inside: bool = False
    graph: int | None = None
    entered: int = 0
    watcher: Watcher | None = None


_state = _State()


def is_inside() -> bool:
    """Return whether the calling thread is inside a captured graph."""
    return _state.inside


def current_graph() -> int | None:
    """Return the number of the captured graph that the calling thread is inside, or None."""
    return _state.graph if _state.inside else None


def graphs_entered() -> int:
    """Return how often the calling thread has entered a captured graph so far."""
    return _state.entered


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Have ``watcher`` told of each change of the signal on this thread."""
    before = _state.watcher
    _state.watcher = watcher
    try:
        yield
    finally:
        _state.watcher = before


def inside(function: Callable[..., Any], graph: int) -> Callable[..., Any]:
    """Wrap ``function``, which runs the captured graph of that number, so that it gives the signal."""
    return _wrap(function, value=True, graph=graph)


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function``, which a captured graph calls but which runs as plain Python."""
    return _wrap(function, value=False)


def _wrap(function: Callable[..., Any], *, value: bool, graph: int | None = None) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before, graph_before = _state.inside, _state.graph
        if before == value:
            return function(*args, **kwargs)
        _state.entered += value
        _state.inside, _state.graph = value, graph
        try:
            if _state.watcher is None:
                return function(*args, **kwargs)
            with _state.watcher(value):
                return function(*args, **kwargs)
        finally:
            _state.inside, _state.graph = before, graph_before

    return call
