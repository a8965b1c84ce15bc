"""How a block of calls is timed: by the host for what runs on the CPU, by device events on an accelerator.

An accelerator runs asynchronously: the host's clock without a synchronise measures how fast work is handed over, not
how fast it is done. Device events are time stamps in the device's own queue. The events of a block go into the current
stream of the device; work that a callable leaves behind on streams of its own is not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Times blocks of calls."""

    #: For the record: ``host clock`` or ``device events``.
    name: str
    #: Shortest time that can be told from zero, in milliseconds.
    resolution_ms: float
    #: Shortest block that is worth timing, in milliseconds.
    block_ms: float

    def time(self, fn: Callable[[], object], calls: int) -> float:
        """Call ``fn`` ``calls`` times and return the milliseconds per call, all its work being done."""

    def now(self) -> float:
        """Return seconds since any fixed moment: for budgets, not for figures."""


class HostClock:
    """``time.perf_counter_ns`` around the block.

    ``synchronize`` waits for all work handed over so far; it is for an accelerator that cannot time its events.
    """

    name = "host clock"

    def __init__(self, synchronize: Callable[[], None] | None = None) -> None:
        self.resolution_ms = time.get_clock_info("perf_counter").resolution * 1e3
        # Waiting for a device takes a share of a block that must be small; a block on the CPU has no such cost.
        self.block_ms = 2.0 if synchronize is None else 10.0
        self._synchronize = synchronize or (lambda: None)

    def time(self, fn: Callable[[], object], calls: int) -> float:
        """Call ``fn`` ``calls`` times and return the milliseconds per call."""
        self._synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            fn()
        self._synchronize()
        return (time.perf_counter_ns() - begin) / 1e6 / calls

    def now(self) -> float:
        """Return the host's monotonic time in seconds."""
        return time.perf_counter()


class DeviceClock:
    """A pair of timing events around the block, the device being idle before the first and done after the second.

    Args:
        new_event: makes an event with ``record(stream)`` and ``elapsed_time(end)`` in milliseconds (``torch.Event``).
        synchronize: waits until the device is idle.
        stream: returns the stream the callables use.
    """

    name = "device events"
    #: CUDA documents about 0.5 microseconds for cudaEventElapsedTime; other back ends do not say.
    resolution_ms = 0.0005
    #: An idle device waits for the host to hand over the first kernel, which is part of the block.
    block_ms = 10.0

    def __init__(
        self, new_event: Callable[[], Any], synchronize: Callable[[], None], stream: Callable[[], Any] = lambda: None
    ) -> None:
        self._new_event = new_event
        self._synchronize = synchronize
        self._stream = stream

    def time(self, fn: Callable[[], object], calls: int) -> float:
        """Call ``fn`` ``calls`` times and return the milliseconds per call on the device."""
        begin, end = self._new_event(), self._new_event()
        stream = self._stream()
        self._synchronize()
        begin.record(stream)
        for _ in range(calls):
            fn()
        end.record(stream)
        self._synchronize()
        return float(begin.elapsed_time(end)) / calls

    def now(self) -> float:
        """Return the host's monotonic time in seconds."""
        return time.perf_counter()


def clock_for(device: torch.device) -> Clock:
    """Return the clock for callables that run on ``device``.

    Device events if the accelerator times them, else the host's clock, synchronised around every block.

    Raises:
        ValueError: ``device`` is neither the CPU nor this machine's accelerator.
    """
    if device.type == "cpu":
        return HostClock()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        there = "no accelerator" if accelerator is None else f"accelerator {accelerator.type!r}"
        raise ValueError(f"cannot time on device {str(device)!r}: torch finds {there} here. Use device=auto.")

    def synchronize() -> None:
        torch.accelerator.synchronize(device)

    # The stream is named, because an event without one is recorded on the current device, which may be another.
    events = DeviceClock(
        new_event=lambda: torch.Event(device, enable_timing=True),
        synchronize=synchronize,
        stream=lambda: torch.accelerator.current_stream(device),
    )
    try:
        events.time(lambda: None, 1)
    except (RuntimeError, TypeError):  # NotImplementedError, which back ends raise too, is a RuntimeError
        return HostClock(synchronize)
    return events
