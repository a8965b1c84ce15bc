"""What a call costs the host on an accelerator: how long handing it over takes, and how many kernels it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracebench.throughput.statistics import median

#: Calls of which the median is taken.
_CALLS = 15


def host_ms(fn: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the milliseconds until ``fn`` returns, the device being idle when it begins: its guards and launches.

    The device works on while the host launches, so this is part of a call's time only where it is longer than the
    device's, or where the call waits for a result.
    """
    times = []
    for _ in range(_CALLS):
        synchronize()
        begin = time.perf_counter_ns()
        fn()
        times.append((time.perf_counter_ns() - begin) / 1e6)
    synchronize()
    return median(times)


def kernels(fn: Callable[[], object], device: torch.device) -> int | None:
    """Call ``fn`` once under torch's profiler and return how many kernels it launched; None if that cannot be told."""
    activity = getattr(torch.profiler.ProfilerActivity, device.type.upper(), None)
    if device.type == "cpu" or activity is None or activity not in torch.profiler.supported_activities():
        return None
    with torch.profiler.profile(activities=[activity], acc_events=True) as profiler:
        fn()
        torch.accelerator.synchronize(device)
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    return count_kernels(results.events())


def count_kernels(events: Iterable[Any]) -> int:
    """Return how many of a profile's events are kernels: work of a device that neither copies nor fills memory."""
    return sum(
        event.device_type().name != "CPU" and not event.name().startswith(("Memcpy", "Memset", "[memory]"))
        for event in events
    )
