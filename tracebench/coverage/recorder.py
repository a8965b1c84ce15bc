"""The one recorder of ATen ops, for eager and for every front end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tracebench.frontends import regions
from tracebench.userlocation import caller_location

#: Ops that multiply matrices or attend, yet may lack a formula in torch's registry on some device.
_HEAVY = ("attention", "conv", "mm", "bmm", "matmul", "linear", "gru", "lstm", "rnn", "einsum", "bilinear")


@dataclass
class Tally:
    """What one call dispatched. ``flops`` are floating-point operations by torch's formulas."""

    ops: int = 0
    ops_in_graph: int = 0
    flops: int = 0
    flops_in_graph: int = 0
    graphs_entered: int = 0
    #: (op, user line) -> how often it ran outside every graph.
    outside: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    #: Ops that do heavy arithmetic but have no formula.
    without_formula: set[str] = field(default_factory=set)


class _Recorder(TorchDispatchMode):
    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo run its compiled code under this mode; under an ordinary mode it would run eagerly."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inside = regions.is_inside()
        result = func(*args, **kwargs)
        tally = self._tally
        flops = _flops(func, args, kwargs, result, tally.without_formula)
        tally.ops += 1
        tally.flops += flops
        if inside:
            tally.ops_in_graph += 1
            tally.flops_in_graph += flops
        else:
            name = str(func).removesuffix(".default")
            tally.outside[name, caller_location(sys._getframe(1))] += 1
        return result


def record(function: Callable[[], Any]) -> Tally:
    """Call ``function`` once and return what it dispatched on this thread, the forward pass of a call."""
    tally = Tally()
    before = regions.graphs_entered()
    with _Recorder(tally):
        function()
    tally.graphs_entered = regions.graphs_entered() - before
    return tally


def _flops(func: Any, args: Any, kwargs: Any, result: Any, without_formula: set[str]) -> int:
    packet = getattr(func, "_overloadpacket", func)
    formula = flop_registry.get(packet)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    name = str(packet).removeprefix("aten.").strip("_")
    if any(word in name.split("_") or name.startswith(word) or name.endswith(word) for word in _HEAVY):
        without_formula.add(str(packet))
    return 0


def supports_recording() -> bool:
    """Return whether this torch lets a recorder see what Dynamo compiled."""
    return hasattr(torch.utils._python_dispatch.TorchDispatchMode, "ignore_compile_internals")
