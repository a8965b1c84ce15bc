"""What a front end refuses is left to Python, and the rest is captured: on models whose right answer is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracebench
from tracebench.frontends.exclude import innermost_module
from tracebench.record import Record

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
EXCLUDE = {"on_refusal": "exclude"}


class Refuses(nn.Module):
    """One matrix product on every path, which neither tracer can take."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        if torch.jit.is_tracing():
            raise RuntimeError("not under a tracer")
        if x.sum() > 0:
            x = x * 2
        return {"y": x @ x * scale, "rows": 3}


class Around(nn.Module):
    """Two products before what refuses, one after it."""

    def __init__(self, inner: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.inner = inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x @ x @ x, scale=0.5)
        y: torch.Tensor = found["y"] @ x
        return y * found["rows"]


class Wrapped(nn.Module):
    """Refuses over what it returns; what it calls does not."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, object]:
        if x.sum() > 0:
            x = x + 1
        for part in self.parts:
            x = part(x)
        return x, {"n": (1, None), 2: "text"}


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.Linear(4, 4), Around(Refuses), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.stages(x)
        return y


def run(model: nn.Module, front_end: str, options: dict[str, Any] = EXCLUDE, **more: Any) -> Record:
    torch.manual_seed(0)
    more = {"stages": ("soundness", "coverage"), "blame_seconds": 0, "probes": ["use"], **more}
    return tracebench.run(model.eval(), (torch.randn(4, 4) * 0.1,), front_end, frontend_options=options, **more)


@pytest.mark.parametrize("front_end", ["fx", "jit_trace"])
def test_the_rest_is_one_graph_with_a_hole(front_end: str) -> None:
    assert run(Around(Refuses), front_end, {}).verdict == "refused"
    record = run(Around(Refuses), front_end)
    assert record.verdict == "sound", record.probes
    assert record.capture is not None
    [hole] = record.capture.excluded
    assert (hole.path, hole.type) == ("inner", "Refuses")
    assert hole.location is not None
    assert "test_exclude.py:" in hole.location
    assert record.coverage is not None
    # Three of four products, and one product is 2 x 4^3 operations.
    assert (record.coverage.flops_in_graph, record.coverage.flops_total) == (3 * 128, 4 * 128)
    assert record.coverage.flops == 0.75
    assert (record.capture.graphs, record.coverage.graphs_per_call) == (1, 1)
    assert record.coverage.ops_total == record.coverage.eager_ops
    assert {op.reason for op in record.coverage.outside} == {"left to Python"}
    assert {op.module for op in record.coverage.outside} == {"inner"}
    said = str(tracebench.api.Records([record]))
    assert "left to Python, for it refuses: inner (Refuses at" in " ".join(said.split())


@pytest.mark.parametrize("front_end", ["fx", "jit_trace"])
def test_a_hole_three_modules_down(front_end: str) -> None:
    record = run(Deep(), front_end)
    assert record.verdict == "sound", record.probes
    assert record.capture is not None
    assert [hole.path for hole in record.capture.excluded] == ["stages.1.inner"]
    assert record.capture.graphs == 1


@pytest.mark.parametrize("front_end", ["fx", "jit_trace"])
def test_a_model_that_refuses_itself_has_its_parts_captured(front_end: str) -> None:
    record = run(Wrapped(), front_end)
    assert record.verdict == "sound", record.probes
    assert record.capture is not None
    assert record.coverage is not None
    assert [hole.path for hole in record.capture.excluded] == [""]
    assert (record.capture.graphs, record.coverage.graphs_per_call) == (2, 2)
    assert record.coverage.flops == 1.0
    assert record.coverage.ops is not None
    assert 0 < record.coverage.ops < 1


@pytest.mark.parametrize("front_end", ["fx", "jit_trace"])
def test_training_through_a_hole(front_end: str) -> None:
    record = run(Deep(), front_end, mode="training", stages=("soundness",))
    assert record.verdict == "sound", record.probes


@pytest.mark.parametrize("front_end", ["fx", "jit_trace"])
def test_a_compiler_gets_graphs_without_holes(front_end: str) -> None:
    record = run(Deep(), front_end, executor="inductor")
    assert record.verdict == "sound", record.probes
    assert record.capture is not None
    assert [hole.path for hole in record.capture.excluded] == ["", "stages", "stages.1", "stages.1.inner"]
    assert record.capture.graphs == 2


def test_where_nothing_can_be_captured_the_first_refusal_stands() -> None:
    record = run(Refuses(), "fx")
    assert record.verdict == "refused"
    assert record.error is not None
    assert "control flow" in record.error.message


@pytest.mark.parametrize("front_end", ["fx", "jit_trace"])
def test_a_plain_model_is_captured_as_ever(front_end: str) -> None:
    record = run(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), front_end)
    assert record.verdict == "sound"
    assert record.capture is not None
    assert record.capture.excluded == ()
    assert record.coverage is not None
    assert record.coverage.ops == 1.0


class Keeper:
    """Something that a trace cannot hand to Python: neither a tensor nor a plain value."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class TakesKeeper(nn.Module):
    def forward(self, kept: Keeper) -> torch.Tensor:
        if torch.jit.is_tracing():
            raise RuntimeError("not under a tracer")
        return kept.tensor * 2


class GivesKeeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = TakesKeeper()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lin(self.inner(Keeper(x)))
        return y


def test_what_cannot_cross_the_border_leaves_the_module_around_it_to_python() -> None:
    record = run(nn.Sequential(nn.Linear(4, 4), GivesKeeper()), "jit_trace")
    assert record.verdict == "sound", record.probes
    assert record.capture is not None
    assert {hole.path for hole in record.capture.excluded} == {"1", "1.inner"}


def test_innermost_module() -> None:
    model = Deep()
    with pytest.raises(RuntimeError) as shapes:
        model(torch.ones(3, 5))
    assert innermost_module(shapes.tb, model) == "stages.0"
    whole = nn.Sequential(nn.ReLU())
    with pytest.raises(TypeError) as types:
        whole("no tensor")
    assert innermost_module(types.tb, whole) == "0"
    assert innermost_module(types.tb, nn.Sequential()) == ""
