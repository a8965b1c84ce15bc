"""What goes wrong in the machine while it measures is reported, each by construction."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tracebench.record import ThroughputInfo
from tracebench.throughput import monitor
from tracebench.throughput.measure import MIN_ROUNDS, measure
from tracebench.throughput.monitor import ClockFrequency, Monitor, Neighbours
from tracebench.timingwords import KINDS, kind_of

from .test_throughput import Machine


def run(machine: Machine, *monitors: Monitor, waits: Callable[[], dict[int, float]] = dict) -> ThroughputInfo:
    callees = machine.callee("eager", 20.0), machine.callee("captured", 20.0)
    return measure(*callees, clock=machine, seconds=4.0, samples_per_call=1, monitors=monitors, waits=waits)


def kinds(info: ThroughputInfo) -> list[str | None]:
    return [kind_of(warning) for warning in info.warnings]


def test_a_throttled_clock_is_reported() -> None:
    machine = Machine(noise=0.02)
    info = run(machine, ClockFrequency(lambda: 3000.0 if machine.seconds < 2.0 else 1800.0))
    (warning,) = info.warnings
    assert warning.startswith("throttled: the processor's clock fell from 3000 to 1800 MHz")
    assert "then measure again" in warning
    (watched,) = info.watched
    assert (watched.name, watched.before, watched.after) == ("processor clock", {"mhz": 3000.0}, {"mhz": 1800.0})


def test_a_clock_that_flutters_or_cannot_be_read_is_not_reported() -> None:
    machine = Machine(noise=0.02)
    speeds = itertools.cycle([3000.0, 2900.0, 3100.0])
    assert run(machine, ClockFrequency(lambda: next(speeds))).warnings == ()
    info = run(machine, ClockFrequency(lambda: None))
    assert info.warnings == ()
    assert [(watched.before, watched.after) for watched in info.watched] == [({}, {})]


def neighbours(machine: Machine, others: float, stolen: float = 0.0) -> Neighbours:
    """Return a monitor of a machine on which others use that many cores and this process one."""
    return Neighbours(
        used=lambda: ((1.0 + others) * machine.seconds, stolen * machine.seconds),
        own=lambda: machine.seconds,
        now=machine.now,
    )


def test_a_noisy_neighbour_is_reported_with_what_it_took() -> None:
    machine = Machine(noise=0.02)
    assert run(machine, neighbours(machine, 0.1)).warnings == ()
    (warning,) = run(machine, neighbours(machine, 0.8)).warnings
    assert warning.startswith("busy machine: other processes kept 0.8 of ")
    (warning,) = run(machine, neighbours(machine, 0.0, stolen=0.5)).warnings
    assert "the host of this virtual machine withheld 0.5 of " in warning
    assert run(machine, Neighbours(used=lambda: None)).warnings == ()


@pytest.fixture
def busy_neighbour() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(monitor.processor_seconds() is None, reason="the system does not tell how busy its processors are")
@pytest.mark.usefixtures("busy_neighbour")
def test_a_real_neighbour_is_reported() -> None:
    neighbours = Neighbours()
    before = neighbours.read()
    time.sleep(1.0)
    said = neighbours.judge([before, neighbours.read()])
    assert any(warning.startswith("busy machine: other processes kept") for warning in said)


def test_rounds_in_which_the_process_waited_are_left_out() -> None:
    """Every third eager block takes twice as long, because it waited so long for a processor."""
    machine = Machine(noise=0.005)
    waited = 0.0

    def hit(call: int) -> float:
        nonlocal waited
        late = 20.0 if call % 3 == 0 else 0.0
        waited += late
        return late

    info = measure(
        machine.callee("eager", 20.0, extra=hit),
        machine.callee("captured", 20.0),
        clock=machine,
        seconds=6.0,
        samples_per_call=1,
        waits=lambda: {1: waited, 2: 0.0},
    )
    assert max(info.eager.samples_ms) < 22.0
    assert not info.speedup.significant
    assert any("rounds this process waited for a processor, which were left out" in text for text in info.warnings)


def test_where_every_round_waited_the_calmest_count() -> None:
    machine = Machine(noise=0.005)
    steps = itertools.count(start=1)
    waited = 0.0

    def more() -> dict[int, float]:
        nonlocal waited
        waited += 2.0 + next(steps) / 100
        return {1: waited}

    info = run(machine, waits=more)
    assert len(info.eager.samples_ms) >= MIN_ROUNDS
    assert "busy machine" in kinds(info)
    assert any(f"of which the {len(info.eager.samples_ms)} calmest count" in text for text in info.warnings)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no account of waits here")
def test_waits_are_of_this_process_and_only_grow() -> None:
    first, second = monitor.waits(), monitor.waits()
    assert os.getpid() in first
    assert all(second[thread] >= ms >= 0.0 for thread, ms in first.items() if thread in second)


def test_every_warning_is_of_a_known_kind() -> None:
    machine = Machine(noise=0.4)
    compiled = itertools.count()
    info = measure(
        machine.callee("eager", 900.0, extra=lambda call: 4000.0 * 0.8**call),
        machine.callee("captured", 20.0),
        clock=machine,
        seconds=1.0,
        samples_per_call=1,
        compilations=lambda: next(compiled) // 7,
        monitors=[neighbours(machine, 1.0)],
        waits=lambda: {1: machine.seconds * 500},
    )
    assert None not in kinds(info)
    assert {"not warmed up", "busy machine", "noisy", "few rounds"} <= set(kinds(info))
    assert kind_of("eager: noisy, an old record says") is None
    assert all(KINDS.values())
