"""Coverage on models whose right answer is known by construction."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tracebench import run
from tracebench.coverage.recorder import record
from tracebench.coverage.stage import Covered, cover
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end, regions
from tracebench.frontends.base import Inputs
from tracebench.record import CoverageInfo, ThroughputInfo
from tracebench.subject import Subject
from tracebench.throughput.measure import measure

# Dynamo looks at the gradients of tensors that have none.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

SIDE = 8
#: A matrix product of two SIDE x SIDE matrices: one multiplication and one addition for each of SIDE^3 terms.
PRODUCT = 2 * SIDE**3


class Products(nn.Module):
    """``inside`` matrix products, a graph break, ``outside`` products that Dynamo is told to leave alone."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.inside, self.outside = inside, outside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.inside):
            x = x @ x
        return self.apart(x)

    @torch.compiler.disable
    def apart(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.outside):
            x = x @ x
        return x


def subject(model: nn.Module, *args: torch.Tensor, mode: str = "inference") -> Subject:
    return Subject("model", model, Inputs(args or (torch.eye(SIDE),)), mode, torch.device("cpu"), "float32", 0)


def cover_with(name: str, model: nn.Module, *args: torch.Tensor, mode: str = "inference") -> Covered:
    front_end, executor = make_front_end(name), make_executor("replay", for_verdict=False)
    return cover(
        subject(model, *args, mode=mode), lambda m, inputs: front_end.capture(m, inputs, executor, marked=True)
    )


def covered(name: str, model: nn.Module, *args: torch.Tensor, mode: str = "inference") -> CoverageInfo:
    return cover_with(name, model, *args, mode=mode).info


_LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def at(marker: str) -> str:
    """Return how a record names the line that ends with this comment."""
    [line] = [number for number, text in enumerate(_LINES, 1) if text.endswith(f"  # {marker}")]
    return f"{__file__}:{line}"


@pytest.mark.parametrize(("inside", "outside"), [(3, 1), (1, 3), (0, 2), (2, 0)])
def test_dynamo_coverage_is_exact(inside: int, outside: int) -> None:
    found = covered("dynamo", Products(inside, outside))
    total = inside + outside
    assert (found.ops_in_graph, found.ops_total) == (inside, total)
    assert (found.flops_in_graph, found.flops_total) == (inside * PRODUCT, total * PRODUCT)
    assert (found.ops, found.flops) == (inside / total, inside / total)
    assert found.graphs_per_call == (1 if inside else 0)
    assert (found.eager_ops, found.eager_flops) == (total, total * PRODUCT)
    if outside:
        [op] = found.outside
        assert (op.op, op.count) == ("aten.mm", outside)
        assert op.location is not None
        assert "test_coverage.py:" in op.location
    else:
        assert found.outside == ()


@pytest.mark.parametrize("name", ["jit_trace", "fx", "hook"])
def test_whole_graph_front_ends_cover_all(name: str) -> None:
    found = covered(name, Products(3, 2))
    assert (found.ops_in_graph, found.ops_total, found.ops, found.flops) == (5, 5, 1.0, 1.0)
    assert found.flops_total == 5 * PRODUCT
    assert found.graphs_per_call == 1


def test_a_model_of_nothing_but_submodules_is_covered() -> None:
    found = covered("jit_trace", nn.Sequential(nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU())))
    assert (found.ops, found.graphs_per_call) == (1.0, 1)


def test_eager_covers_nothing() -> None:
    found = covered("eager", Products(3, 2))
    assert (found.ops, found.flops, found.graphs_per_call) == (0.0, 0.0, 0)
    assert found.ops_total == 5


def test_a_share_of_no_flops_is_null() -> None:
    found = covered("hook", nn.ReLU())
    assert found.ops == 1.0
    assert found.flops_total == 0
    assert found.flops is None


def test_heavy_ops_without_a_formula_are_listed() -> None:
    found = covered("eager", nn.LSTM(4, 4), torch.randn(2, 1, 4))
    assert any("rnn" in op for op in found.flops_unknown)


class Attention(nn.Module):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_attention_on_the_cpu_counts_as_torch_counts_it_elsewhere(mode: str) -> None:
    batch, heads, length, width = 1, 2, 4, 8
    found = covered("hook", Attention(), torch.randn(batch, heads, length, width), mode=mode)
    # Two products, of queries with keys and of weights with values; five in the backward pass, as it computes one anew.
    product = 2 * batch * heads * length * length * width
    assert found.flops_unknown == ()
    assert found.flops_total == product * (2 if mode == "inference" else 2 + 5)


@pytest.mark.parametrize(
    "model",
    [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)],
    ids=["encoder layer", "attention"],
)
def test_a_fused_layer_counts_as_its_parts(model: nn.Module) -> None:
    arguments = (torch.randn(3, 5, 8),) * (1 if isinstance(model, nn.TransformerEncoderLayer) else 3)
    found = covered("dynamo", model.eval(), *arguments)
    # Eager takes one op, of the attention alone Dynamo's graph has many.
    assert found.eager_ops == 1
    assert found.ops_total == 1 or isinstance(model, nn.MultiheadAttention)
    assert found.eager_flops == found.flops_total
    projections, attention = 4 * 2 * 15 * 8 * 8, 2 * 2 * 3 * 2 * 5 * 5 * 4
    linear = 2 * 2 * 15 * 8 * 16 if isinstance(model, nn.TransformerEncoderLayer) else 0
    assert found.eager_flops == projections + attention + linear


@pytest.mark.parametrize("name", ["dynamo", "jit_trace", "fx", "hook"])
def test_ops_and_flops_agree_with_eager_on_a_network(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    found = covered(name, model, torch.randn(2, 3, 6, 6))
    assert (found.ops_total, found.flops_total) == (found.eager_ops, found.eager_flops)
    # 2 images x 4 channels x 4 x 4 places x 27 products, and 2 rows x 64 x 2 products.
    assert found.flops_total == 2 * (2 * 4 * 16 * 27) + 2 * (2 * 64 * 2)
    assert (found.ops, found.flops) == (1.0, 1.0)


def test_recording_leaves_results_alone() -> None:
    x = torch.randn(SIDE, SIDE)
    results = []
    tally = record(lambda: results.append(Products(2, 1)(x)))
    assert len(tally.ops) == 3
    assert torch.equal(results[0], Products(2, 1)(x))


class Block(nn.Module):
    """A matrix product, and what a subclass does after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


class Middle(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x
        torch._dynamo.graph_break()  # middle
        return x @ x @ x


class Start(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()  # start
        return x @ x @ x


class End(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x @ x
        torch._dynamo.graph_break()  # end
        return x


class Loop(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x @ x  # product in loop
            torch._dynamo.graph_break()  # loop
        return x


class Branch(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x
        if x.sum() > 0:  # branch
            return x @ x
        return x


class Empty(Block):
    """The graph between the two breaks computes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x
        torch._dynamo.graph_break()  # before nothing
        torch._dynamo.graph_break()  # after nothing
        return x @ x


class Disabled(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x
        x = self.apart(x)  # call of the disabled
        return x @ x

    @torch.compiler.disable
    def apart(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x @ x  # disabled


class Shallow(Block):
    """Only the method itself is left to Python, not what it calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x
        return self.apart(x)  # call of the shallow

    @torch.compiler.disable(recursive=False)
    def apart(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x  # shallow
        return self.deeper(x)

    def deeper(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x @ x


class Wrapped(nn.Module):
    """A block within a block, with products of its own around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x
        x = self.inner(x)
        return x @ x


#: Products inside, products outside with their marker, graphs a call, breaks with how often a call comes by.
KNOWN = {
    "nothing": (Block(), 1, {}, 1, {}),
    "middle": (Middle(), 3, {}, 2, {"middle": 1}),
    "start": (Start(), 2, {}, 1, {"start": 1}),
    "end": (End(), 2, {}, 1, {"end": 1}),
    "loop": (Loop(), 0, {"product in loop": 3}, 0, {"loop": 3}),
    "empty graph": (Empty(), 2, {}, 2, {"before nothing": 1, "after nothing": 1}),
    "disabled": (Disabled(), 2, {"disabled": 2}, 2, {"call of the disabled": 1}),
    "shallow": (Shallow(), 3, {"shallow": 1}, 2, {"call of the shallow": 1}),
    "three deep": (Wrapped(Wrapped(Wrapped(Middle()))), 9, {}, 8, {"middle": 1}),
    "three deep, loop": (Wrapped(Wrapped(Wrapped(Loop()))), 6, {"product in loop": 3}, 6, {"loop": 3}),
    "three deep, disabled": (
        Wrapped(Wrapped(Wrapped(Disabled()))),
        8,
        {"disabled": 2},
        8,
        {"call of the disabled": 1},
    ),
}
#: Of a product of a matrix with itself, in the backward pass: two products, two transposes, a sum of gradients.
BACKWARD_OPS, BACKWARD_PRODUCTS = 5, 2


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", KNOWN)
def test_dynamo_coverage_and_breaks_are_exact(name: str, mode: str) -> None:
    model, inside, outside, graphs, breaks = KNOWN[name]
    found = cover_with("dynamo", model, mode=mode)
    info, left = found.info, sum(outside.values())
    assert_products(info, inside, left, mode)
    assert info.graphs_per_call == graphs
    assert {op.location for op in info.outside} == {at(marker) for marker in outside}
    counts = {at(marker): count for marker, count in outside.items()}
    assert {op.location: op.count for op in info.outside if (op.op, op.phase) == ("aten.mm", "forward")} == counts
    assert {broken.location: broken.count for broken in found.breaks} == {at(marker): n for marker, n in breaks.items()}
    assert all(broken.ms is not None and broken.ms > 0 for broken in found.breaks)
    assert sum(broken.ops or 0 for broken in found.breaks) == info.ops_total - info.ops_in_graph
    assert sum(broken.flops or 0 for broken in found.breaks) == info.flops_total - info.flops_in_graph
    assert all(op.ms is not None for op in info.outside)


def assert_products(info: CoverageInfo, inside: int, outside: int, mode: str) -> None:
    """Products of a matrix with itself are counted exactly, and so is their backward pass."""
    ops, products = (1 + BACKWARD_OPS, 1 + BACKWARD_PRODUCTS) if mode == "training" else (1, 1)
    total = inside + outside
    assert (info.ops_in_graph, info.ops_total, info.eager_ops) == (inside * ops, total * ops, total * ops)
    assert (info.flops_in_graph, info.flops_total) == (inside * products * PRODUCT, total * products * PRODUCT)
    assert (info.ops, info.flops) == (inside / total, inside / total)
    assert (info.missing, info.extra, info.ops_missing, info.ops_extra) == ((), (), 0, 0)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", ["jit_trace", "fx", "hook"])
def test_front_ends_of_one_graph_hold_forward_and_backward(name: str, mode: str) -> None:
    found = cover_with(name, Wrapped(Block()), mode=mode)
    assert_products(found.info, 3, 0, mode)
    assert (found.info.graphs_per_call, found.info.outside, found.breaks) == (1, (), ())


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_eager_leaves_everything_outside(mode: str) -> None:
    found = cover_with("eager", Wrapped(Block()), mode=mode)
    assert_products(found.info, 0, 3, mode)
    assert {op.reason for op in found.info.outside} == {"no graph"}
    assert (found.info.time, found.guard_us) == (0.0, None)


def test_a_data_dependent_branch_is_one_break() -> None:
    found = cover_with("dynamo", Branch())
    [broken] = found.breaks
    assert (broken.location, broken.count) == (at("branch"), 1)
    assert broken.reason == "Data-dependent branching"
    assert broken.links
    assert broken.hints


def test_outside_ops_have_module_reason_and_break() -> None:
    found = cover_with("dynamo", Wrapped(Wrapped(Disabled()))).info
    [op] = found.outside
    assert (op.op, op.module, op.count) == ("aten.mm", "inner.inner", 2)
    assert (op.reason, op.graph_break) == ("left to Python", at("call of the disabled"))
    assert (op.flops, op.flops_share) == (2 * PRODUCT, 2 / 8)
    skipped = cover_with("dynamo", Loop()).info
    [op] = skipped.outside
    assert (op.module, op.reason, op.graph_break) == ("", "no graph", at("loop"))


class Neighbours(nn.Module):
    """What runs beside a break in a call that the break unwinds is left to Python, too."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), Middle())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both(x)  # call of both


def test_ops_beside_a_break_are_put_down_to_it() -> None:
    found = cover_with("dynamo", Neighbours())
    [broken] = found.breaks
    assert at("call of both") in broken.callers
    assert {(op.module, op.graph_break) for op in found.info.outside} == {("both.0", at("middle"))}


def test_a_break_that_is_unwound_counts_once_though_it_is_reported_often() -> None:
    found = cover_with("dynamo", Wrapped(Wrapped(Middle())))
    [broken] = found.breaks
    assert broken.count == 1
    assert broken.reports is not None
    assert broken.reports > 1


class Heavy(nn.Module):
    """One large product on one side of a break, and a trifle on the other."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:2, :2]
        if self.inside:
            return x @ x, self.apart(y)
        return y @ y, self.apart(x)

    @torch.compiler.disable
    def apart(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_time_coverage_is_about_the_time_of_ops(mode: str) -> None:
    x = torch.rand(512, 512)
    within, without = (covered("dynamo", Heavy(inside), x, mode=mode) for inside in (True, False))
    assert within.time is not None
    assert within.time > 0.8
    assert without.time is not None
    assert without.time < 0.2
    told = [op.time_share for op in without.outside if op.op == "aten.mm"]
    assert sum(share or 0.0 for share in told) > 0.8


def test_guards_take_time_under_dynamo_alone() -> None:
    guarded = cover_with("dynamo", Middle()).guard_us
    assert guarded is not None
    assert guarded > 0
    assert cover_with("fx", Block()).guard_us is None


class Dead(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _ = x.cos()  # dead
        return x + torch.ones(SIDE) * 2  # literal


def test_ops_that_only_one_side_runs_are_told() -> None:
    found = covered("jit_trace", Dead())
    assert (found.ops_missing, found.ops_extra) == (1, 0)
    [op] = found.missing
    assert (op.op, op.count, op.location) == ("aten.cos", 1, at("dead"))


class Adding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y += x
        return y


def test_an_op_in_another_form_is_the_same_op() -> None:
    found = covered("fx", Adding())
    assert (found.missing, found.extra, found.eager_ops, found.ops_total) == ((), (), 2, 2)


class Learning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.apart(x).relu()

    @torch.compiler.disable
    def apart(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x)  # second layer


def test_training_leaves_out_the_loss_and_accumulation() -> None:
    found = covered("dynamo", Learning(), torch.randn(2, SIDE), mode="training")
    assert found.eager_ops == found.ops_total
    names = {op.op for op in found.outside}
    assert not names & {"aten.ones_like", "aten.detach", "aten.rand", "aten.randint"}
    assert {op.location for op in found.outside} == {at("second layer")}
    assert {op.module for op in found.outside} == {"second"}
    assert {op.phase for op in found.outside} == {"forward", "backward"}
    # Forward one product a layer; backward two for the second, one for the first, whose input needs no gradient.
    assert found.flops_total == 5 * 2 * 2 * SIDE * SIDE
    assert found.flops_in_graph == 2 * 2 * 2 * SIDE * SIDE


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x @ x

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ gradient  # own backward


class WithOwn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.apart(x @ x)

    @torch.compiler.disable
    def apart(self, x: torch.Tensor) -> torch.Tensor:
        return Own.apply(x)


def test_a_backward_written_in_python_has_its_own_line() -> None:
    found = covered("dynamo", WithOwn(), mode="training")
    [op] = [op for op in found.outside if op.phase == "backward"]
    assert (op.op, op.count, op.location) == ("aten.mm", 1, at("own backward"))


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.apart(x @ x) @ x

    @torch.compiler.disable
    def apart(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0].mul_(3)  # in place
        return x


def test_changing_a_view_in_place_keeps_its_line_in_the_backward_pass() -> None:
    found = covered("dynamo", InPlace(), mode="training")
    assert at("in place") in {op.location for op in found.outside if op.phase == "backward"}
    assert found.ops_total == found.eager_ops


@pytest.mark.parametrize("stages", [("throughput",), ("coverage", "throughput")])
@pytest.mark.parametrize("name", ["dynamo", "jit_trace", "fx", "hook"])
def test_what_is_timed_carries_no_instrument(
    name: str, stages: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def timed(eager: Callable[[], object], captured: Callable[[], object], **options: Any) -> ThroughputInfo:
        def bare(function: Callable[[], object]) -> Callable[[], object]:
            def call() -> object:
                nonlocal calls
                calls += 1
                entered = regions.graphs_entered()
                assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
                assert not torch.autograd._profiler_enabled()
                assert sys.gettrace() is tracer
                result = function()
                assert regions.graphs_entered() == entered, "a mark was passed"
                return result

            return call

        return measure(bare(eager), bare(captured), **options)

    tracer = sys.gettrace()
    monkeypatch.setattr("tracebench.throughput.stage.measure", timed)
    found = run(
        Disabled() if name == "dynamo" else Wrapped(Block()),
        (torch.eye(SIDE),),
        frontend=name,
        stages=stages,
        throughput_seconds=0.05,
    )
    assert found.throughput is not None
    assert calls > 10
    assert (found.coverage is not None) == ("coverage" in stages)
    if name == "dynamo":
        assert found.capture is not None
        [broken] = found.capture.graph_breaks
        assert (broken.count, broken.reports) == ((1, 1) if found.coverage else (None, 1))
        assert (found.capture.guard_us is not None) == ("coverage" in stages)


class Repeats(nn.Module):
    """Two graphs: three products, run once; one product, run twice as each call passes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ x @ x @ x
        torch._dynamo.graph_break()
        for _ in range(2):
            x = self.part(x)
        return x

    @torch.compiler.disable(recursive=False)
    def part(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.once(x)
        return y

    def once(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


def test_what_each_graph_does_in_a_call() -> None:
    found = covered("dynamo", Repeats())
    work = [(graph.calls, graph.ops, graph.flops) for graph in found.graphs]
    assert work == [(1, 3, 3 * PRODUCT), (2, 2, 2 * PRODUCT)]
    assert found.graphs_per_call == 3
    assert found.ops == 1.0


@pytest.mark.parametrize("name", ["jit_trace", "fx", "hook"])
def test_one_graph_does_it_all(name: str) -> None:
    [graph] = covered(name, Products(3, 2)).graphs
    assert (graph.graph, graph.calls, graph.ops, graph.flops) == (0, 1, 5, 5 * PRODUCT)


class Nested(nn.Module):
    """One product, then two in a region that is compiled by itself, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.region = torch.compiler.nested_compile_region(_two_products)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.region(self.region(x @ x))
        return y


def _two_products(x: torch.Tensor) -> torch.Tensor:
    return x @ x @ x


def test_ops_within_an_operator_that_runs_a_graph_are_seen() -> None:
    found = covered("dynamo", Nested())
    assert found.note is None or "coverage" not in found.note
    assert (found.ops_in_graph, found.ops_total, found.flops_total) == (5, 5, 5 * PRODUCT)
