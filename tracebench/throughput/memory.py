"""Peak memory of a call, where the device's allocator counts it. Megabytes are 10**6 bytes."""

from __future__ import annotations

from collections.abc import Callable

import torch


def allocated_mb(device: torch.device) -> float | None:
    """Return what tensors occupy on ``device`` now, in MB; None where that is not counted (the CPU among others)."""
    if device.type == "cpu":
        return None
    try:
        torch.accelerator.synchronize(device)
        return torch.accelerator.memory_allocated(device) / 1e6
    except (RuntimeError, AttributeError):
        return None


def peak_memory_mb(fn: Callable[[], object], device: torch.device, excluded_mb: float = 0.0) -> float | None:
    """Call ``fn`` once and return the most memory that was allocated meanwhile, in MB, less ``excluded_mb``.

    The peak counts everything that is resident, also what belongs to another model in the process. ``excluded_mb`` is
    that share: without it, a figure for eager would hold the capture's copy of the weights.

    None where the allocator keeps no peak: on the CPU, and on back ends without these statistics.
    """
    if device.type == "cpu":
        return None
    try:
        torch.accelerator.synchronize(device)
        torch.accelerator.reset_peak_memory_stats(device)
    except (RuntimeError, AttributeError):
        return None
    # Outside any try: an error of the call is the caller's to know, not a missing statistic.
    fn()
    torch.accelerator.synchronize(device)
    peak = torch.accelerator.max_memory_allocated(device) / 1e6 - excluded_mb
    # Allocators that do not count report 0.
    return peak if peak > 0 else None
