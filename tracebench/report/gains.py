"""What the front end costs and what a compiler brings, told apart: cases that differ in their executor alone.

- front-end cost: captured time / eager time under ``executor=replay``. 1.05x means that the graphs, run as captured,
  take 5 % longer than eager.
- compiler gain: the speedup under another executor / the speedup under replay. 1.30x means that the executor makes
  the front end's graphs 1.3 times as fast as they are as captured. Gain / cost is the speedup over eager.

The interval of a gain combines the two speedups' own intervals, in logarithms: the distance from the estimate to
each end is the root of the sum of the squared distances to the ends that push it there (the MOVER method: Zou and
Donner, "Construction of confidence limits about effect measures: a general approach", Statistics in Medicine 27, 2008).
It takes two things for granted: that the errors of the two runs are independent, and that whatever else differed
between the runs (load, clock) slowed eager and the capture by the same factor. How much eager itself differed is told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tracebench.record import Record, Speedup
from tracebench.report import facts
from tracebench.report.text import cells, clean, grid, ratio, wrap

HEADINGS = ("executor", "front-end cost", "compiler gain", "speedup")
#: Eager's times of two runs that differ by more than this factor are told: the quotient of the speedups is in doubt.
ALIKE = 1.1


@dataclass(frozen=True)
class Factor:
    """A quotient of times with its interval; ends are null where one of the speedups has no interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def significant(self) -> bool | None:
        """Whether 1 lies outside the interval."""
        return None if self.low is None or self.high is None else self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return ratio(self.value, self.low, self.high, self.significant)


@dataclass(frozen=True)
class Gain:
    """A case under an executor beside the same case under replay; null where a figure is missing on either side."""

    record: Record
    replay: Record
    cost: Factor | None
    gain: Factor | None
    #: Eager's median in the run of ``record`` / that in the run of ``replay``.
    eager: float | None


def gains(records: Sequence[Record]) -> list[Gain]:
    """Return each of ``records`` that ran otherwise than by plain replay and has such a case beside it.

    They come in the order of the cases under replay. The null front end has no graphs and is left out.
    """
    alike: dict[str, list[Record]] = {}
    for record in records:
        alike.setdefault(_same(record), []).append(record)
    found = []
    for replay in records:
        if facts.executor(replay.case) != "replay" or replay.case.get("frontend") == "eager":
            continue
        for record in alike[_same(replay)]:
            if facts.executor(record.case) != "replay":
                times = [side.throughput.eager.median_ms if side.throughput else None for side in (record, replay)]
                drift = times[0] / times[1] if times[0] and times[1] else None
                found.append(Gain(record, replay, cost(replay), compiler_gain(record, replay), drift))
    return found


def _same(record: Record) -> str:
    """Return what two records have in common that differ in their executor alone."""
    case = {name: value for name, value in record.case.items() if name not in ("executor", "executor_settings")}
    return facts.fixed_text([case, facts.environment(record, "torch"), facts.device_name(record)])


def cost(replay: Record) -> Factor | None:
    """Return the front-end cost, which a case under replay has by itself."""
    speedup = _speedup(replay)
    if speedup is None:
        return None
    low, high = _ends(speedup)
    return Factor(1 / speedup.ratio, 1 / high if high else None, 1 / low if low else None)


def compiler_gain(record: Record, replay: Record) -> Factor | None:
    """Return what the executor of ``record`` brings over ``replay``."""
    ours, theirs = _speedup(record), _speedup(replay)
    if ours is None or theirs is None:
        return None
    value = ours.ratio / theirs.ratio
    (low, high), (replay_low, replay_high) = _ends(ours), _ends(theirs)
    if low is None or high is None or replay_low is None or replay_high is None:
        return Factor(value, None, None)
    down = math.hypot(math.log(ours.ratio / low), math.log(replay_high / theirs.ratio))
    up = math.hypot(math.log(high / ours.ratio), math.log(theirs.ratio / replay_low))
    return Factor(value, value * math.exp(-down), value * math.exp(up))


def _speedup(record: Record) -> Speedup | None:
    return record.throughput.speedup if record.throughput and facts.speedup(record) is not None else None


def _ends(speedup: Speedup) -> tuple[float | None, float | None]:
    """Return both ends of the interval, or neither: with one round there is none."""
    ends = (speedup.ci_low, speedup.ci_high)
    known = all(end is not None and math.isfinite(end) and end > 0 for end in ends)
    return ends if known else (None, None)


def naming(found: Sequence[Gain]) -> facts.Names:
    """Return how to name the cases of ``found`` apart from their executors."""
    return facts.names([gain.replay for gain in found])


def cells_of(gain: Gain) -> list[str]:
    """Return the cells of one row, in the order of ``HEADINGS``."""
    whole = _speedup(gain.record)
    figures = (gain.cost, gain.gain, whole and Factor(whole.ratio, *_ends(whole)))
    sides = (gain.replay, gain.record if gain.cost is not None else gain.replay, gain.record)
    return [
        facts.executor(gain.record.case),
        *(_missing(side) if figure is None else str(figure) for figure, side in zip(figures, sides, strict=True)),
    ]


def _missing(record: Record) -> str:
    name = facts.word(record).name
    return f"n/a ({name})" if facts.missing(record, "throughput") == "n/a" and name not in facts.USABLE else "n/a"


def remarks(gain: Gain) -> list[str]:
    """Return what the figures of a row are to be read with."""
    said = []
    if gain.eager is not None and not 1 / ALIKE <= gain.eager <= ALIKE:
        said.append(f"gain in doubt: eager itself took {gain.eager:.2f} times as long as beside replay")
    for side in (gain.record, gain.replay):
        if side.throughput is not None and (word := facts.word(side).name) not in (*facts.USABLE, "no verdict"):
            said.append(f"{facts.executor(side.case)} is {word}")
    return said


def gains_table(records: Sequence[Record], width: int) -> list[str]:
    """Return the lines of the table; none where no case was run under replay and under another executor."""
    found = gains(records)
    if not found:
        return []
    names = naming(found)
    lines = wrap("front-end cost (replay against eager) and compiler gain (the executor against replay):", width)
    rows = [cells_of(gain) for gain in found]
    drawn = grid([HEADINGS, *rows], "    ")
    fits = max(map(cells, drawn)) <= width
    lines += drawn[:1] if fits else []
    before = None
    for gain, row, line in zip(found, rows, drawn[1:], strict=True):
        if before is None or gain.replay is not before:
            lines += wrap(names.full(gain.replay), width, "  ", "  ")
            before = gain.replay
        told = ", ".join(f"{name} {cell}" for name, cell in zip(HEADINGS[1:], row[1:], strict=True))
        lines += [line] if fits else wrap(f"{row[0]}: {told}", width, "    ", "      ")
        for remark in remarks(gain):
            lines += wrap(clean(remark), width, "      ", "        ")
    if any("gain in doubt" in remark for gain in found for remark in remarks(gain)):
        lines += wrap("(gain in doubt: run both cases again, on a machine left to them)", width)
    return lines
