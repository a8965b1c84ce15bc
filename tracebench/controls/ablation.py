"""What a control did: the difference between two small summaries, of a capture without it and of the one with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tracebench.record import CaptureInfo, CoverageInfo, ErrorInfo, Figures, Speedup, ThroughputInfo

#: Figures that are told as they are; what differs in them is an effect.
_COUNTED = ("graphs", "graph_breaks", "graph_nodes", "guards", "recompiles", "ops_missing")
_SHARES = ("op_coverage", "flop_coverage")


def figures(found: Mapping[str, Any]) -> Figures:
    """Return the summary of what a case has told so far: fields of a record by name."""
    capture: CaptureInfo | None = found.get("capture")
    cover: CoverageInfo | None = found.get("coverage")
    timed: ThroughputInfo | None = found.get("throughput")
    error: ErrorInfo | None = found.get("error")
    verdict: str | None = found.get("verdict")
    breaks = {item.location or item.reason for item in capture.graph_breaks} if capture else set()
    counted = capture is not None and verdict != "refused"
    return Figures(
        verdict=verdict,
        graphs=capture.graphs if capture and counted else None,
        graph_breaks=len(breaks) if counted else None,
        graph_nodes=sum(capture.graph_nodes) if capture and counted else None,
        guards=capture.guards if capture and counted else None,
        recompiles=len(capture.recompiles) if capture and counted else None,
        op_coverage=cover.ops if cover else None,
        flop_coverage=cover.flops if cover else None,
        time_coverage=cover.time if cover else None,
        ops_missing=cover.ops_missing if cover else None,
        speedup=timed.speedup if timed else None,
        refusal=f"{error.type}: {error.message}" if error and verdict == "refused" else None,
    )


def differences(without: Figures, given: Figures) -> dict[str, list[Any]]:
    """Return what differs by name, each as [without, with]; what was not measured on both sides is left out.

    Speed differs only if the two intervals do not overlap. Time coverage is too noisy to count.
    """
    found: dict[str, list[Any]] = {}
    captured = [side.refusal is None for side in (without, given)]
    if captured[0] != captured[1]:
        found["captured"] = captured
    for name in ("verdict", *_COUNTED, *_SHARES):
        sides = [getattr(side, name) for side in (without, given)]
        if None not in sides and sides[0] != sides[1]:
            found[name] = sides
    if list(found) == ["guards"] and found["guards"][0] < found["guards"][1]:
        # A stand-in brings guards of its own; that more is checked changes nothing else.
        del found["guards"]
    if without.speedup and given.speedup and _apart(without.speedup, given.speedup):
        found["speedup"] = [without.speedup.ratio, given.speedup.ratio]
    return found


def _apart(one: Speedup, other: Speedup) -> bool:
    bounds = [value for side in (one, other) for value in dataclasses.astuple(side)[:3]]
    # A figure that could not be had is NaN, which is not apart from anything.
    return not any(value != value for value in bounds) and (one.ci_high < other.ci_low or other.ci_high < one.ci_low)
