"""The state of an NVIDIA GPU around a measurement, by its management library (NVML, package ``nvidia-ml-py``).

Read at two instants, just before and just after: what throttles in between and is over by then is not seen. The
library answers from the driver and runs nothing on the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tracebench.record import GpuReading, GpuState

#: A fall of the SM clock below this share of what it was before measuring is told.
CLOCK_FELL = 0.95
#: NVML's bits for why clocks are not at their highest (``nvmlClocksThrottleReason...``), as nvml.h defines them.
REASONS = {
    0x001: "idle",
    0x002: "applications clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability limit",
}
#: Those that someone chose, or that mean no load: they hold clocks down, but throttle nothing.
_HARMLESS = ("idle", "applications clocks setting", "sync boost", "display clock setting")


def read(device: torch.device) -> GpuReading | str | None:
    """Return the state of ``device`` now, None for a CPU, or why it cannot be told.

    The process must have used ``device`` before: it is counted among those that compute on it.
    """
    if device.type == "cpu":
        return None
    if device.type != "cuda" or torch.version.hip:
        return f"clocks, temperature and other processes of {device.type!r} devices are not read: only NVIDIA's are"
    try:
        import pynvml
    except ImportError:
        return "clocks, temperature and other processes of the GPU are unknown: install nvidia-ml-py (extra gpu)"
    try:
        with _library(pynvml):
            return _read(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid(device)))
    except (pynvml.NVMLError, OSError) as error:
        return f"clocks, temperature and other processes of the GPU are unknown: NVML says {error}"


def state(before: GpuReading | str | None, after: GpuReading | str | None) -> GpuState | None:
    """Return the record's section on the GPU; None where there is none."""
    if before is None and after is None:
        return None
    texts = [found for found in (before, after) if isinstance(found, str)]
    return GpuState(
        before=before if isinstance(before, GpuReading) else None,
        after=after if isinstance(after, GpuReading) else None,
        note=texts[0] if texts else None,
    )


def warnings(before: GpuReading | str | None, after: GpuReading | str | None) -> tuple[str, ...]:
    """Return what in two readings makes the figures between them doubtful (see ``timingwords``)."""
    readings = [found for found in (before, after) if isinstance(found, GpuReading)]
    found = []
    reasons = sorted({reason for one in readings for reason in one.reasons or () if reason not in _HARMLESS})
    if reasons:
        hottest = max((one.temperature_c for one in readings if one.temperature_c is not None), default=None)
        heat = "" if hottest is None else f" at {hottest} degrees"
        found.append(
            f"throttled: the GPU slowed down{heat} ({', '.join(reasons)}): do not compare absolute times with other "
            "runs; let it cool, or lock a clock that it can hold (nvidia-smi --lock-gpu-clocks), then measure again"
        )
    if len(readings) == 2 and not any("idle" in (one.reasons or ()) for one in readings):
        first, last = (one.sm_mhz for one in readings)
        if first is not None and last is not None and last < CLOCK_FELL * first:
            found.append(
                f"throttled: the GPU's SM clock fell from {first} to {last} MHz while measuring: the ratio holds, as "
                "rounds alternate, but do not compare absolute times with other runs; lock the clock (nvidia-smi "
                "--lock-gpu-clocks) and measure again"
            )
    others = max((one.other_processes for one in readings if one.other_processes is not None), default=0)
    if others:
        who = "another process uses" if others == 1 else f"{others} other processes use"
        found.append(
            f"busy machine: {who} the GPU: times hold what it does, too; end it (nvidia-smi lists it) and measure again"
        )
    return tuple(found)


def uuid(device: torch.device) -> str:
    """Return NVML's name of a CUDA device. Their numbers differ: CUDA_VISIBLE_DEVICES renumbers CUDA's."""
    name = str(torch.cuda.get_device_properties(device).uuid)
    return name if name.startswith(("GPU-", "MIG-")) else f"GPU-{name}"


@contextmanager
def _library(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _read(nvml: Any, handle: Any) -> GpuReading:
    missing: list[str] = []

    def ask(name: str, question: Callable[[], Any]) -> Any:
        """What a driver or a virtual GPU does not tell is null, and said."""
        try:
            return question()
        except nvml.NVMLError as error:
            missing.append(f"{name}: {error}")
            return None

    bits = ask("reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    power = ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    pids = ask("processes", lambda: [one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)])
    others = None if pids is None else _others(pids)
    if pids is not None and others is None:
        missing.append("processes: NVML lists none, not even this one, as in some containers")
    return GpuReading(
        name=_text(ask("name", lambda: nvml.nvmlDeviceGetName(handle))),
        driver=_text(ask("driver", nvml.nvmlSystemGetDriverVersion)),
        sm_mhz=ask("SM clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_mhz=ask("memory clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        temperature_c=ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        power_w=None if power is None else power / 1000.0,
        reasons=None if bits is None else _reasons(bits),
        other_processes=others,
        missing=tuple(missing),
    )


def _others(pids: list[int]) -> int | None:
    """Return how many of the processes that compute on the GPU are not this one; None if that cannot be told.

    In a container the numbers may be those of the host, and this process has another there. It is one of them all the
    same.
    """
    if not pids:
        return None
    own = os.getpid()
    return len(set(pids) - {own}) if own in pids else len(set(pids)) - 1


def _reasons(bits: int) -> tuple[str, ...]:
    known = [name for bit, name in REASONS.items() if bits & bit]
    unknown = bits & ~sum(REASONS)
    return (*known, f"unknown reason {unknown:#x}") if unknown else tuple(known)


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
