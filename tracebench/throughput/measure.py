"""Measure eager against captured in alternating rounds of one process.

A round times one block of eager calls and one block of captured calls. Of each two rounds, one starts with eager and
one with captured, and a seeded coin decides which comes first, as in a randomised block design: slow drift cancels, and
a disturbance that returns every other round favours neither. Alternation and repeated, randomised measurement follow
Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013; how many calls make a block follows pyperf: long
against the timer. What another process did to a round is not noise to average over: such rounds are left out.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracebench.record import Speedup, ThroughputInfo, Timing, Watched
from tracebench.throughput import advice
from tracebench.throughput.advice import WANTED_ROUNDS
from tracebench.throughput.clock import Clock
from tracebench.throughput.monitor import Monitor, Reading
from tracebench.throughput.statistics import FEWEST_FOR_RANKS, half_width, iqr, median, paired_speedup

#: Rounds that are measured whatever they cost: fewer have no distribution-free 99 % interval.
MIN_ROUNDS = FEWEST_FOR_RANKS
#: Rounds after which nothing is left to gain: more would be disturbed by the same things.
MAX_ROUNDS = 400
#: Measuring ends early when the ratio is known to this fraction (half the width of its interval) ...
TIGHT = 0.005
#: ... which is looked at when so many rounds are done, and again each time there are a quarter more. Seldom, because
#: every look is a chance to stop on an interval that is narrow by luck.
FIRST_LOOK = 20
NEXT_LOOK = 1.25
#: A block lasts at least as long as its clock needs, and this many times the clock's resolution, so that the error of
#: reading it is below 0.1 %. Not much longer: of many short blocks fewer are hit by a disturbance than of few long.
BLOCK_RESOLUTIONS = 1000
#: Before a block that is shorter than this, a call brings the callable's own data back into the caches.
COLD_MS = 10.0
#: Share of the budget in which each callable must have warmed up.
WARM_UP_SHARE = 0.15
#: Calls that each callable gets to warm up whatever they cost. TorchScript compiles during its second.
WARM_UP_CALLS = 3
#: A warm-up window: at least this many calls and seconds.
WINDOW_CALLS = 5
WINDOW_S = 0.02
#: A callable is steady, no longer getting faster, when a window's median is at least this fraction of the last one's.
STEADY = 0.95
#: A round is disturbed if a thread of this process was ready and had no processor for more than this share of it.
#: Below lies what waking up costs threads that work together, each time a little.
CALM = 0.03
#: Where fewer than this share of the rounds were calm, the calmest that make up the share count.
CALM_SHARE = 0.2
#: Monitors look again when this much time has passed since they last did.
LOOK_S = 0.25

Callee = Callable[[], object]


@dataclass(frozen=True)
class _WarmUp:
    """How warming up one callable went; ``call_ms`` is its fastest recent call."""

    call_ms: float
    calls: int
    elapsed_s: float
    steady: bool


@dataclass(frozen=True)
class _Rounds:
    """Milliseconds per call of the rounds that count, and how many rounds were run and thrown away.

    ``discarded`` had a compilation in them; in ``disturbed`` a thread waited for a processor. Of these the calmest
    count where too few others are left: ``kept_disturbed``.
    """

    eager_ms: tuple[float, ...]
    captured_ms: tuple[float, ...]
    attempted: int
    discarded: int
    disturbed: int
    kept_disturbed: int


def measure(
    eager: Callee,
    captured: Callee,
    *,
    clock: Clock,
    seconds: float,
    samples_per_call: int | None,
    compilations: Callable[[], int] = lambda: 0,
    seed: int = 0,
    rewind: Callable[[int], None] = lambda number: None,
    monitors: Sequence[Monitor] = (),
    waits: Callable[[], Mapping[int, float]] = dict,
) -> ThroughputInfo:
    """Return steady-state latency of both callables and their speedup.

    Both take no argument: they are bound to their inputs. What they raise propagates. Python's cyclic garbage collector
    is off while they run, and as it was before afterwards.

    Args:
        clock: times blocks, and tells the budget's time.
        seconds: budget for everything here. ``WARM_UP_CALLS`` calls and ``MIN_ROUNDS`` rounds are done even if they
            take longer, with a warning; less is used when the ratio is known well enough (``TIGHT``).
        samples_per_call: samples in a batch; None where that cannot be told.
        compilations: returns how many compilations took place so far in this process. A round during which it changes
            is thrown away.
        seed: decides the order within rounds.
        rewind: called with the number of the round before each block, so that both begin it with the same inputs.
        monitors: what is watched over the rounds.
        waits: returns the milliseconds for which each thread of this process has waited for a processor so far. A round
            with a thread that waited (``CALM``) is left out; where nearly all are like that, those with the shortest
            waits count. Being chosen by what the system did, not by how long a block took, rounds favour neither side.

    What belongs to capturing, and memory, is left null. If every round had to be thrown away, the samples are empty
    and the figures NaN, which a record shows as null.
    """
    started = clock.now()
    with _collector_paused():
        warm_ups = [_warm_up(fn, clock, compilations, seconds * WARM_UP_SHARE) for fn in (eager, captured)]
        remaining_s = max(seconds - (clock.now() - started), 0.0)
        calls = [
            _calls_per_block(fn, clock, warm_up.call_ms, _block_ms(clock, remaining_s))
            for fn, warm_up in zip((eager, captured), warm_ups, strict=True)
        ]
        watch = _Watch(monitors, clock)
        rounds = _run_rounds(
            (eager, captured),
            calls,
            [warm_up.call_ms for warm_up in warm_ups],
            clock,
            started + seconds,
            compilations,
            seed,
            rewind,
            watch,
            waits,
        )
        elapsed_s = clock.now() - started
    said = [warning for monitor, seen in watch.seen() for warning in monitor.judge(seen)]
    return ThroughputInfo(
        eager=_timing(rounds.eager_ms, samples_per_call),
        captured=_timing(rounds.captured_ms, samples_per_call),
        speedup=paired_speedup(rounds.eager_ms, rounds.captured_ms),
        clock=clock.name,
        watched=tuple(Watched(monitor.name, dict(seen[0]), dict(seen[-1])) for monitor, seen in watch.seen()),
        warnings=(*_warnings(warm_ups, rounds, elapsed_s, seconds), *said),
    )


class _Watch:
    """Has the monitors look now and then, and keeps what they saw."""

    def __init__(self, monitors: Sequence[Monitor], clock: Clock) -> None:
        self._monitors = monitors
        self._clock = clock
        self._readings: list[list[Reading]] = [[] for _ in monitors]
        self._looked = -math.inf

    def look(self, *, now: bool = False) -> None:
        """Look if it is time to, or ``now``."""
        if not now and self._clock.now() - self._looked < LOOK_S:
            return
        for monitor, readings in zip(self._monitors, self._readings, strict=True):
            readings.append(monitor.read())
        self._looked = self._clock.now()

    def seen(self) -> list[tuple[Monitor, list[Reading]]]:
        """Return each monitor with its readings."""
        return list(zip(self._monitors, self._readings, strict=True))


def break_even_calls(capture_seconds: float, speedup: Speedup, eager_ms: float, captured_ms: float) -> int | None:
    """Return after how many calls the time saved makes up for ``capture_seconds``.

    That is ``capture_seconds / (eager - captured)``, rounded up, with times per call in milliseconds. None where the
    capture is not significantly faster, or where a figure is missing (NaN).
    """
    saved_ms = eager_ms - captured_ms
    if not speedup.significant or not speedup.ratio > 1.0 or not saved_ms > 0.0 or not math.isfinite(capture_seconds):
        return None
    # Seconds to milliseconds leaves a rounding error that must not cost a call: 0.3 s at 0.1 ms a call is 3000 calls.
    return math.ceil(round(capture_seconds * 1000.0 / saved_ms, 6))


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Collect garbage now and then no more until the end, so that no block pays for another's."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _warm_up(fn: Callee, clock: Clock, compilations: Callable[[], int], limit_s: float) -> _WarmUp:
    """Call ``fn`` in windows until one is not faster than the one before and nothing compiled.

    When ``limit_s`` is over before that, the last two calls take the place of windows: calls that slow are long against
    the noise.
    """
    started = clock.now()
    times: list[float] = []
    previous: float | None = None
    while True:
        compiled, window_started, begin = compilations(), clock.now(), len(times)
        while len(times) - begin < WINDOW_CALLS or clock.now() - window_started < WINDOW_S:
            times.append(clock.time(fn, 1))
            elapsed_s = clock.now() - started
            if len(times) >= WARM_UP_CALLS and elapsed_s >= limit_s:
                settled = compilations() == compiled and times[-1] >= STEADY * times[-2]
                return _WarmUp(min(times[-2:]), len(times), elapsed_s, steady=settled)
        window = times[begin:]
        current = median(window)
        undisturbed = compilations() == compiled
        if undisturbed and previous is not None and current >= STEADY * previous:
            return _WarmUp(min(window), len(times), clock.now() - started, steady=True)
        previous = current if undisturbed else None


def _block_ms(clock: Clock, remaining_s: float) -> float:
    """Return how long a block should last: ``WANTED_ROUNDS`` must fit, more than ``MAX_ROUNDS`` need not."""
    per_block = remaining_s * 1000.0 / 2
    long_enough = max(clock.block_ms, BLOCK_RESOLUTIONS * clock.resolution_ms)
    return min(max(long_enough, per_block / MAX_ROUNDS), per_block / WANTED_ROUNDS)


def _calls_per_block(fn: Callee, clock: Clock, call_ms: float, block_ms: float) -> int:
    """Return how many calls last ``block_ms``.

    A lone call is a poor guide to many (it pays for an idle device and the clock's own cost), so the guess is tried,
    and raised while the block comes out at less than half its length.
    """
    calls = _at_least_one(block_ms / call_ms) if call_ms > 0 else 1
    # A guess of few calls needs no trial: it is already long against the clock, and trying costs.
    while calls > 1:
        took_ms = clock.time(fn, calls) * calls
        if took_ms >= block_ms / 2:
            break
        calls = _at_least_one(calls * min(block_ms / took_ms, 10.0) if took_ms > 0 else calls * 10.0)
    return calls


def _at_least_one(calls: float) -> int:
    return max(1, round(calls))


def _run_rounds(
    callees: tuple[Callee, Callee],
    calls: list[int],
    calls_ms: list[float],
    clock: Clock,
    deadline: float,
    compilations: Callable[[], int],
    seed: int,
    rewind: Callable[[int], None],
    watch: _Watch,
    waits: Callable[[], Mapping[int, float]],
) -> _Rounds:
    """Run rounds until the budget is spent, the ratio is known to ``TIGHT``, or ``MAX_ROUNDS`` count."""
    #: (eager, captured) in milliseconds per call, and the share of the round in which a thread waited.
    kept: list[tuple[tuple[float, float], float]] = []
    orders = _orders(random.Random(seed))
    attempted = discarded = calm = 0
    next_look = FIRST_LOOK
    short = [count * call_ms < COLD_MS for count, call_ms in zip(calls, calls_ms, strict=True)]
    watch.look(now=True)
    while calm < MAX_ROUNDS:
        # Where every round recompiles, waiting for MIN_ROUNDS good ones would not end.
        enough = len(kept) >= MIN_ROUNDS or attempted >= 2 * MIN_ROUNDS
        if enough and clock.now() >= deadline:
            break
        compiled = compilations()
        took = [0.0, 0.0]
        waited = 0.0
        for which in next(orders):
            before = waits()
            if short[which]:
                callees[which]()
            rewind(attempted)
            took[which] = clock.time(callees[which], calls[which])
            waited += max((ms - before.get(thread, 0.0) for thread, ms in waits().items()), default=0.0)
        attempted += 1
        watch.look()
        # The young generations only: cheap, and enough that cycles left by the calls do not pile up.
        gc.collect(1)
        if compilations() != compiled:
            discarded += 1
            continue
        lasted = sum(ms * count for ms, count in zip(took, calls, strict=True))
        share = waited / lasted if lasted > 0 else 0.0
        kept.append(((took[0], took[1]), share))
        calm += share <= CALM
        if share <= CALM and calm >= next_look:
            next_look = math.ceil(calm * NEXT_LOOK)
            if half_width(paired_speedup(*_sides(kept, CALM))) <= TIGHT:
                break
    watch.look(now=True)
    wanted = min(len(kept), max(MIN_ROUNDS, math.ceil(CALM_SHARE * len(kept))))
    limit = CALM if calm >= wanted else sorted(share for _, share in kept)[wanted - 1]
    eager_ms, captured_ms = _sides(kept, limit)
    return _Rounds(eager_ms, captured_ms, attempted, discarded, len(kept) - calm, len(eager_ms) - calm)


def _sides(
    rounds: Sequence[tuple[tuple[float, float], float]], limit: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the times of each side in the rounds with a wait of at most ``limit``."""
    times = [times for times, share in rounds if share <= limit]
    return tuple(eager for eager, _ in times), tuple(captured for _, captured in times)


def _orders(rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yield the order within each round: AB and BA once in every two rounds, in random sequence."""
    while True:
        first = rng.randrange(2)
        yield (first, 1 - first)
        yield (1 - first, first)


def _timing(samples_ms: tuple[float, ...], samples_per_call: int | None) -> Timing:
    middle = median(samples_ms)
    per_second = samples_per_call * 1000.0 / middle if samples_per_call is not None and samples_ms else None
    return Timing(
        median_ms=middle,
        iqr_ms=iqr(samples_ms),
        samples_ms=samples_ms,
        samples_per_s=per_second,
    )


def _warnings(warm_ups: list[_WarmUp], rounds: _Rounds, elapsed_s: float, budget_s: float) -> tuple[str, ...]:
    found: list[str | None] = [
        advice.recompiled(rounds.discarded, rounds.attempted),
        advice.disturbed(rounds.disturbed, rounds.attempted, rounds.kept_disturbed),
    ]
    named = (("eager", warm_ups[0], rounds.eager_ms), ("captured", warm_ups[1], rounds.captured_ms))
    for name, warm_up, samples_ms in named:
        if not warm_up.steady:
            found.append(advice.unsettled(name, warm_up.calls, warm_up.elapsed_s))
        found.append(advice.noisy(name, samples_ms))
        found.append(advice.drifting(name, samples_ms))
    found.append(advice.too_few_rounds(len(rounds.eager_ms), elapsed_s, budget_s))
    return tuple(warning for warning in found if warning is not None)
