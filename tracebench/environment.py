"""What machine and which versions produced a record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import tracebench

#: Distributions whose version can change a verdict or a figure.
_DISTRIBUTIONS = ("torch", "torchvision", "triton", "numpy")


def versions() -> dict[str, str]:
    """Return the versions that matter for a figure; imports none of the packages."""
    found = {"tracebench": tracebench.__version__, "python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """Return the processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the platform module knows what there is to know
    return platform.processor() or platform.machine()


def device_name(device: Any) -> str:
    """Return the name of a ``torch.device``: the accelerator's product name, or the processor's."""
    import torch

    if device.type == "cpu":
        return cpu_name()
    module = getattr(torch, device.type, None)
    named = getattr(module, "get_device_name", None)
    return str(named(device)) if named is not None else str(device)


def describe(device: Any) -> dict[str, Any]:
    """Return the environment section of a record for a case that runs on ``device`` (a ``torch.device``)."""
    import torch

    found: dict[str, Any] = {
        **versions(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "device": str(device),
        "device_name": device_name(device),
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if device.type != "cpu":
        found |= _driver(device)
    return found


def _driver(device: Any) -> dict[str, Any]:
    """Return the driver's version, or why it is not known."""
    from tracebench.throughput import gpu

    reading = gpu.read(device)
    if isinstance(reading, str):
        return {"driver": None, "driver_note": reading}
    return {"driver": reading.driver if reading is not None else None}
