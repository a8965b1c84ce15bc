"""What each control does under Dynamo: graphs, breaks, and ops inside them, on a model whose right answer is known."""

from __future__ import annotations

import contextlib
import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracebench
from tracebench.controls.orders import NO_ORDERS, Orders, bind
from tracebench.controls.vocabulary import CONTROLS, wishes
from tracebench.errors import RequestError
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Inputs

HERE = __name__


def helper(x: torch.Tensor) -> torch.Tensor:
    return inner(x).neg()


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def other(x: torch.Tensor) -> torch.Tensor:
    return x.abs().neg()


class Sub(nn.Module):
    """Two ops of its own, with one of a method's between them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.within(self.linear(x)) * self.scale

    def within(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sub = Sub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        x = self.sub(x)  # call of sub
        x = x.relu()
        x = helper(x)  # call of helper
        return x.exp()


SUB, HELPER = ["linear", "tanh", "mul"], ["cos", "neg"]
PLAIN = [["sin", *SUB, "relu", *HELPER, "exp"]]
#: The ops before, of, and after the piece when it is the submodule, and when it is the function.
AROUND_SUB = (["sin"], SUB, ["relu", *HELPER, "exp"])
AROUND_HELPER = (["sin", *SUB, "relu"], HELPER, ["exp"])
CALLED = {"sub": "call of sub", f"{HERE}:helper": "call of helper"}


@dataclass(frozen=True)
class Seen:
    graphs: list[list[str]]
    breaks: list[str | None]
    right: bool


@contextlib.contextmanager
def under(model: nn.Module, controls: dict[str, Any], *args: Any, **kwargs: Any) -> Iterator[Capture]:
    """Capture ``model`` with ``controls``, which are in force in the context."""
    front_end = make_front_end("dynamo")
    orders = orders_of(model, controls, args or None)
    with front_end.controlled(orders), torch.no_grad():
        yield front_end.capture(model, Inputs(args), make_executor("replay", for_verdict=False), orders=orders)


def orders_of(model: nn.Module, controls: dict[str, Any], args: tuple[Any, ...] | None = None) -> Orders:
    return bind(wishes(controls, "dynamo"), model, None, None if args is None else (args, {})) if controls else NO_ORDERS


def graphs(capture: Capture) -> list[list[str]]:
    found = []
    for graph in capture.events.graphs:
        assert isinstance(graph, torch.fx.GraphModule)
        nodes = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
        names = [str(getattr(node.target, "__name__", node.target)) for node in nodes]
        found.append([name for name in names if name != "getitem"])
    return found


def fresh() -> Model:
    torch.manual_seed(0)
    return Model().eval()


X = torch.linspace(-1, 1, 8).view(2, 4)


def see(controls: dict[str, Any], model: nn.Module | None = None) -> Seen:
    model = model or fresh()
    with torch.no_grad():
        expected = model(X)
    with under(model, controls) as capture:
        found = [capture.call(X.clone()) for _ in range(2)]
        return Seen(
            graphs(capture),
            [broken.location for broken in capture.events.graph_breaks],
            all(torch.allclose(one, expected) for one in found),
        )


def see_plain() -> None:
    assert see({}) == Seen(PLAIN, [], True)


_LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def at(marker: str) -> str:
    """Return how a record names the line that ends with this comment."""
    [line] = [number for number, text in enumerate(_LINES, 1) if text.endswith(f"  # {marker}")]
    return f"{__file__}:{line}"


NONSTRICT, LEAF, REGION = "flat_apply_capture", "invoke_leaf_function", "invoke_subgraph"
BEFORE, OF, AFTER = range(3)

#: Control -> what becomes of the ops of the piece and of those around it: graphs as they are expected.
EFFECTS: dict[str, tuple[Any, Any]] = {
    # Its ops are in no graph, nor are those of what it calls.
    "disable": ([["sin"], AROUND_SUB[2]], [AROUND_HELPER[0], ["exp"]]),
    # What it calls is captured, each call by itself.
    "disable_only": ([["sin"], ["linear"], ["tanh"], AROUND_SUB[2]], [AROUND_HELPER[0], ["cos"], ["exp"]]),
    "skip_frame": ([["sin"], ["linear"], ["tanh"], AROUND_SUB[2]], [AROUND_HELPER[0], ["cos"], ["exp"]]),
    "graph_break_before": (list(AROUND_SUB), list(AROUND_HELPER)),
    "graph_break_after": (list(AROUND_SUB), list(AROUND_HELPER)),
    "opaque": ([["sin", NONSTRICT, *AROUND_SUB[2]]], [[*AROUND_HELPER[0], "helper", "exp"]]),
    "nonstrict_trace": ([["sin", NONSTRICT, *AROUND_SUB[2]]], [[*AROUND_HELPER[0], NONSTRICT, "exp"]]),
    "leaf_function": ([["sin", LEAF, *AROUND_SUB[2]]], [[*AROUND_HELPER[0], LEAF, "exp"]]),
    "assume_constant_result": ([["sin", *AROUND_SUB[2]]], [[*AROUND_HELPER[0], "exp"]]),
    # Nothing to look into that is not looked into, nor to break.
    "inline": (PLAIN, PLAIN),
    "error_on_graph_break": (PLAIN, PLAIN),
}
BREAKING = ("disable", "disable_only", "skip_frame", "graph_break_before", "graph_break_after")


@pytest.mark.parametrize("piece", list(CALLED))
@pytest.mark.parametrize("control", list(EFFECTS))
def test_what_becomes_of_the_ops(control: str, piece: str) -> None:
    found = see({control: [piece]})
    assert found.graphs == EFFECTS[control][piece != "sub"]
    assert found.right
    assert found.breaks == ([at(CALLED[piece])] if control in BREAKING else [])
    see_plain()
