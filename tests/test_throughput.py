"""The measuring protocol, on a machine whose every call takes a scripted time."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tracebench.record import ThroughputInfo, from_dict, to_dict
from tracebench.throughput import measure as protocol
from tracebench.throughput.clock import DeviceClock, HostClock, clock_for
from tracebench.throughput.measure import MAX_ROUNDS, MIN_ROUNDS, measure


class Machine:
    """A machine with a clock, on which a call takes what the script says; it is its own ``Clock``."""

    name = "scripted"
    resolution_ms = 1e-4
    block_ms = 10.0

    def __init__(self, noise: float = 0.0, drift_per_s: float = 0.0, seed: int = 0) -> None:
        self.seconds = 0.0
        self.calls: list[str] = []
        self._noise = noise
        self._drift_per_s = drift_per_s
        self._rng = np.random.default_rng(seed)

    def callee(self, name: str, ms: float, extra: Callable[[int], float] = lambda call: 0.0) -> Callable[[], object]:
        """Return a callable of ``ms`` plus ``extra(number of the call)``, times this machine's noise and drift."""
        count = 0

        def call() -> None:
            nonlocal count
            self.calls.append(name)
            slowed = (1.0 + self._drift_per_s * self.seconds) * math.exp(self._rng.normal(0.0, self._noise))
            self.seconds += (ms + extra(count)) * slowed / 1e3
            count += 1

        return call

    def time(self, fn: Callable[[], object], calls: int) -> float:
        begin = self.seconds
        for _ in range(calls):
            fn()
        return (self.seconds - begin) * 1e3 / calls

    def now(self) -> float:
        return self.seconds


def run(
    machine: Machine,
    eager: Callable[[], object],
    captured: Callable[[], object],
    seconds: float = 5.0,
    compilations: Callable[[], int] = lambda: 0,
    seed: int = 0,
) -> ThroughputInfo:
    return measure(
        eager, captured, clock=machine, seconds=seconds, samples_per_call=32, compilations=compilations, seed=seed
    )


@pytest.fixture
def no_collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests with many measurements: collecting garbage takes most of their time."""
    monkeypatch.setattr(gc, "collect", lambda generation=2: 0)


def test_known_ratio_is_recovered() -> None:
    machine = Machine()
    info = run(machine, machine.callee("eager", 30.0), machine.callee("captured", 15.0))
    assert info.speedup.ratio == pytest.approx(2.0)
    assert info.speedup.significant
    assert info.eager.median_ms == pytest.approx(30.0)
    assert info.captured.median_ms == pytest.approx(15.0)
    assert info.eager.samples_per_s == pytest.approx(32 / 0.030)
    assert len(info.eager.samples_ms) == len(info.captured.samples_ms) >= 20
    assert info.clock == "scripted"
    assert info.warnings == ()


def test_known_ratio_is_in_the_interval_under_noise() -> None:
    machine = Machine(noise=0.03)
    info = run(machine, machine.callee("eager", 30.0), machine.callee("captured", 15.0))
    assert info.speedup.ci_low <= 2.0 <= info.speedup.ci_high
    assert info.speedup.ci_high - info.speedup.ci_low < 0.2


@pytest.mark.usefixtures("no_collecting")
def test_equal_callables_do_not_differ() -> None:
    false_alarms = 0
    for seed in range(60):
        machine = Machine(noise=0.03, seed=seed)
        info = run(machine, machine.callee("eager", 25.0), machine.callee("captured", 25.0), seconds=2.0, seed=seed)
        false_alarms += info.speedup.significant
    assert false_alarms <= 6


@pytest.mark.usefixtures("no_collecting")
def test_drift_cancels() -> None:
    """The machine slows down by half during the run: absolute times do, the ratio does not."""
    for seed in range(10):
        machine = Machine(noise=0.01, drift_per_s=0.1, seed=seed)
        info = run(machine, machine.callee("eager", 40.0), machine.callee("captured", 40.0), seed=seed)
        assert info.speedup.ratio == pytest.approx(1.0, abs=0.02)
        assert any("drifting (eager)" in warning for warning in info.warnings)


def test_order_alternates_in_random_pairs() -> None:
    machine = Machine(noise=0.05)
    run(machine, machine.callee("e", 20.0), machine.callee("c", 20.0), seconds=8.0)
    # Calls are long enough to be blocks of their own, so that the last calls are the rounds.
    tail = machine.calls[len(machine.calls) % 2 :][-80:]
    rounds = ["".join(tail[i : i + 2]) for i in range(0, 80, 2)]
    assert set(rounds) == {"ec", "ce"}
    # Of any two successive rounds of a pair, one starts with each; where the pairs begin depends on the count.
    paired = [all(rounds[i] != rounds[i + 1] for i in range(start, 39, 2)) for start in (0, 1)]
    assert any(paired)
    assert not all(paired)


def test_the_seed_decides_the_order() -> None:
    def calls(seed: int) -> list[str]:
        machine = Machine(noise=0.05)
        run(machine, machine.callee("e", 20.0), machine.callee("c", 20.0), seed=seed)
        return machine.calls

    assert calls(1) == calls(1)
    assert calls(1) != calls(2)


def test_fast_calls_are_timed_in_long_blocks() -> None:
    machine = Machine(noise=0.02)
    lengths: list[float] = []
    timed = machine.time

    def time(fn: Callable[[], object], calls: int) -> float:
        took = timed(fn, calls)
        lengths.append(took * calls)
        return took

    machine.time = time  # type: ignore[method-assign]
    run(machine, machine.callee("eager", 0.1), machine.callee("captured", 0.05), seconds=1.0)
    assert min(lengths[-20:]) >= 0.9 * machine.block_ms


def test_early_slow_calls_are_warmed_up_away() -> None:
    machine = Machine(noise=0.01)
    info = run(
        machine,
        machine.callee("eager", 20.0),
        machine.callee("captured", 20.0, extra=lambda call: 40.0 * 0.5**call),
    )
    assert max(info.captured.samples_ms) < 22.0
    assert info.warnings == ()


def test_what_never_settles_is_said() -> None:
    machine = Machine()
    info = run(
        machine, machine.callee("eager", 20.0), machine.callee("captured", 1.0, extra=lambda call: 200.0 * 0.9**call)
    )
    assert any("not warmed up (captured)" in warning for warning in info.warnings)
    assert not any("not warmed up (eager)" in warning for warning in info.warnings)


def test_stops_early_when_the_ratio_is_known() -> None:
    machine = Machine(noise=0.001)
    info = run(machine, machine.callee("eager", 20.0), machine.callee("captured", 10.0), seconds=100.0)
    assert len(info.eager.samples_ms) == 20
    assert machine.seconds < 50.0


def test_spends_the_budget_but_not_more_when_noisy() -> None:
    machine = Machine(noise=0.3)
    info = run(machine, machine.callee("eager", 20.0), machine.callee("captured", 20.0), seconds=4.0)
    assert 3.5 < machine.seconds < 4.5
    assert any("noisy (eager)" in warning for warning in info.warnings)


def test_a_large_budget_gives_longer_blocks_and_not_more_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "TIGHT", 0.0)
    machine = Machine(noise=0.05)
    info = run(machine, machine.callee("eager", 20.0), machine.callee("captured", 20.0), seconds=60.0)
    assert 0.8 * MAX_ROUNDS <= len(info.eager.samples_ms) <= MAX_ROUNDS
    assert machine.seconds > 50.0


def test_slow_calls_get_the_fewest_rounds_and_a_warning() -> None:
    machine = Machine(noise=0.005)
    info = run(machine, machine.callee("eager", 10_000.0), machine.callee("captured", 5_000.0), seconds=5.0)
    assert len(info.eager.samples_ms) == MIN_ROUNDS
    assert info.speedup.significant
    assert info.speedup.ci_low <= 2.0 <= info.speedup.ci_high
    (warning,) = info.warnings
    assert f"few rounds: {MIN_ROUNDS} " in warning
    assert "throughput.seconds=" in warning


def test_rounds_with_a_recompile_are_thrown_away() -> None:
    machine = Machine(noise=0.01)
    compiled = 0

    def recompiling(call: int) -> float:
        nonlocal compiled
        if call > 20 and call % 10 == 0:
            compiled += 1
            return 500.0
        return 0.0

    info = run(
        machine,
        machine.callee("eager", 30.0),
        machine.callee("captured", 30.0, extra=recompiling),
        compilations=lambda: compiled,
    )
    assert compiled > 0
    assert max(info.captured.samples_ms) < 35.0
    assert any("which were left out" in warning for warning in info.warnings)
    assert not info.speedup.significant


def test_recompiling_in_most_rounds_is_not_steady() -> None:
    machine = Machine(noise=0.01)
    compiled = 0

    def recompiling(call: int) -> float:
        nonlocal compiled
        compiled += call % 3 != 0
        return 0.0

    info = run(
        machine,
        machine.callee("eager", 20.0),
        machine.callee("captured", 20.0, extra=recompiling),
        compilations=lambda: compiled,
    )
    assert info.warnings[0].startswith("not steady")
    assert len(info.eager.samples_ms) >= MIN_ROUNDS


def test_recompiling_always_ends_and_leaves_null() -> None:
    machine = Machine()
    calls = iter(range(10**9))
    info = run(
        machine,
        machine.callee("eager", 9_000.0),
        machine.callee("captured", 9_000.0),
        compilations=lambda: next(calls),
    )
    assert info.eager.samples_ms == ()
    assert not info.speedup.significant
    saved = json.loads(json.dumps(to_dict(info), allow_nan=False))
    assert saved["eager"]["median_ms"] is None
    assert saved["speedup"]["ratio"] is None
    assert from_dict(ThroughputInfo, saved).warnings == info.warnings


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_off_meanwhile_and_restored(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    machine = Machine()
    seen: set[bool] = set()
    callee = machine.callee("eager", 20.0, extra=lambda call: seen.add(gc.isenabled()) or 0.0)  # type: ignore[func-returns-value]
    run(machine, callee, callee)
    assert seen == {False}
    assert gc.isenabled() == enabled


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("failing_call", [0, 40])
def test_exceptions_propagate_and_restore_the_collector(failing_call: int) -> None:
    gc.enable()
    machine = Machine(noise=0.05)

    def fail(call: int) -> float:
        if call == failing_call:
            raise ZeroDivisionError("in the model")
        return 0.0

    with pytest.raises(ZeroDivisionError, match="in the model"):
        run(machine, machine.callee("eager", 20.0), machine.callee("captured", 20.0, extra=fail))
    assert gc.isenabled()


def test_batch_of_unknown_size_has_no_samples_per_second() -> None:
    machine = Machine()
    info = measure(
        machine.callee("eager", 20.0),
        machine.callee("captured", 10.0),
        clock=machine,
        seconds=1.0,
        samples_per_call=None,
    )
    assert info.eager.samples_per_s is None
    assert info.captured.samples_per_s is None


class FakeDevice:
    """A device that works off its queue only when synchronised; notes what happened in which order."""

    def __init__(self) -> None:
        self.queue: list[tuple[str, FakeEvent | float]] = []
        self.ms = 0.0
        self.log: list[str] = []

    def launch(self) -> None:
        self.log.append("call")
        self.queue.append(("work", 2.0))

    def synchronize(self) -> None:
        self.log.append("synchronize")
        for _, item in self.queue:
            if isinstance(item, FakeEvent):
                item.at = self.ms
            else:
                self.ms += item
        self.queue.clear()


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.at: float | None = None

    def record(self, stream: object) -> None:
        assert stream == "stream"
        self.device.log.append("record")
        self.device.queue.append(("event", self))

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.at is not None, "the event was read before it took place"
        assert end.at is not None, "the event was read before it took place"
        return end.at - self.at


def test_device_clock_times_the_work_and_not_its_launch() -> None:
    device = FakeDevice()
    clock = DeviceClock(lambda: FakeEvent(device), device.synchronize, lambda: "stream")
    device.launch()  # work of before must not count
    device.log.clear()
    assert clock.time(device.launch, 3) == pytest.approx(2.0)
    assert device.log == ["synchronize", "record", "call", "call", "call", "record", "synchronize"]
    assert clock.name == "device events"


def test_host_clock_synchronizes_around_the_block() -> None:
    device = FakeDevice()
    HostClock(device.synchronize).time(device.launch, 2)
    assert device.log == ["synchronize", "call", "call", "synchronize"]


def pretend_accelerator(monkeypatch: pytest.MonkeyPatch, device: FakeDevice, event: Callable[..., object]) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda which: device.synchronize())
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda which: "stream")
    monkeypatch.setattr(torch, "Event", event)


def test_clock_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clock_for(torch.device("cpu")).name == "host clock"
    device = FakeDevice()
    pretend_accelerator(monkeypatch, device, lambda which, enable_timing: FakeEvent(device))
    clock = clock_for(torch.device("cuda", 1))
    assert clock.name == "device events"
    assert clock.time(device.launch, 4) == pytest.approx(2.0)


def test_clock_for_a_device_without_timing_events(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()

    def no_event(which: torch.device, enable_timing: bool) -> object:
        raise NotImplementedError("no timing on this back end")

    pretend_accelerator(monkeypatch, device, no_event)
    clock = clock_for(torch.device("cuda"))
    assert clock.name == "host clock"
    device.log.clear()
    clock.time(device.launch, 1)
    assert device.log == ["synchronize", "call", "synchronize"]


def test_clock_for_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    with pytest.raises(ValueError, match="no accelerator"):
        clock_for(torch.device("cuda"))


def test_on_the_real_clock() -> None:
    a = torch.ones(16, 16)
    info = measure(
        lambda: a @ a,
        lambda: torch.relu(a @ a),
        clock=clock_for(torch.device("cpu")),
        seconds=0.3,
        samples_per_call=16,
    )
    assert info.clock == "host clock"
    assert len(info.eager.samples_ms) == len(info.captured.samples_ms) >= MIN_ROUNDS
    assert min(info.eager.samples_ms + info.captured.samples_ms) > 0
    assert info.speedup.ci_low <= info.speedup.ratio <= info.speedup.ci_high
    assert info.eager.samples_per_s == pytest.approx(16_000 / info.eager.median_ms)
