"""Why a control changed nothing, as far as that can be told."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tracebench.controls.orders import Order, Orders
from tracebench.controls.reach import Reach
from tracebench.controls.targets import Target
from tracebench.failures import first_line
from tracebench.record import CoverageInfo, Figures, OutsideOp
from tracebench.userlocation import short


def cause(
    order: Order,
    others: Orders,
    front_end: str,
    model: nn.Module,
    reached: Reach | None,
    without: Figures,
    covered: tuple[CoverageInfo | None, CoverageInfo | None],
) -> str:
    """Return the likely cause for which ``order`` changed nothing.

    ``reached`` is how eager comes by its piece, None where that could not be seen; ``covered`` is the coverage without
    it and with it.
    """
    if without.refusal is not None:
        return f"{front_end} refuses the model with it and without it: {first_line(without.refusal)}"
    target = order.target
    if target is None:
        return "no figure of the capture changed"
    if reached is not None and not reached.by_name:
        return _not_reached(target, reached)
    if around := _enclosing(target, others):
        return f"it lies within what {around} keeps out already"
    before, after = covered
    if order.instruction.control == "disable":
        if before is None or after is None or before.ops is None:
            return "coverage was not measured, so that it is not known where its ops run"
        if outside := _own(target, before.outside):
            count = sum(op.count for op in outside)
            due = outside[0].graph_break or outside[0].reason
            told = f"its {count} ops are" if count > 1 else "its one op is"
            return f"{told} outside the graph without it, too" + (f" ({due})" if due else "")
        if not target.is_function and not _own(target, after.outside):
            return "it is called, but runs no op of its own that a graph could hold"
    if reached is not None and reached.namesakes:
        return f"user code calls another object of that name, {', '.join(list(reached.namesakes)[:3])}"
    return _as_ever(order.instruction.control, target, front_end, model)


def _not_reached(target: Target, reached: Reach) -> str:
    if reached.calls:
        times = "once" if reached.calls == 1 else f"{reached.calls} times"
        return (
            f"it is called {times}, but through a reference of the caller's own (an attribute, a default, a closure), "
            "which cannot be put in its place"
        )
    if reached.namesakes:
        return f"it is never called: what the model calls is another object, {', '.join(list(reached.namesakes)[:3])}"
    if target.is_function:
        return "it is never called on the example inputs"
    return "its forward is never called on the example inputs; its parameters may be used without that"


def _enclosing(target: Target, others: Orders) -> str | None:
    """Return what else keeps out all of a target's submodules, if something does."""
    for other in others.of("disable"):
        around = other.target.paths if other.target else ()
        if target.paths and all(any(_within(path, outer) for outer in around) for path in target.paths):
            return str(other.instruction)
    return None


def _within(path: str | None, outer: str) -> bool:
    return path is not None and (path == outer or path.startswith(f"{outer}."))


def _own(target: Target, outside: Sequence[OutsideOp]) -> list[OutsideOp]:
    """Return the ops of a piece: by the module they run in, or the lines of a function's source."""
    if target.function is None:
        return [op for op in outside if any(_within(op.module, path) for path in target.paths)]
    code = getattr(target.function, "__code__", None)
    if code is None:
        return []
    lines = [line for _, _, line in code.co_lines() if line is not None]
    places = {short(code.co_filename, line) for line in lines}
    return [op for op in outside if op.location in places]


def _as_ever(control: str, target: Target, front_end: str, model: nn.Module) -> str:
    parts = target.modules(model)
    if front_end == "fx" and parts:
        leaves = [torch.fx.Tracer().is_leaf_module(part, "") for part in parts]
        if control == "opaque" and all(leaves):
            return "fx takes it as one op without that, too"
        if control == "inline" and not any(leaves):
            return "fx looks inside without that, too"
    if control in ("opaque", "inline"):
        return f"the graphs of {front_end} hold as many nodes without it: it takes one either way"
    return "no figure of the capture changed"
