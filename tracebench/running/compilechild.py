"""The process that takes one compile time: ``python -m tracebench.running.compilechild JOB``."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tracebench.running.child import die_with_parent

#: Calls that the steady time is taken from; the fastest counts, for it is subtracted.
_STEADY_CALLS = 5


def take(job: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of capture and compilation of a case, and what became of the cache meanwhile."""
    # Torch loads its compiler when it is first needed. That is the price of a process, not of a model.
    importlib.import_module("torch._inductor.compile_fx")

    from tracebench.case import Case
    from tracebench.running.compiling import cache_counts
    from tracebench.running.stages import prepared
    from tracebench.throughput.calls import InputSets
    from tracebench.throughput.stage import start

    case = Case.from_dict(job["case"])
    with prepared(case) as (subject, capture), subject.grad_mode():
        sets = InputSets((subject.example,), "copies")
        begun = start(subject, capture, sets, case.throughput.get("optimizer", "sgd"))
        times = []
        for _ in range(_STEADY_CALLS):
            before = time.perf_counter()
            begun.call()
            subject.synchronise()
            times.append((time.perf_counter() - before) * 1e3)
    return {"seconds": begun.overhead_s(min(times)), **cache_counts()}


def main() -> None:
    """Do the job that the file of the first argument describes."""
    die_with_parent()
    sys.path.insert(0, str(Path.cwd()))
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(job["result"]).write_text(json.dumps(take(job)), encoding="utf-8")


if __name__ == "__main__":
    main()
