"""How often a piece of a model is called in an eager run, and what is called in its stead."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import nn

from tracebench.controls.orders import rebound, stand_in_forward
from tracebench.controls.targets import Target
from tracebench.userlocation import is_user_file, short


@dataclass
class Reach:
    """Calls of one piece in one call of a model."""

    calls: int = 0
    #: Those that came by one of the names that a control can put another in the place of.
    by_name: int = 0
    #: Other functions of the same name that user code called, such as ``Tensor.relu at model.py:12``.
    namesakes: dict[str, None] = field(default_factory=dict)


def reach(target: Target, model: nn.Module, call: Callable[[], object]) -> Reach:
    """Make ``call``, which runs ``model``, and return how it came by ``target``.

    Raises:
        Exception: what the model raises.
    """
    found = Reach()
    with contextlib.ExitStack() as during:
        for module in target.modules(model):
            during.enter_context(stand_in_forward(module, _counting(module.forward, found)))
        if target.function is not None:
            during.enter_context(rebound(target, _counting(target.function, found)))
            during.enter_context(_profiled(target.function, found))
        call()
    if target.function is None:
        found.calls = found.by_name
    return found


def _counting(run: Callable[..., Any], found: Reach) -> Callable[..., Any]:
    @functools.wraps(run, updated=())
    def counted(*args: Any, **kwargs: Any) -> Any:
        found.by_name += 1
        return run(*args, **kwargs)

    return counted


@contextlib.contextmanager
def _profiled(function: Callable[..., Any], found: Reach) -> Iterator[None]:
    """Within the context, note every call of ``function``, by whatever name, and of others that are called alike."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", "")

    def see(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            caller = frame.f_back
            if frame.f_code is code:
                found.calls += 1
            elif frame.f_code.co_name == name and caller and caller.f_code is not counted:
                _note(f"{frame.f_globals.get('__name__')}.{name}", caller, found)
        elif event == "c_call":
            if called is function:
                found.calls += 1
            elif getattr(called, "__name__", "") == name and frame.f_code is not counted:
                _note(f"{_owner(called)}.{name}", frame, found)

    counted = _counting(function, found).__code__
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)


def _note(what: str, caller: FrameType, found: Reach) -> None:
    if is_user_file(caller.f_code.co_filename):
        found.namesakes[f"{what} at {short(caller.f_code.co_filename, caller.f_lineno)}"] = None


def _owner(called: Any) -> str:
    owner = getattr(called, "__self__", None)
    if isinstance(owner, type) and owner.__module__ == "torch._C":
        return "torch"
    return type(owner).__name__ if owner is not None and not hasattr(owner, "__file__") else str(called.__module__)
