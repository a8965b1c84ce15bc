"""Synthetic records for tests: one for every way a case can end."""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any

from tracebench.record import (
    CaptureInfo,
    CompileSeconds,
    Constant,
    ControlEffect,
    CoverageInfo,
    ErrorInfo,
    GraphBreak,
    OutsideOp,
    Probe,
    Record,
    Specialisation,
    Speedup,
    ThroughputInfo,
    Timing,
)

ENDINGS = ("sound", "restricted", "unsound", "refused", "timeout", "oom", "crashed", "error", "no verdict")
FRONTENDS = ("dynamo", "jit_trace", "fx", "hook")
ENVIRONMENT = {"torch": "2.14.0", "python": "3.11.9", "device_name": "NVIDIA H200", "cpu": "AMD EPYC"}
_ERRORS = {
    "refused": ErrorInfo(
        "capture",
        "TypeError",
        "expected Tensor,\n  got dict",
        "torchvision/models/detection/x.py:93",
        "Traceback\n <x>",
    ),
    "timeout": ErrorInfo("capture", "Timeout", "no result after 300 s"),
    "oom": ErrorInfo("throughput", "OutOfMemoryError", "tried to allocate 3 GiB"),
    "crashed": ErrorInfo("reference", "Crashed", "the process died", log_tail="line 1\nlast words\n", exit_code=3),
    "error": ErrorInfo("load", "ImportError", "no module named 'nowhere'", "my_model.py:3"),
}


def timing(median: float, samples: int = 12, spread: float = 0.02) -> Timing:
    """Return a timing whose samples swing around ``median``."""
    values = tuple(median * (1 + spread * math.sin(1.7 * index)) for index in range(samples))
    return Timing(median, median * spread, values, 8000 / median, 512.0)


def throughput(ratio: float, half: float = 0.03, eager: float = 12.5, warnings: tuple[str, ...] = ()) -> ThroughputInfo:
    """Return a measurement with the speedup ``ratio`` and an interval of ``half`` its width to each side."""
    low, high = ratio * (1 - half), ratio * (1 + half)
    speedup = Speedup(ratio, low, high, not low <= 1 <= high)
    compile_s = CompileSeconds(3.2, 0.8)
    return ThroughputInfo(timing(eager), timing(eager / ratio), speedup, compile_s, 3400.0, 900, warnings=warnings)


def probes(ending: str) -> tuple[Probe, ...]:
    """Return probes that lead to the verdict ``ending``."""
    found = [
        Probe("same inputs", "match", max_error=0.0, bitwise=True),
        Probe("fresh values", "match", max_error=1e-7, bitwise=False),
        Probe("invalid inputs", "n/a", "the model declares none"),
    ]
    if ending in ("restricted", "unsound"):
        found.append(Probe("batch size 3", "raise", "RuntimeError: shape [3, 4] is not [2, 4]"))
    if ending == "unsound":
        found.append(Probe("several calls", "diverge", "output[0]: call 2 differs by 0.25", 0.25, False))
    return tuple(found)


def record(
    model: str = "resnet50", frontend: str = "dynamo", ending: str = "sound", ratio: float = 1.32, **changes: Any
) -> Record:
    """Return a record that ends as ``ending``; ``changes`` go into its case, or replace its fields."""
    verdict = ending if ending in ("sound", "restricted", "unsound", "refused") else None
    status = "done" if verdict or ending == "no verdict" else ending
    case = {
        "model": model,
        "options": {},
        "frontend": frontend,
        "frontend_options": {},
        "executor": "replay",
        "mode": "inference",
        "device": "cuda",
        "dtype": "float32",
        "batch_size": 8,
        "seed": 0,
        "controls": {},
    }
    case.update({name: changes.pop(name) for name in list(changes) if name in case})
    asked = ["coverage", "throughput"] if ending == "no verdict" else ["soundness", "coverage", "throughput"]
    fields: dict[str, Any] = {
        "key": hashlib.sha256(f"{ending} {case}".encode()).hexdigest()[:16],
        "started_at": "2026-01-02T03:04:05+00:00",
        "wall_s": 12.5,
        "case": case,
        "status": status,
        "verdict": verdict,
        "error": _ERRORS.get(ending),
        "stages": {"load": 0.1, "reference": 0.2, "capture": 0.3},
        "environment": ENVIRONMENT,
        "config": {"stages": asked},
    }
    if status == "done" and ending != "refused":
        broken = frontend == "dynamo" and ending != "sound"
        fields["capture"] = CaptureInfo(
            1.25,
            3 if broken else 1,
            (GraphBreak("print(...)", "my_model.py:12", 2), GraphBreak("item()", "my_model.py:20")) if broken else (),
            guards=17,
            constants=(Constant("c0", (2, 2), "float32", "my_model.py:8", 16),),
            specialised=(
                Specialisation("shape", "argument 0", value="[2, 2]"),
                Specialisation("branch", "`x.sum() > 0`: a Python boolean", "my_model.py:9", "True"),
            ),
        )
        share = 0.75 if broken else 1.0
        fields["coverage"] = CoverageInfo(
            share, share, None, 40, round(40 * share), graphs_per_call=3, outside=(OutsideOp("aten.add", "m.py:1", 2),)
        )
        fields["throughput"] = throughput(ratio)
        fields["stages"] = {**fields["stages"], **dict.fromkeys(asked, 1.0)}
    if verdict and ending != "refused":
        fields["probes"] = probes(ending)
    if ending == "refused":
        fields["coverage"] = CoverageInfo(0.0, 0.0)
    return Record(**{**fields, **changes})


def every_ending() -> list[Record]:
    """Return one record for each outcome."""
    return [record(f"model_{ending.replace(' ', '_')}", "fx", ending) for ending in ENDINGS]


def control(effect: Any) -> ControlEffect:
    """Return what a control did."""
    return ControlEffect("disable", "layer4.1", effect, "no module of that name" if effect == "none" else "")


_NAMES = ("resnet50", "fasterrcnn_resnet50_fpn_v2", "vit_b_16", "swin_transformer_large_patch4_window12_384_in22k")


def sweep(models: int, **changes: Any) -> list[Record]:
    """Return ``models`` x 4 front ends with a mix of outcomes and speedups."""
    endings = itertools.cycle(("sound", "sound", "restricted", "sound", "unsound", "refused", "sound", "crashed"))
    found = []
    for index in range(models):
        name = _NAMES[index % len(_NAMES)] + (f"_{index // len(_NAMES)}" if index >= len(_NAMES) else "")
        for number, frontend in enumerate(FRONTENDS):
            ratio = 0.6 + 0.9 * ((index * 7 + number * 5) % 11) / 4
            found.append(record(name, frontend, next(endings), ratio, **changes))
    return found
