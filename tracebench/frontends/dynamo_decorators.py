"""Controls of pieces under Dynamo: what is put in the place of a module's forward, and of a function.

The frames of what is defined here stand between a model's; ``frontends.dynamo`` leaves them out of locations.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracebench.controls.orders import Decorator, Order
from tracebench.errors import RequestError
from tracebench.frontends import dynamo_marks
from tracebench.frontends.dynamo_marks import needed

#: Takes a function, or the forward of a module bound to it, and a reason that Dynamo may give.
Express = Callable[[Any, str], Callable[..., Any]]


@dataclass(frozen=True)
class Expression:
    """How one control is expressed. Where it cannot be, ``on_modules`` or ``on_functions`` is why, and what to use."""

    on_modules: Express | str
    #: None: the function itself is marked, for as long as the control is in force (``dynamo_marks``).
    on_functions: Express | None


def check(order: Order) -> None:
    """See that the control can be expressed on its piece.

    Raises:
        RequestError: it cannot; says why and what to use instead.
    """
    assert order.target is not None
    expression, function = DECORATORS[order.instruction.control], order.target.function
    if function is None:
        if isinstance(expression.on_modules, str):
            raise RequestError(f"controls.{order.instruction} names submodules: {expression.on_modules}.")
        return
    if isinstance(function, type):
        raise RequestError(
            f"controls.{order.instruction} names a class that is no nn.Module. Name one of its methods, or a function."
        )
    if order.instruction.control == "skip_frame" and not isinstance(function, types.FunctionType):
        raise RequestError(f"controls.{order.instruction} is no Python function, so it has no frame. Use disable.")
    if expression.on_functions is None:
        dynamo_marks.check(order)


def decorator(order: Order) -> Decorator:
    """Return what makes of a piece that ``order`` names one that is controlled; it has been checked."""
    assert order.target is not None
    expression = DECORATORS[order.instruction.control]
    express = expression.on_functions if order.target.is_function else expression.on_modules
    assert callable(express)
    chosen = express
    return lambda piece: chosen(piece, str(order.instruction))


def _plain(piece: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of its own that calls ``piece``; a method, or a function in C, takes no attributes."""

    @functools.wraps(piece, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return piece(*args, **kwargs)

    return call


def _copy(function: types.FunctionType) -> types.FunctionType:
    """Return a function of its own with the same code, to be marked in the place of that of all modules of a class."""
    own = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    own.__kwdefaults__ = function.__kwdefaults__
    own.__qualname__ = function.__qualname__
    return own


def _disable(piece: Any, reason: str) -> Callable[..., Any]:
    decorated: Callable[..., Any] = torch.compiler.disable(piece, reason=reason)
    return decorated


def _disable_only(piece: Any, reason: str) -> Callable[..., Any]:
    decorated: Callable[..., Any] = torch.compiler.disable(piece, recursive=False, reason=reason)
    return decorated


def _nonstrict_trace(piece: Any, reason: str) -> Callable[..., Any]:
    # torch.compiler has it only from 2.14 on.
    decorated: Callable[..., Any] = needed("torch._dynamo", "nonstrict_trace")(_plain(piece))
    return decorated


def _inline(piece: Any, reason: str) -> Callable[..., Any]:
    decorated: Callable[..., Any] = needed("torch._dynamo", "dont_skip_tracing")(piece)
    return decorated


def _break_before(piece: Any, reason: str) -> Callable[..., Any]:
    @functools.wraps(piece, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        torch._dynamo.graph_break(msg=reason)
        return piece(*args, **kwargs)

    return call


def _break_after(piece: Any, reason: str) -> Callable[..., Any]:
    @functools.wraps(piece, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        result = piece(*args, **kwargs)
        torch._dynamo.graph_break(msg=reason)
        return result

    return call


def _forbid(piece: Any, reason: str) -> Callable[..., Any]:
    decorated: Callable[..., Any] = needed("torch._dynamo", "forbid_in_graph")(_plain(piece))
    return decorated


def _constant(piece: Any, reason: str) -> Callable[..., Any]:
    decorated: Callable[..., Any] = torch.compiler.assume_constant_result(_plain(piece))
    return decorated


def _leaf(piece: Any, reason: str) -> Callable[..., Any]:
    """What it returns for fake tensors is told by itself: run on them once while capturing, side effects and all.

    A piece that looks at values cannot run on fake tensors, and Dynamo then refuses.
    """
    module, function = getattr(piece, "__self__", None), getattr(piece, "__func__", None)
    if not isinstance(module, torch.nn.Module) or function is None:
        module, function = None, piece

    # In one piece with its module, so that the parameters are inputs of the op; and a tuple is what 2.11 wants.
    def run(*args: Any, **kwargs: Any) -> Any:
        return (function(*args, **kwargs),)

    leaf = needed("torch._dynamo.decorators", "leaf_function")(run)
    leaf.register_fake(run)
    owner = () if module is None else (module,)

    @functools.wraps(piece, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return leaf(*owner, *args, **kwargs)[0]

    return call


def _skip_frame(piece: Any, reason: str) -> Callable[..., Any]:
    """Skip the frames of a copy, for Dynamo marks the code for good."""
    function = getattr(piece, "__func__", piece)
    if not isinstance(function, types.FunctionType):
        raise RequestError(f"controls.{reason}: its forward is no Python function, so it has no frame. Use disable.")
    skipped = needed("torch._dynamo.decorators", "skip")(_copy(function))
    owner = getattr(piece, "__self__", None)
    decorated: Callable[..., Any] = skipped if owner is None else types.MethodType(skipped, owner)
    return decorated


def _raise_at_breaks(piece: Any, reason: str) -> Callable[..., Any]:
    decorated: Callable[..., Any] = needed("torch._dynamo", "error_on_graph_break")(True)(piece)
    return decorated


@functools.lru_cache(maxsize=256)
def _region(function: Any) -> Callable[..., Any]:
    # torch keeps what it knows of a region on the function.
    own = _copy(function) if isinstance(function, types.FunctionType) else _plain(function)
    region: Callable[..., Any] = needed("torch.compiler", "nested_compile_region")(own)
    return region


def _nested_region(piece: Any, reason: str) -> Callable[..., Any]:
    """Modules of a class have one region, or none would be there to be used again.

    Their forward is a partial: for a method or a closure, torch 2.14 runs the region with the parameters of the module
    before.
    """
    owner, function = getattr(piece, "__self__", None), getattr(piece, "__func__", None)
    if owner is None or function is None:
        return _region(piece)
    return functools.partial(_region(function), owner)


#: Control -> how it is expressed.
DECORATORS: dict[str, Expression] = {
    "disable": Expression(_disable, _disable),
    "opaque": Expression(_nonstrict_trace, None),
    "inline": Expression(_inline, _inline),
    "graph_break_before": Expression(_break_before, _break_before),
    "graph_break_after": Expression(_break_after, _break_after),
    "disable_only": Expression(_disable_only, _disable_only),
    "allow_in_graph": Expression(
        "torch.compiler.allow_in_graph cannot take a forward, whose parameters are no inputs of it. Use opaque or "
        "nonstrict_trace",
        None,
    ),
    "disallow_in_graph": Expression(
        "torch._dynamo.disallow_in_graph is about functions that Dynamo puts into the graph as they are, such as "
        "torch.sin. Use disable, graph_break_before or graph_break_after",
        None,
    ),
    "forbid_in_graph": Expression(_forbid, _forbid),
    "nonstrict_trace": Expression(_nonstrict_trace, _nonstrict_trace),
    "leaf_function": Expression(_leaf, _leaf),
    "assume_constant_result": Expression(_constant, _constant),
    "skip_frame": Expression(_skip_frame, _skip_frame),
    "error_on_graph_break": Expression(_raise_at_breaks, _raise_at_breaks),
    "nested_compile_region": Expression(_nested_region, _nested_region),
}
