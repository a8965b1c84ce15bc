"""The throughput stage: eager and a capture of the same model, called in turns on the same inputs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tracebench.errors import CallError
from tracebench.frontends.base import Capture, Inputs
from tracebench.record import ThroughputInfo, TimedInputs
from tracebench.soundness.loss import WeightedSum
from tracebench.subject import Subject, seed_everything
from tracebench.throughput import gpu
from tracebench.throughput.calls import (
    BoundCall,
    InputSets,
    copies_because,
    input_sets,
    last_level_cache,
    storage_bytes,
)
from tracebench.throughput.clock import clock_for
from tracebench.throughput.launches import host_ms, kernels
from tracebench.throughput.measure import break_even_calls, measure
from tracebench.throughput.memory import allocated_mb, call_memory_mb, peak_allocated_mb
from tracebench.throughput.monitor import default_monitors, waits

CaptureFn = Callable[[nn.Module, Inputs], Capture]

#: Share of the budget in which the input sets are tried; sets that are not reached are left out.
TRYING_SHARE = 0.1
#: Calls that belong to getting started: TorchScript compiles at its second.
FIRST_CALLS = 2


@dataclass(frozen=True)
class Started:
    """A capture that was called until nothing compiles any more.

    ``cost_s`` is the time of capturing and of these ``calls``.
    """

    made: Capture
    call: BoundCall
    first_call_ms: float
    cost_s: float
    calls: int

    def overhead_s(self, steady_ms: float) -> float:
        """Return what capturing costs beyond as many steady calls of ``steady_ms``; never below 0."""
        return max(0.0, self.cost_s - self.calls * steady_ms / 1e3)


def time_capture(
    subject: Subject, capture: CaptureFn, *, seconds: float, optimizer: str = "sgd"
) -> tuple[ThroughputInfo, float]:
    """Time what ``capture`` makes, an unmarked capture, against eager for about ``seconds``.

    Eager and the capture each have a model and inputs of their own. In training a call is the forward pass, the
    backward pass from the loss that verdicts use, too, and a step of ``optimizer``. Returned with it are the seconds
    that capturing took here, beyond calls that had to be made anyway; caches may have been filled before.

    Raises:
        CaptureError: the front end refuses this time.
        CallError: eager or the capture raises.
    """
    sets = input_sets(subject)
    with subject.grad_mode():
        try:
            sides = _Sides(subject, capture, sets, optimizer)
            sets = sides.tried(seconds * TRYING_SHARE)
        except _Unfit as unfit:
            # Whatever the capture did with the other values may have changed it.
            sets = copies_because(sets, str(unfit))
            sides = _Sides(subject, capture, sets, optimizer)
            sets = sides.tried(seconds * TRYING_SHARE, fresh=False)
        before = gpu.read(subject.device)
        info = measure(
            sides.eager,
            sides.captured.call,
            clock=clock_for(subject.device),
            seconds=seconds,
            samples_per_call=subject.batch_size,
            compilations=sides.captured.made.compilations,
            seed=subject.seed,
            rewind=sides.rewind,
            monitors=default_monitors(),
            waits=waits,
        )
        after = gpu.read(subject.device)
        info = sides.costs(info, sets)
    spent_s = sides.captured.overhead_s(info.captured.median_ms)
    cache = last_level_cache(subject.device)
    info = dataclasses.replace(
        info,
        first_call_ms=sides.captured.first_call_ms,
        inputs=TimedInputs(len(sets.sets), sets.mb, None if cache is None else cache / 1e6, sets.values, sets.note),
        optimizer=optimizer if subject.training and optimizer != "none" else None,
        gpu=gpu.state(before, after),
        warnings=(*info.warnings, *gpu.warnings(before, after)),
    )
    return paid_back(info, spent_s), spent_s


def try_calls(subject: Subject, capture: CaptureFn, *, optimizer: str = "sgd") -> None:
    """Call eager and a capture as often as when they are timed first, with all in memory that there is then.

    Raises:
        CaptureError: the front end refuses, after eager was called.
        CallError: eager or the capture raises.
    """
    with subject.grad_mode():
        sides = _Sides(subject, capture, input_sets(subject), optimizer)
        sides.eager()
        sides.captured.call()
        subject.synchronise()


def paid_back(info: ThroughputInfo, spent_s: float) -> ThroughputInfo:
    """Return ``info`` with ``break_even_calls``: from the cold compile time, or ``spent_s`` where there is none."""
    cold = info.compile_s.cold
    cost_s = spent_s if cold is None else cold
    calls = break_even_calls(cost_s, info.speedup, info.eager.median_ms, info.captured.median_ms)
    return dataclasses.replace(info, break_even_calls=calls)


def start(
    subject: Subject, capture: CaptureFn, sets: InputSets, optimizer: str, loss: WeightedSum | None = None
) -> Started:
    """Capture a model of its own and call it until nothing compiles any more, on the first of ``sets``.

    Raises:
        CaptureError: the front end refuses.
        CallError: the capture raises.
    """
    model, inputs, own = subject.fresh_model(), subject.fresh_inputs(), sets.copied(subject)
    seed_everything(subject.seed)
    started = time.perf_counter()
    made = capture(model, inputs)
    call = BoundCall(
        "the capture", made.call, made.module, own[:1], training=subject.training, loss=loss, optimizer=optimizer
    )
    before = time.perf_counter()
    call()
    subject.synchronise()
    first_call_ms = (time.perf_counter() - before) * 1e3
    calls = 1
    while calls < max(FIRST_CALLS, made.settles_after):
        call()
        calls += 1
    subject.synchronise()
    cost_s = time.perf_counter() - started
    call.use(own)
    return Started(made, call, first_call_ms, cost_s, calls)


class _Unfit(Exception):
    """The capture does not hold for other values; the message says how that showed."""


class _Sides:
    """Eager and captured, each built and called once, with the memory that each took."""

    def __init__(self, subject: Subject, capture: CaptureFn, sets: InputSets, optimizer: str) -> None:
        self._subject = subject
        self._sets = sets
        loss = WeightedSum()
        before = allocated_mb(subject.device)
        model = subject.fresh_model()
        self.eager = BoundCall(
            "eager",
            model,
            model,
            sets.copied(subject),
            training=subject.training,
            loss=loss,
            optimizer=optimizer,
        )
        for _ in range(FIRST_CALLS):
            self.eager()
        between = allocated_mb(subject.device)
        self.captured = start(subject, capture, sets, optimizer, loss)
        self._levels = (before, between)

    def rewind(self, number: int) -> None:
        """Have both begin with set ``number``."""
        self.eager.rewind(number)
        self.captured.call.rewind(number)

    def tried(self, seconds: float, *, fresh: bool = True) -> InputSets:
        """Call both sides on one set after the other for ``seconds`` each and keep those that were reached.

        Raises:
            _Unfit: with ``fresh``, a side raises on values that are not the example's, or compiles for them.
            CallError: without, a side raises.
        """
        sets, compiled = self._sets, self.captured.made.compilations()
        reached = 1
        self.rewind(1)
        started = time.perf_counter()
        while reached < len(sets.sets) and (reached < 2 or time.perf_counter() - started < 2 * seconds):
            try:
                self.eager()
                self.captured.call()
            except CallError as error:
                if fresh and sets.values == "fresh":
                    raise _Unfit(f"on other values {error.args[0]}") from error
                raise
            if fresh and sets.values == "fresh" and self.captured.made.compilations() != compiled:
                raise _Unfit("the capture compiles anew for other values")
            reached += 1
        self._subject.synchronise()
        if reached < len(sets.sets):
            said = f"{reached} sets, for calls are slow for the budget"
            sets = InputSets(sets.sets[:reached], sets.values, "; ".join(filter(None, (said, sets.note))))
            self.eager.use(sets.copied(self._subject))
            self.captured.call.use(sets.copied(self._subject))
        return sets

    def costs(self, info: ThroughputInfo, sets: InputSets) -> ThroughputInfo:
        """Return ``info`` with memory of both sides and, on an accelerator, kernels and the host's time."""
        device, calls = self._subject.device, (self.eager, self.captured.call)
        if not info.eager.samples_ms:
            return info
        peaks = self._cpu_peaks() if device.type == "cpu" else self._accelerator_peaks(sets)
        timings = []
        for timing, call, peak in zip((info.eager, info.captured), calls, peaks, strict=True):
            found = dataclasses.replace(timing, peak_memory_mb=peak)
            if device.type != "cpu":
                launching = host_ms(call, self._subject.synchronise)
                found = dataclasses.replace(found, host_ms=launching, kernels=kernels(call, device))
            timings.append(found)
        return dataclasses.replace(info, eager=timings[0], captured=timings[1])

    def _cpu_peaks(self) -> list[float | None]:
        sizes = [constant.bytes or 0 for constant in self.captured.made.events.constants]
        peaks: list[float | None] = []
        for call, baked in ((self.eager, 0), (self.captured.call, sum(sizes))):
            call.release()
            peaks.append((storage_bytes(call.resident()) + baked) / 1e6 + call_memory_mb(call))
        return peaks

    def _accelerator_peaks(self, sets: InputSets) -> list[float | None]:
        device, (before, between) = self._subject.device, self._levels
        after = allocated_mb(device)
        if before is None or between is None or after is None:
            return [None, None]
        # Each side had all sets when it was built and has those that were reached now; one is part of its peak.
        eager_mb = between - before - self._sets.mb + sets.mb
        held = (eager_mb, after - before - eager_mb)
        spare_mb = sets.mb * (1 - 1 / len(sets.sets))
        peaks: list[float | None] = []
        for call, other_mb in ((self.eager, held[1]), (self.captured.call, held[0])):
            call.release()
            peak = peak_allocated_mb(call, device)
            peaks.append(None if peak is None else peak - before - other_mb - spare_mb)
        return peaks
