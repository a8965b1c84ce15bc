"""Peak memory of a call, one side at a time. Megabytes are 10**6 bytes.

Eager and captured models lie in one process, so what is allocated in all is not what one of them needs. Gradients are
released beforehand, so that a call in training allocates its own.

- On an accelerator the allocator keeps the peak; what the other side holds, which is what was allocated when that was
  built and warmed up, is taken off. Copies of weights that a compiler made, and pools of its graphs, count.
- On the CPU, where there is no such account, a side's peak is what it holds - parameters, buffers, optimizer state, one
  input set and the constants that were baked in - plus the most that a call's own allocations come to, as torch's
  profiler notes every one by its CPU allocator. Scratch memory inside a library (oneDNN, MKL) and copies of weights
  that a compiler keeps are not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

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


def peak_allocated_mb(fn: Callable[[], object], device: torch.device) -> float | None:
    """Call ``fn`` once and return the most that was allocated on an accelerator meanwhile, by anyone, in MB.

    None where the allocator keeps no peak. What ``fn`` raises propagates.
    """
    try:
        torch.accelerator.synchronize(device)
        torch.accelerator.reset_peak_memory_stats(device)
    except (RuntimeError, AttributeError):
        return None
    # Outside any try: an error of the call is the caller's to know, not a missing statistic.
    fn()
    torch.accelerator.synchronize(device)
    peak = torch.accelerator.max_memory_allocated(device) / 1e6
    # Allocators that do not count report 0.
    return peak if peak > 0 else None


def call_memory_mb(fn: Callable[[], object]) -> float:
    """Call ``fn`` once and return the most CPU memory that tensors it made took at one moment, in MB."""
    # The profiler's library would log its own start and stop.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        # The result is freed within, as it is by whoever makes the next call.
        fn()
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    return peak_bytes(_changes(results.experimental_event_tree())) / 1e6


def _changes(roots: Iterable[Any]) -> list[tuple[int, int]]:
    """Return (address, size) of allocations and (negative size) releases of CPU memory in order of time."""
    found = []
    waiting = list(roots)
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.name == "[memory]" and event.extra_fields.device.type == "cpu":
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    return [(address, size) for _, address, size in sorted(found, key=lambda entry: entry[0])]


def peak_bytes(changes: Iterable[tuple[int, int]]) -> int:
    """Return the highest level of (address, size) allocations; a release of what was there before changes nothing."""
    level = peak = 0
    live: dict[int, int] = {}
    for address, size in changes:
        if size > 0:
            live[address] = size
            level += size
            peak = max(peak, level)
        else:
            level -= live.pop(address, 0)
    return peak
