"""Does the timer call equals equal, and does it find a planted slowdown of 5 %?

Run: ``python benchmarks/validate_timer.py [--runs 100] [--seconds 1.6] [--slowdown 0.05]``. Each run measures a small
model with the project's own ``measure``: against itself, which must come out as "not significant", and against itself
plus a spin of 5 % of the call's time, which must come out as significantly slower. Both are done on the machine as it
is and with one core kept busy by another process. Prints each count with its 95 % interval (Clopper-Pearson) and
exits 1 if one is below 95 of 100. The spin lasts a fixed time, so under a busy core, where calls take longer, it is
less than 5 % of a call: its share is taken anew before each series, and printed.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from tracebench.record import ThroughputInfo
from tracebench.throughput.clock import HostClock
from tracebench.throughput.measure import measure
from tracebench.throughput.monitor import default_monitors, waits
from tracebench.throughput.statistics import median

#: Of a hundred runs, at least so many must come out right.
WANTED = 0.95


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="measurements in each of the four series")
    parser.add_argument("--seconds", type=float, default=1.6, help="measuring budget of one")
    parser.add_argument("--slowdown", type=float, default=0.05, help="share of a call that the planted spin takes")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.LayerNorm(512)).eval()
    x = torch.randn(256, 512)
    right = True
    with torch.no_grad():
        for busy in (False, True):
            with _busy_core() if busy else contextlib.nullcontext():
                for planted in (False, True):
                    right &= _series(lambda: model(x), asked, busy=busy, planted=planted)
    raise SystemExit(not right)


def _series(call: Callable[[], object], asked: argparse.Namespace, *, busy: bool, planted: bool) -> bool:
    """Run one series and print its line; return whether enough of its runs came out right."""
    call_s = _call_seconds(call)
    spin_s = asked.slowdown * call_s

    def slowed() -> object:
        result = call()
        until = time.perf_counter() + spin_s
        while time.perf_counter() < until:
            pass
        return result

    good, widths, ratios, warned, started = 0, [], [], 0, time.perf_counter()
    for seed in range(asked.runs):
        info = _measured(call, slowed if planted else call, asked.seconds, seed)
        found = info.speedup
        good += (found.significant and found.ratio < 1) if planted else not found.significant
        widths.append((found.ci_high - found.ci_low) / 2)
        ratios.append(found.ratio)
        warned += any(warning.startswith("busy machine") for warning in info.warnings)
    low, high = clopper_pearson(good, asked.runs)
    name = f"{asked.slowdown:.0%} slower, found" if planted else "equal, not significant"
    print(
        f"{'one core busy' if busy else 'machine as it is'}; {name}: {good} of {asked.runs} [{low:.3f}, {high:.3f}]; "
        f"call {call_s * 1e3:.2f} ms, median ratio {median(ratios):.4f}, median half-width {median(widths):.2%}, "
        f"'busy machine' said in {warned}, {(time.perf_counter() - started) / asked.runs:.2f} s a run",
        flush=True,
    )
    return good >= WANTED * asked.runs


def _measured(eager: Callable[[], object], captured: Callable[[], object], seconds: float, seed: int) -> ThroughputInfo:
    return measure(
        eager,
        captured,
        clock=HostClock(),
        seconds=seconds,
        samples_per_call=None,
        seed=seed,
        monitors=default_monitors(),
        waits=waits,
    )


def _call_seconds(call: Callable[[], object]) -> float:
    """Return the median time of a warm call."""
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times[50:])


@contextlib.contextmanager
def _busy_core() -> Iterator[None]:
    """Keep one core busy with another process."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def clopper_pearson(good: int, runs: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share, from the tails of the binomial distribution by bisection.

    Clopper and Pearson, "The use of confidence or fiducial limits", 1934: the shares under which so many successes or
    more (or fewer) have a probability of 2.5 %.
    """

    def at_least(share: float) -> float:
        log = torch.distributions.Binomial(runs, torch.tensor(share, dtype=torch.float64)).log_prob(
            torch.arange(good, runs + 1, dtype=torch.float64)
        )
        return float(log.exp().sum())

    def at_most(share: float) -> float:
        log = torch.distributions.Binomial(runs, torch.tensor(share, dtype=torch.float64)).log_prob(
            torch.arange(0, good + 1, dtype=torch.float64)
        )
        return float(log.exp().sum())

    def solve(rises: Callable[[float], float]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if rises(middle) < 0 else (low, middle)
        return (low + high) / 2

    lower = 0.0 if good == 0 else solve(lambda share: at_least(share) - 0.025)
    upper = 1.0 if good == runs else solve(lambda share: 0.025 - at_most(share))
    return lower, upper


if __name__ == "__main__":
    main()
