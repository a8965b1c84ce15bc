"""How much time and memory a case may take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: Share of the memory available at the start that a case may take if no limit is given.
DEFAULT_SHARE = 0.9


@dataclass(frozen=True)
class Limits:
    """``seconds`` of wall time and ``memory_gb`` (10^9 bytes, resident) for a case; None: 90 % of what is free."""

    seconds: float
    memory_gb: float | None = None

    def memory_bytes(self) -> int | None:
        """Return the memory limit in bytes, or None where the system does not tell what is available."""
        if self.memory_gb is not None:
            return int(self.memory_gb * 1e9)
        available = available_bytes()
        return None if available is None else int(available * DEFAULT_SHARE)


def available_bytes() -> int | None:
    """Return the memory that can still be had, by the system's and the control group's account (Linux)."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
            found.append(max(0, int(limit) - used))
    except OSError:
        pass  # another system, or no control groups: what was found so far is what is known
    return min(found, default=None)


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process and its descendants, or None where it cannot be told."""
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
    total = None
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
            total = (total or 0) + pages * page
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
        except OSError:
            continue  # it ended meanwhile, or the system has no /proc
    return total


def out_of_memory_kills() -> int:
    """Return how many processes the system has killed for want of memory so far (Linux; elsewhere 0)."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass  # not Linux: such kills cannot be told from others
    return 0
