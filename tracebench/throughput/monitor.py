"""What went on in the machine while calls were timed: read before, between and after the rounds.

Reading takes place outside the timed blocks. A monitor that cannot read anything here returns empty readings, which
the record keeps, so that "nothing was wrong" and "nobody looked" stay different.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

#: What one look found: names to values, each name with its unit; empty where nothing can be read.
Reading = Mapping[str, float | str | None]

#: A clock that falls below this share of its own best is throttled.
THROTTLED = 0.85
#: Cores' worth of time that others may take before it is worth a word.
BUSY_CORES = 0.15
#: Seconds over which the system's count of used time (in steps of 10 ms) tells such a share.
_SHORTEST_S = 0.5


class Monitor(Protocol):
    """Looks at one thing."""

    #: What it looks at, for the record.
    name: str

    def read(self) -> Reading:
        """Look once; empty where there is nothing to read. Costs well below a millisecond."""
        ...

    def judge(self, readings: Sequence[Reading]) -> list[str]:
        """Return warnings (see ``timingwords``) from what was read, in order, over the rounds."""
        ...


class ClockFrequency:
    """The processor's clock. ``mhz`` returns it in MHz, or None where it cannot be read."""

    name = "processor clock"

    def __init__(self, mhz: Callable[[], float | None] | None = None) -> None:
        self._mhz = mhz or processor_mhz

    def read(self) -> Reading:
        """Return the clock in MHz, the mean over the processors this process may use."""
        found = self._mhz()
        return {} if found is None else {"mhz": found}

    def judge(self, readings: Sequence[Reading]) -> list[str]:
        """Warn of a clock that was low for a tenth of the readings, against the tenth with the highest."""
        seen = [float(value) for reading in readings if (value := reading.get("mhz")) is not None]
        if len(seen) < 2:
            return []
        low, high = np.percentile(seen, [10, 90])
        if low >= THROTTLED * high:
            return []
        return [
            f"throttled: the processor's clock fell from {high:.0f} to {low:.0f} MHz while this was measured, so "
            "milliseconds are of a slower machine (the ratio is of alternating blocks and holds better); let it cool, "
            "or fix the clock (cpupower frequency-set -g performance), then measure again"
        ]


class Neighbours:
    """Processor time that others take on the processors this process may use.

    ``used`` returns (seconds used by everyone, seconds taken by the host of a virtual machine), or None where the
    system does not tell. ``own`` returns the seconds that this process has used, ``now`` the time.
    """

    name = "other processes"

    def __init__(
        self,
        used: Callable[[], tuple[float, float] | None] | None = None,
        own: Callable[[], float] = time.process_time,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._used = used or processor_seconds
        self._own = own
        self._now = now

    def read(self) -> Reading:
        """Return seconds so far, counted from any fixed moment."""
        found = self._used()
        if found is None:
            return {}
        return {"used_s": found[0], "stolen_s": found[1], "own_s": self._own(), "at_s": self._now()}

    def judge(self, readings: Sequence[Reading]) -> list[str]:
        """Warn of others that used more than ``BUSY_CORES`` on average, and of a host that took as much."""
        if len(readings) < 2 or not readings[0] or not readings[-1]:
            return []
        passed = {name: float(readings[-1][name] or 0) - float(readings[0][name] or 0) for name in readings[0]}
        if passed["at_s"] < _SHORTEST_S:
            return []
        others = (passed["used_s"] - passed["own_s"]) / passed["at_s"]
        stolen = passed["stolen_s"] / passed["at_s"]
        cores = len(_processors())
        said = []
        if others > BUSY_CORES:
            said.append(
                f"busy machine: other processes kept {others:.1f} of {cores} cores busy while this was measured; leave "
                "the machine to this run (fewer jobs at once), then measure again"
            )
        if stolen > BUSY_CORES:
            said.append(
                f"busy machine: the host of this virtual machine withheld {stolen:.1f} of {cores} cores while this was "
                "measured; measure again at another time or on a machine of your own"
            )
        return said


def default_monitors() -> tuple[Monitor, ...]:
    """Return what is watched on every machine."""
    return (Neighbours(), ClockFrequency())


def processor_seconds() -> tuple[float, float] | None:
    """Return seconds that this process's processors were in use and withheld by a host, since boot (Linux)."""
    wanted = {f"cpu{index}" for index in _processors()}
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    used = stolen = 0
    for line in lines:
        name, *fields = line.split()
        if name in wanted:
            # user, nice, system, idle, iowait, irq, softirq, steal; what guests use is part of user and nice.
            user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
            used += user + nice + system + irq + softirq
            stolen += steal
    # All zero where a sandbox has a file of that name and no counts.
    return (used / tick, stolen / tick) if used else None


def waits() -> dict[int, float]:
    """Return for how many milliseconds each thread of this process has been ready to run and had no processor (Linux).

    Empty where the kernel keeps no such account.
    """
    found = {}
    try:
        for task in Path("/proc/self/task").iterdir():
            # A thread may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[int(task.name)] = int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e6
    except (OSError, IndexError, ValueError):
        return {}
    return found


def processor_mhz() -> float | None:
    """Return the clock of this process's processors as the kernel's cpufreq tells it (Linux), their mean in MHz."""
    found = []
    for index in _processors():
        path = Path(f"/sys/devices/system/cpu/cpu{index}/cpufreq/scaling_cur_freq")
        try:
            found.append(int(path.read_text(encoding="ascii")) / 1000)
        except (OSError, ValueError):
            return None
    return sum(found) / len(found) if found else None


def _processors() -> list[int]:
    """Return the numbers of the processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
