"""Whether tracebench holds on an accelerator: one run that fits in ten minutes on one GPU.

Run: ``python benchmarks/gpu_check.py [--out FOLDER] [--seconds S]`` on the machine with the GPU, or with ``--dry-run``
the same steps on the CPU, with a tiny model, which takes about a minute of processor time. The steps, in order:

1. tests: those marked ``gpu``;
2. sweep: four front ends and eager on ResNet-50 and a transformer block, float32 and bfloat16, batches of 1 and 64,
   under replay and Inductor, the cases that tell most first; those that the time does not reach are counted;
3. null: eager timed against eager gives a ratio of 1 within its interval;
4. timer: our times agree with ``triton.testing.do_bench`` (on the CPU with ``torch.utils.benchmark``);
5. fork: the process that cases were forked from never initialised CUDA.

A table of them is printed last, and the exit code is 1 if one failed. ``FOLDER/gpu-check.tar.gz`` holds the records,
the steps, the summary, the plots and the page. Needs torch, torchvision, pandas and matplotlib, but no Hydra.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tracebench.case import Case, ModelSpec, soundness_options  # noqa: E402
from tracebench.record import Record  # noqa: E402
from tracebench.report import render_table  # noqa: E402
from tracebench.report.assemble import build  # noqa: E402
from tracebench.running.launch import ForkServer  # noqa: E402
from tracebench.running.limits import Limits  # noqa: E402
from tracebench.running.sweep import Request, run_sweep  # noqa: E402
from tracebench.status import outcome  # noqa: E402

FRONT_ENDS = ("dynamo", "jit_trace", "fx", "hook")
#: The longest a case may take, in seconds.
CASE_S = 120.0
#: Share of the sweep's time that goes into measuring; the rest is loading, capturing, compiling and judging.
MEASURING = 0.3
#: How far times may be apart to agree. A dry run, of short calls and maybe on a busy machine, only tells them.
AGREE, AGREE_DRY = 0.05, math.inf
#: Of 8 intervals of 99 %, 6 or fewer hold the true ratio once in 370 runs.
FEWEST_NULLS = 7


#: A model, a batch size and a dtype.
Run = tuple[ModelSpec, int, str]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run, and for how long."""

    device: str
    seconds: float
    #: Of these, what is kept for the steps after the sweep.
    reserve: float
    #: The most that a case measures for.
    measured: float
    #: Models, each with a batch size and a dtype, those that tell most first; run under replay by eager and all.
    replayed: tuple[Run, ...]
    #: Which of these are run under Inductor, and by which front ends.
    compiled: tuple[tuple[Run, str], ...]
    agree: float
    dry: bool


@dataclasses.dataclass(frozen=True)
class Result:
    """One step: whether it holds, and what it found."""

    name: str
    holds: bool
    text: str
    seconds: float


def make_plan(dry: bool, seconds: float | None) -> Plan:
    """Return the plan for a GPU, or the tiny one for the CPU."""
    language, vision = (str(ROOT / "models" / name) for name in ("language.py", "vision.py"))
    if dry:
        block = {"arch": "gpt", "layers": 1, "width": 32, "heads": 2, "vocabulary": 64, "sequence_length": 16}
        model = ModelSpec("gpt", language, block)
        runs: tuple[Run, ...] = ((model, 4, "float32"), (model, 1, "bfloat16"))
        return Plan("cpu", seconds or 180.0, 25.0, 0.3, runs, ((runs[0], "fx"),), AGREE_DRY, dry)
    block = {"arch": "gpt", "layers": 1, "width": 1024, "heads": 16, "vocabulary": 1024, "context": 512,
             "sequence_length": 512}  # fmt: skip
    models = (ModelSpec("gpt", language, block), ModelSpec("resnet50", vision, {"arch": "resnet50", "image_size": 224}))
    runs = tuple(
        (model, batch, dtype) for batch, dtype, model in itertools.product((64, 1), ("float32", "bfloat16"), models)
    )
    compiled = tuple(itertools.product(runs, FRONT_ENDS))
    return Plan("auto", seconds or 560.0, 75.0, 3.0, runs, compiled, AGREE, dry)


def cases(plan: Plan) -> list[Case]:
    """Return the cases of the sweep, those that tell most first: replay before Inductor, large batches before small."""
    asked = [(run, name, "replay") for run in plan.replayed for name in ("eager", *FRONT_ENDS)]
    asked += [(run, name, "inductor") for run, name in plan.compiled]
    seconds = min(plan.measured, MEASURING * (plan.seconds - plan.reserve) / len(asked))
    return [
        Case(
            model, name, executor=executor, device=plan.device, dtype=dtype, batch_size=batch, mode="inference",
            # Under a compiler each other shape is one compilation more.
            soundness=soundness_options(probes=("use",) if executor == "replay" and not plan.dry else ("same",)),
            throughput={"seconds": seconds, "roofline": True},
        )
        for (model, batch, dtype), name, executor in asked
    ]  # fmt: skip


def check_tests(seconds: float) -> tuple[bool, str]:
    """Run the tests marked ``gpu``. Their own configuration is left out: it asks for plugins that may not be there."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir",
               str(ROOT), str(ROOT / "tests" / "test_gpu.py")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"not finished after {seconds:.0f} s"
    print(done.stdout + done.stderr)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:] or "printed nothing"]
    return done.returncode == 0, lines[-1]


def sweep(plan: Plan, folder: Path, deadline: float) -> tuple[list[Record], int, str | None]:
    """Run what the time reaches.

    Return the records, how many cases were planned, and what is wrong with the server they were forked from (None:
    nothing).
    """
    requests = [Request(case, Limits(CASE_S), {"stages": list(case.stages)}) for case in cases(plan)]
    launcher = ForkServer()
    records = []
    try:
        with contextlib.suppress(TimeUp), alarm(deadline - time.monotonic()):
            for step in run_sweep(requests, folder, "failed", launcher):
                records.append(step.record)
                told = outcome(step.record.status, step.record.verdict)
                print(f"[{step.number}/{step.total}] {step.label}: {told} ({step.record.wall_s:.1f} s)", flush=True)
        return records, len(requests), spoilt_server(launcher)
    finally:
        launcher.close()


class TimeUp(Exception):
    """The time for a step is over."""


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise ``TimeUp`` in this thread if what is within takes longer."""

    def ring(*_: object) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def spoilt_server(launcher: ForkServer) -> str | None:
    """Say how the running server shows that CUDA was initialised in it; None if it does not.

    Initialising CUDA opens the device file of its unified memory; asking the management library does not.
    """
    process = launcher._process
    if process is None or process.poll() is not None:
        return "the server is not running any more"
    folder = Path(f"/proc/{process.pid}/fd")
    if not folder.is_dir():
        return "this system does not tell which files a process has open"
    opened = {str(entry.readlink()) for entry in folder.iterdir()}
    found = sorted(name for name in opened if name.startswith("/dev/nvidia-uvm"))
    return f"it has {', '.join(found)} open" if found else None


def check_sweep(records: list[Record], planned: int, device: str) -> tuple[bool, str]:
    """Whether every case that ran came to its end on the device, with figures."""
    words = Counter(outcome(record.status, record.verdict) for record in records)
    elsewhere = sum(not str(record.case["device"]).startswith(device) for record in records)
    unmeasured = sum(record.throughput is None and record.verdict != "refused" for record in records)
    told = ", ".join(f"{count} {word}" for word, count in words.most_common())
    text = f"{len(records)} of {planned} cases: {told}"
    text += f"; {planned - len(records)} not run for want of time" if len(records) < planned else ""
    text += f"; {unmeasured} without times" if unmeasured else ""
    text += f"; {elsewhere} ran elsewhere" if elsewhere else ""
    failed = sum(count for word, count in words.items() if word in ("timeout", "oom", "crashed", "error", "no verdict"))
    # Inductor's cases come last, and how many of them fit depends on the machine.
    compiled = any(record.case["executor"] == "inductor" for record in records)
    return compiled and not (failed or elsewhere or unmeasured), text


def check_null(records: list[Record]) -> tuple[bool, str]:
    """Whether eager against eager is a ratio of 1 within its interval."""
    nulls = [record.throughput for record in records if record.case["frontend"] == "eager"]
    ratios = [found.speedup for found in nulls if found is not None]
    if not ratios:
        return False, "no case of eager against eager has times"
    hold = sum(not found.significant for found in ratios)
    worst = max(abs(found.ratio - 1) for found in ratios)
    enough = hold >= len(ratios) * FEWEST_NULLS / 8
    return enough, f"{hold} of {len(ratios)} intervals hold 1; the ratio farthest from it is off by {worst:.1%}"


def check_timer(plan: Plan, seconds: float) -> tuple[bool, str]:
    """Whether our times are those of the timer that others use."""
    import torch

    from tracebench.subject import load, resolve_device
    from tracebench.throughput.clock import clock_for
    from tracebench.throughput.measure import measure

    device = resolve_device(plan.device)
    name, other = other_timer(device.type)
    told, holds = [], True
    with torch.no_grad():
        for label, fn in timed(plan, device, load):
            ours, theirs = math.inf, math.inf
            for _ in range(2):  # in turns, and the faster counts: other work on the machine makes either slower
                clock = clock_for(device)
                timing = measure(fn, fn, clock=clock, seconds=seconds / 12, samples_per_call=None).eager
                ours, theirs = min(ours, timing.median_ms), min(theirs, other(fn, seconds / 12))
            told.append(f"{label} {ours:.4g} and {theirs:.4g} ms ({ours / theirs - 1:+.1%})")
            holds &= abs(ours / theirs - 1) <= plan.agree
    return holds, f"ours and {name}: " + ", ".join(told)


def timed(plan: Plan, device: Any, load: Callable[[Case], Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is timed, with its name: a product of matrices and each model, run eagerly at the large batch."""
    import torch

    side = 512 if plan.dry else 8192
    left = torch.randn(side, side, device=device)
    yield f"matmul {side}", lambda: left @ left
    for model, batch, _dtype in {run[0].name: run for run in reversed(plan.replayed)}.values():
        subject = load(Case(model, "eager", device=plan.device, dtype="float32", batch_size=batch))
        call = functools.partial(subject.model, *subject.example.args, **subject.example.kwargs)
        yield f"{model.name} x{subject.batch_size}", call


def other_timer(device_type: str) -> tuple[str, Callable[[Callable[[], object], float], float]]:
    """Return the name of the timer that ours is held against, and a function from callable and seconds to its ms."""
    if device_type == "cuda":
        from triton.testing import do_bench

        return "triton.testing.do_bench", lambda fn, seconds: float(
            do_bench(fn, warmup=int(200 * seconds), rep=int(800 * seconds), return_mode="median")
        )
    import torch
    from torch.utils.benchmark import Timer

    return (
        "torch.utils.benchmark",
        lambda fn, seconds: (
            1e3
            * float(
                Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads())
                .blocked_autorange(min_run_time=seconds)
                .median
            )
        ),
    )


def main() -> int:
    """Run the steps, print their table, pack what they left; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="the same steps on the CPU with a tiny model")
    parser.add_argument("--seconds", type=float, help="time for all steps (default 560; dry run 180)")
    parser.add_argument("--out", type=Path, help="where results go (default: $OUT, else results/gpu-check)")
    given = parser.parse_args()
    plan = make_plan(given.dry_run, given.seconds)
    out = given.out or Path(os.environ.get("OUT") or ROOT / "results" / "gpu-check")
    folder = out / "gpu-check"
    started, results = time.monotonic(), []
    kind = "cpu" if plan.dry else accelerator()
    if kind is None:
        print("There is no accelerator here that torch can use. Rehearse on the CPU with --dry-run.", file=sys.stderr)
        return 2

    def step(name: str, check: Callable[[], tuple[bool, str]]) -> None:
        print(f"\n== {name}", flush=True)
        begin = time.perf_counter()
        try:
            holds, text = check()
        except Exception as error:
            # One step that breaks must not cost the others.
            holds, text = False, f"{type(error).__name__}: {error}"
        results.append(Result(name, holds, text, time.perf_counter() - begin))
        print(text, flush=True)

    records: list[Record] = []
    planned, wrong = 0, "the sweep did not come to its end"

    def run() -> tuple[bool, str]:
        nonlocal planned, wrong
        found, planned, spoilt = sweep(plan, folder, started + plan.seconds - plan.reserve)
        records.extend(found)
        wrong = spoilt or ""
        return check_sweep(records, planned, kind)

    step("tests", lambda: check_tests(0.25 * plan.seconds))
    step("sweep", run)
    step("null", lambda: check_null(records))
    step("timer", lambda: check_timer(plan, 6.0 if plan.dry else 18.0))
    clean = "no file of CUDA open in the server"
    step("fork", lambda: (not wrong, wrong or f"{clean} after {len(records)} forked cases used {kind}"))
    if records:
        print("\n" + render_table(records, width=120))
    print(table(results, plan, time.monotonic() - started))
    print(f"Packed: {pack(out, folder, results, records)}")
    return 0 if all(result.holds for result in results) else 1


def accelerator() -> str | None:
    """Return the type of this machine's accelerator, asked for in a process of its own."""
    ask = "import torch; found = torch.accelerator.current_accelerator(True); print(found.type if found else '')"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip() or None


def table(results: list[Result], plan: Plan, elapsed_s: float) -> str:
    """Return the steps as a table."""
    lines = [f"{result.name:<6} {'holds' if result.holds else 'FAILS':<6} {result.seconds:6.1f} s  {result.text}"
             for result in results]  # fmt: skip
    kind = "Dry run on the CPU: says nothing about a GPU" if plan.dry else "GPU check"
    return "\n".join(["", f"{kind}, {elapsed_s:.0f} s of {plan.seconds:.0f} s", *lines])


def pack(out: Path, folder: Path, results: list[Result], records: list[Record]) -> Path:
    """Make the report of ``folder``, and one archive of all that is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = [dataclasses.asdict(result) for result in results]
    (folder / "check.json").write_text(json.dumps(steps, indent=1) + "\n", encoding="utf-8")
    if records:
        build(folder)
    path = out / "gpu-check.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname="gpu-check")
    return path


if __name__ == "__main__":
    sys.exit(main())
