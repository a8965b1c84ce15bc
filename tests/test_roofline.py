"""The roofline, on modules whose FLOPs and bytes are known by construction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tracebench.coverage.stage import cover
from tracebench.record import CoverageInfo, Roofline
from tracebench.throughput import roofline as roofs
from tracebench.throughput.roofline import compulsory_bytes, known_flops, peaks, roofline, under_roof
from tracebench.throughput.stage import time_capture

from .subjects import itself, subject

BATCH, IN, OUT = 8, 32, 16
LINEAR = IN * OUT + OUT  # parameters


def test_a_linear_layers_flops_and_bytes_are_exact() -> None:
    linear = subject(nn.Linear(IN, OUT), torch.randn(BATCH, IN))
    assert known_flops(cover(linear, itself).info) == (2 * BATCH * IN * OUT, None)
    assert compulsory_bytes(linear) == 4 * (LINEAR + BATCH * IN + BATCH * OUT)


def test_training_adds_the_backward_passs_flops_and_the_gradients_bytes() -> None:
    linear = subject(nn.Linear(IN, OUT), torch.randn(BATCH, IN), mode="training")
    assert known_flops(cover(linear, itself).info) == (4 * BATCH * IN * OUT, None)  # no gradient of the inputs
    assert compulsory_bytes(linear) == 4 * (2 * LINEAR + BATCH * IN + BATCH * OUT)


class Parts(nn.Module):
    """A layer that no call uses, a table of which a call reads three rows, one layer twice, and a view as output."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(100, 100)
        self.table = nn.Embedding(1000, 4)
        self.twice = nn.Linear(4, 4, bias=False)
        self.register_buffer("scale", torch.ones(1, 4))

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.twice(self.twice(self.table(tokens))) * self.scale.expand(3, 4), x[:2]


def test_only_what_a_call_must_move_counts_and_once() -> None:
    tokens, x = torch.tensor([1, 2, 3]), torch.zeros(50)
    model = subject(Parts(), tokens, x)
    # The indices, the weight of `twice`, the scale and the sums; x is handed back as a view, and no op reads it.
    assert compulsory_bytes(model) == 3 * 8 + 4 * (16 + 4 + 12)


@pytest.mark.parametrize(
    ("cover", "why"),
    [
        (None, "did not run"),
        (CoverageInfo(None, None, note="none"), "did not run"),
        (CoverageInfo(1.0, 1.0, eager_flops=7, flops_unknown=("aten.gru",)), "no FLOP formula for aten.gru"),
        (CoverageInfo(1.0, None, eager_flops=0), "no op of the model"),
    ],
)
def test_flops_that_are_not_known_leave_the_fractions_null(
    cover: CoverageInfo | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofs, "peaks", lambda device, dtype: (100.0, 10.0))
    linear = subject(nn.Linear(IN, OUT), torch.randn(BATCH, IN))
    info, _ = time_capture(linear, itself, seconds=0.02)
    found = roofline(linear, cover, info)
    assert why in str(found.note)
    assert (found.flops, found.intensity, found.eager_fraction, found.captured_fraction, found.bound) == (None,) * 5
    assert (found.peak_gflops, found.peak_gb_s) == (100.0, 10.0)


@pytest.mark.parametrize(
    ("flops", "moved", "roof", "bound", "fraction"),
    [
        (10**9, 10**6, 100.0, "compute", 0.5),  # 1000 FLOPs a byte at 10 GB/s would be 10000 GFLOP/s
        (10**9, 10**9, 10.0, "memory", 5.0),  # 1 FLOP a byte; attained out of the caches
    ],
)
def test_the_roof_is_the_lower_of_the_two(flops: int, moved: int, roof: float, bound: str, fraction: float) -> None:
    found = under_roof(Roofline(flops, moved), 100.0, 10.0, eager_ms=20.0, captured_ms=10.0)
    assert (found.roof_gflops, found.bound, found.intensity) == (roof, bound, flops / moved)
    assert (found.eager_gflops, found.captured_gflops) == (50.0, 100.0)
    assert found.eager_fraction == pytest.approx(fraction)
    assert found.captured_fraction == pytest.approx(2 * fraction)


def test_a_large_product_attains_a_share_of_the_measured_peak() -> None:
    big = subject(nn.Linear(1024, 1024), torch.randn(1024, 1024))
    info, _ = time_capture(big, itself, seconds=0.5)
    found = roofline(big, cover(big, itself).info, info)
    assert found.bound == "compute"
    assert found.eager_fraction is not None
    assert 0.0 < found.eager_fraction < 1.5
    assert found.note is None


def test_peaks_that_cannot_be_measured_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 512 MiB")

    monkeypatch.setattr(roofs, "peaks", full)
    linear = subject(nn.Linear(IN, OUT), torch.randn(BATCH, IN))
    found = roofline(linear, cover(linear, itself).info, time_capture(linear, itself, seconds=0.02)[0])
    assert "peaks n/a: OutOfMemoryError: tried" in str(found.note)
    assert found.flops == 2 * BATCH * IN * OUT
    assert found.roof_gflops is None


def test_peaks_are_measured_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    first = peaks(device, torch.float32)
    assert min(first) > 0
    monkeypatch.setattr(roofs, "clock_for", None)
    assert peaks(device, torch.float32) is first
