"""What the harness itself costs per case, beside what a fresh interpreter with torch costs.

Run: ``python benchmarks/harness_cost.py [--repeats N]``. Sweeps one small model over the four front ends with
``stages=[soundness]``; the cost of a case is its wall time less the time its stages took. The server process is
started once per sweep and its start is shown apart.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tracebench import config
from tracebench.case import Case, ModelSpec
from tracebench.running.launch import make_launcher
from tracebench.running.limits import Limits
from tracebench.running.sweep import Request, run_sweep

FRONT_ENDS = ("dynamo", "jit_trace", "fx", "hook")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="sweeps, and fresh interpreters, to take the median of")
    repeats = parser.parse_args().repeats
    options = {"arch": "gpt", "layers": 1, "width": 32, "heads": 2, "vocabulary": 64, "sequence_length": 16}
    model = ModelSpec("gpt", str(config.models_folder() / "language.py"), options)
    costs: dict[str, list[float]] = {name: [] for name in FRONT_ENDS}
    starts, fresh = [], []
    for _ in range(repeats):
        # Side by side, so that a slower machine is slower for both.
        fresh.append(_seconds([sys.executable, "-c", "import torch, torchvision"]))
        requests = [Request(Case(model, name, stages=("soundness",)), Limits(300.0), {}) for name in FRONT_ENDS]
        launcher = make_launcher("auto")
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            walls = []
            for step in run_sweep(requests, Path(folder), "all", launcher):
                record = step.record
                if record.status != "done":
                    raise SystemExit(f"{step.label} ended as {record.status}: {record.error}")
                walls.append(record.wall_s)
                costs[record.case["frontend"]].append(record.wall_s - sum(record.stages.values()))
            starts.append(time.perf_counter() - started - sum(walls))
        launcher.close()
    print(f"seconds, median of {repeats} (largest), isolation: {launcher.name}")
    print(f"  fresh interpreter importing torch and torchvision  {_figures(fresh)}")
    print(f"  starting the server, once a sweep                  {_figures(starts)}")
    for name, values in costs.items():
        print(f"  harness beyond the stages, {name:<12}            {_figures(values)}")
    every = [value for values in costs.values() for value in values]
    ratio = statistics.median(every) / statistics.median(fresh)
    print(f"  a case costs {ratio:.1%} of a fresh interpreter")


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - started


def _figures(values: list[float]) -> str:
    return f"{statistics.median(values):6.2f}  ({max(values):.2f})"


if __name__ == "__main__":
    main()
