"""The one signal coverage hangs on: is control inside a captured graph, or back in Python?"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


class _State(threading.local):
    inside: bool = False
    entered: int = 0


_state = _State()


def is_inside() -> bool:
    """Return whether the calling thread is inside a captured graph."""
    return _state.inside


def graphs_entered() -> int:
    """Return how often the calling thread has entered a captured graph so far."""
    return _state.entered


def inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function``, which runs one captured graph, so that it gives the signal."""
    return _wrap(function, value=True)


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function``, which a captured graph calls but which runs as plain Python."""
    return _wrap(function, value=False)


def _wrap(function: Callable[..., Any], *, value: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = _state.inside
        _state.entered += value and not before
        _state.inside = value
        try:
            return function(*args, **kwargs)
        finally:
            _state.inside = before

    return call
