"""What NVML tells of a GPU, from a library that stands in for it."""

from __future__ import annotations

import builtins
import dataclasses
import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tracebench import environment
from tracebench.record import GpuReading, GpuState, ThroughputInfo, from_dict, to_dict
from tracebench.throughput import gpu
from tracebench.throughput.stage import time_capture
from tracebench.timingwords import kind_of

from .subjects import itself, subject

CUDA = torch.device("cuda", 1)


class NVMLError(Exception):
    """What the library raises."""


class Nvml(ModuleType):
    """NVML with one GPU, whose answers are attributes; an answer that is an error is raised."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.init: Any = None
        self.bits: Any = 0x1
        self.power: Any = 123_400
        self.pids: Any = [os.getpid()]
        self.handles: list[str] = []
        self.open = 0

    @staticmethod
    def _answer(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlInit(self) -> None:
        self._answer(self.init)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        self.handles.append(name)
        return "handle"

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:
        return self._answer(self.power)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> Any:
        return self._answer(self.bits)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        return [SimpleNamespace(pid=pid) for pid in self._answer(self.pids)]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    library = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"uuid-{device}"))
    return library


def reading(nvml: Nvml) -> GpuReading:
    found = gpu.read(CUDA)
    assert isinstance(found, GpuReading)
    assert nvml.open == 0
    return found


def test_a_reading_holds_what_the_library_says(nvml: Nvml) -> None:
    assert reading(nvml) == GpuReading("NVIDIA H200", "580.1", 1980, 3201, 41, 123.4, ("idle",), 0, ())
    assert nvml.handles == ["GPU-uuid-cuda:1"]
    nvml.bits = 0x4 | 0x40 | 0x8000
    assert reading(nvml).reasons == ("software power cap", "hardware thermal slowdown", "unknown reason 0x8000")


def test_what_the_driver_does_not_tell_is_null_and_said(nvml: Nvml) -> None:
    nvml.power = nvml.bits = NVMLError("Not Supported")
    found = reading(nvml)
    assert (found.power_w, found.reasons, found.sm_mhz) == (None, None, 1980)
    assert found.missing == ("reasons: Not Supported", "power: Not Supported")
    assert gpu.warnings(found, found) == ()


@pytest.mark.parametrize(
    ("pids", "others"),
    [([os.getpid()], 0), ([os.getpid(), 7], 1), ([7], 0), ([7, 8, 9], 2), ([], None)],
    ids=["alone", "with another", "numbers of the host, alone", "numbers of the host, with others", "none told"],
)
def test_other_processes_are_counted_in_containers_too(nvml: Nvml, pids: list[int], others: int | None) -> None:
    nvml.pids = pids
    found = reading(nvml)
    assert found.other_processes == others
    assert bool(found.missing) == (others is None)
    assert bool(gpu.warnings(found, found)) == bool(others)


CALM = GpuReading("NVIDIA H200", "580.1", 1980, 3201, 41, 400.0, (), 0)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {}, []),
        ({}, {"reasons": ("applications clocks setting",)}, []),
        (
            {},
            {"reasons": ("hardware thermal slowdown",), "temperature_c": 90},
            ["at 90 degrees (hardware"],
        ),
        ({}, {"sm_mhz": 1200}, ["fell from 1980 to 1200 MHz"]),
        ({}, {"sm_mhz": 300, "reasons": ("idle",)}, []),
        ({"sm_mhz": 300}, {}, []),
        ({"other_processes": 2}, {}, ["2 other processes use the GPU"]),
        ({"other_processes": None}, {"sm_mhz": None}, []),
        ({}, {"sm_mhz": 1200, "reasons": ("power brake",)}, ["throttled", "fell from"]),
    ],
)
def test_what_is_doubtful_is_said(before: dict[str, Any], after: dict[str, Any], words: list[str]) -> None:
    said = gpu.warnings(dataclasses.replace(CALM, **before), dataclasses.replace(CALM, **after))
    assert len(said) == len(words)
    assert all(map(kind_of, said))
    assert all(word in text and "measure again" in text for word, text in zip(words, said, strict=True))


def test_why_there_is_no_reading_is_said(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.read(torch.device("cpu")) is None
    assert "only NVIDIA's" in str(gpu.read(torch.device("mps")))
    nvml.init = NVMLError("Driver Not Loaded")
    assert str(gpu.read(CUDA)).endswith("NVML says Driver Not Loaded")
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    why = gpu.read(CUDA)
    assert "install nvidia-ml-py (extra gpu)" in str(why)
    assert gpu.state(why, why) == GpuState(note=str(why))
    assert gpu.warnings(why, why) == ()
    assert environment._driver(CUDA) == {"driver": None, "driver_note": why}


def test_the_stage_reads_before_and_after_and_a_throttled_clock_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [CALM, dataclasses.replace(CALM, sm_mhz=1005, reasons=("software thermal slowdown",))]
    left = iter(readings)
    monkeypatch.setattr(gpu, "read", lambda device: next(left))
    info, _ = time_capture(subject(nn.Linear(4, 4), torch.randn(2, 4)), itself, seconds=0.05)
    assert info.gpu == GpuState(*readings)
    assert any("software thermal slowdown" in text for text in info.warnings)
    assert any("fell from 1980 to 1005 MHz" in text for text in info.warnings)
    assert from_dict(ThroughputInfo, json.loads(json.dumps(to_dict(info)))).gpu == info.gpu


def test_a_cpu_has_no_section_on_a_gpu() -> None:
    info, _ = time_capture(subject(nn.Linear(4, 4), torch.randn(2, 4)), itself, seconds=0.05)
    assert info.gpu is None


def test_the_real_library_has_what_is_asked_for() -> None:
    library = pytest.importorskip("pynvml", reason="nvidia-ml-py (extra gpu) is not installed")
    asked = [name for name in dir(Nvml) if name.lower().startswith("nvml")]
    assert len(asked) > 10
    assert [name for name in asked if not hasattr(library, name)] == []
    named = {getattr(library, name) for name in dir(library) if name.startswith("nvmlClocksThrottleReason")}
    assert set(gpu.REASONS) <= named
