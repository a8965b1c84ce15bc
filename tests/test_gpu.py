"""What only an accelerator can show. Skipped where there is none; ``benchmarks/gpu_check.py`` runs them on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracebench
from tracebench.case import Case, ModelSpec
from tracebench.record import GpuReading
from tracebench.running.launch import ForkServer
from tracebench.running.limits import Limits
from tracebench.running.runner import run_case
from tracebench.subject import resolve_device, seed_everything
from tracebench.throughput import gpu
from tracebench.throughput.clock import DeviceClock, HostClock, clock_for
from tracebench.throughput.memory import allocated_mb, peak_allocated_mb
from tracebench.throughput.roofline import peaks

pytestmark = pytest.mark.gpu
FRONT_ENDS = ("dynamo", "jit_trace", "fx", "hook")
MB = 10**6


@pytest.fixture(scope="module")
def device() -> torch.device:
    """Return the accelerator, in the form a case has it."""
    if not torch.accelerator.is_available():
        pytest.skip("no accelerator that torch can use")
    return resolve_device("auto")


def work(device: torch.device, side: int = 2048, products: int = 20) -> Any:
    """Return a callable that hands over much work at once."""
    matrix = torch.randn(side, side, device=device)

    def call() -> torch.Tensor:
        found = matrix
        for _ in range(products):
            found = found @ matrix
        return found

    return call


def test_events_and_a_synchronised_host_clock_agree(device: torch.device) -> None:
    clock = clock_for(device)
    assert isinstance(clock, DeviceClock)
    call = work(device)
    for other in (clock, HostClock(lambda: torch.accelerator.synchronize(device))):
        other.time(call, 3)
    by_host = HostClock(lambda: torch.accelerator.synchronize(device)).time(call, 20)
    assert clock.time(call, 20) == pytest.approx(by_host, rel=0.1)


def test_events_wait_for_the_work(device: torch.device) -> None:
    """Four times the work takes about four times as long, though the host hands it over in no time."""
    clock = clock_for(device)
    few, many = work(device, products=20), work(device, products=80)
    for call in (few, many):
        clock.time(call, 3)
    assert clock.time(many, 10) == pytest.approx(4 * clock.time(few, 10), rel=0.25)


def test_peak_memory_of_a_known_allocation(device: torch.device) -> None:
    def call() -> None:
        torch.empty(100 * MB, dtype=torch.uint8, device=device)

    resident = allocated_mb(device)
    assert resident is not None
    peak = peak_allocated_mb(call, device)
    assert peak is not None
    assert 100 <= peak - resident < 103


@pytest.mark.parametrize("frontend", FRONT_ENDS)
def test_a_case_runs_on_the_device_from_load_to_throughput(frontend: str, device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()).eval()
    found = tracebench.run(model, (torch.randn(8, 64),), frontend=frontend, throughput_seconds=0.3, probes=("same",))
    assert (found.status, found.verdict) == ("done", "sound"), found.error or found.probes
    assert found.case["device"].startswith(device.type)
    assert found.throughput is not None
    assert found.throughput.clock == "device events"
    assert found.throughput.captured.peak_memory_mb is not None
    assert found.throughput.roofline is not None
    assert found.throughput.roofline.note is None
    assert found.coverage is not None
    assert found.coverage.ops == 1.0
    assert next(model.parameters()).device.type == "cpu", "the caller's model stays where it was"


def test_a_compiled_half_precision_case_trains_on_the_device(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    found = tracebench.run(
        model,
        (torch.randn(8, 64),),
        executor="inductor",
        mode="training",
        dtype="bfloat16",
        throughput_seconds=0.3,
        probes=("same",),
    )
    assert (found.status, found.verdict) == ("done", "sound"), found.error or found.probes
    assert found.throughput is not None


class Autocast(nn.Module):
    """Runs its layer under the device's autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.layer(x)


@pytest.mark.parametrize("frontend", ["dynamo", "jit_trace", "hook"])
def test_the_devices_autocast_is_captured(frontend: str, device: torch.device) -> None:
    found = tracebench.run(
        Autocast().eval(), (torch.randn(4, 16),), frontend=frontend, stages=("soundness",), probes=("same",)
    )
    assert found.status == "done", found.error
    assert found.verdict == "sound", [probe for probe in found.probes or () if probe.outcome != "match"]


def test_seeds_reach_the_devices_generator(device: torch.device) -> None:
    seed_everything(3)
    first = torch.rand(8, device=device)
    seed_everything(3)
    assert torch.equal(first, torch.rand(8, device=device))


def test_running_out_of_the_devices_memory_is_said(device: torch.device) -> None:
    class Hungry(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.empty(2**46, dtype=torch.uint8, device=x.device)[0]

    found = tracebench.run(Hungry(), (torch.randn(4),), frontend="fx", stages=())
    assert found.status == "oom"
    assert found.error is not None
    assert peak_allocated_mb(lambda: torch.ones(MB, device=device), device) is not None, (
        "the device is of use afterwards"
    )


#: A model whose every sample takes a twentieth of the device's memory.
_TWENTIETH = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        total = torch.accelerator.get_memory_info(x.device)[1]
        return x + torch.empty(x.shape[0] * (total // 20), dtype=torch.uint8, device=x.device)[0] * 0


def make_model():
    return Model().eval()


def example_inputs(batch_size=2):
    return (torch.randn(batch_size, 4),)
"""


def test_the_largest_batch_is_what_the_device_has_room_for(device: torch.device, tmp_path: Path) -> None:
    path = tmp_path / "twentieth.py"
    path.write_text(_TWENTIETH, encoding="utf-8")
    launcher = ForkServer()
    try:
        case = Case(ModelSpec("twentieth", str(path)), "hook", device=str(device), batch_limit=64, stages=())
        found = run_case(case, "0" * 16, Limits(120.0), launcher)
    finally:
        launcher.close()
    assert found.status == "done", found.error
    assert 8 <= found.case["batch_size"] <= 19
    assert found.batch_search is not None
    assert {one.outcome for one in found.batch_search.tries} == {"fits", "oom"}


def test_the_devices_state_is_read(device: torch.device) -> None:
    if device.type != "cuda":
        assert isinstance(gpu.read(device), str)
        return
    torch.ones(1, device=device)
    found = gpu.read(device)
    assert isinstance(found, GpuReading), found
    assert found.driver
    assert found.sm_mhz
    assert found.temperature_c is not None


def test_peaks_are_those_of_an_accelerator(device: torch.device) -> None:
    gflops, gb_s = peaks(device, torch.bfloat16)
    assert gflops > 100
    assert gb_s > 20
