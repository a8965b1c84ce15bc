"""Coverage on models whose right answer is known by construction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tracebench.coverage.recorder import record
from tracebench.coverage.stage import Covered, cover
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Inputs
from tracebench.record import CoverageInfo
from tracebench.subject import Subject

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


def test_eager_covers_nothing() -> None:
    found = covered("eager", Products(3, 2))
    assert (found.ops, found.flops, found.graphs_per_call) == (0.0, 0.0, 0)
    assert found.ops_total == 5


def test_a_share_of_no_flops_is_null() -> None:
    found = covered("hook", nn.ReLU())
    assert found.ops == 1.0
    assert found.flops_total == 0
    assert found.flops is None


class Attention(nn.Module):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q)


def test_heavy_ops_without_a_formula_are_listed() -> None:
    found = covered("hook", Attention(), torch.randn(1, 2, 4, 8))
    assert any("attention" in op for op in found.flops_unknown)


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
