"""How fast the hook captures and replays, beside the other front ends and eager, in one run.

Run: ``python benchmarks/hook_speed.py [--captures N] [--seconds S] [--threads N] [--batch-size N] [--size PIXELS]
[--cpu-time] [MODEL ...]``, where a model is a file of ``configs/model``. For each it prints

- capture: milliseconds of the first capture and the median (range) of the later ones, the front ends taking turns, each
  on a model of its own; to TorchDynamo's belongs the first call, which is when it captures. jit_trace is as its front
  end has it: with torch's own re-check of the trace. The ratio is the median (range) of those within one turn;
- replay: milliseconds of a call, and how many times eager's that is, with the interval of the harness's own
  throughput stage;
- guards: how many values the hook checks at each call and the microseconds that takes, with taking arguments and
  results apart: a call of a tape whose graph does nothing.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from tracebench import config
from tracebench.case import Case, ModelSpec
from tracebench.executors import Replay, make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture
from tracebench.record import ThroughputInfo
from tracebench.subject import Subject, load
from tracebench.throughput.clock import clock_for
from tracebench.throughput.measure import measure

#: Seconds since any fixed moment.
Now = Callable[[], float]
FRONT_ENDS = ("hook", "jit_trace", "fx", "dynamo")
MODELS = ("resnet50", "vit_b_16", "gpt")
#: Calls of which guards are the median.
GUARD_CALLS = 200


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--captures", type=int, default=8, help="captures by each front end")
    parser.add_argument("--seconds", type=float, default=20.0, help="budget of each comparison of a replay")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch-size", type=int, help="samples in a call; the model's own number where not given")
    parser.add_argument("--size", type=int, help="side of images in pixels; the model's own where not given")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time captures by the processor time of all threads, for a machine that others use; give --threads 1",
    )
    asked = parser.parse_args(arguments)
    if asked.captures < 2:
        parser.error("--captures must be at least 2: one is the first, which pays for what a process does once")
    torch.set_num_threads(asked.threads)
    now = time.process_time if asked.cpu_time else time.perf_counter
    clock = "processor time" if asked.cpu_time else "the clock"
    print(f"torch {torch.__version__}, threads: {asked.threads}, executor replay, inference on the CPU")
    print(f"captures are timed by {clock}, replays by the clock")
    for name in asked.models:
        subject = _subject(name, asked.batch_size, asked.size)
        shapes = [list(arg.shape) for arg in subject.fresh_inputs().args]
        print(f"{name}, arguments {shapes}", flush=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for row in (*_capture_rows(subject, asked.captures, now), *_replay_rows(subject, asked.seconds)):
                print(f"  {row}", flush=True)


def _subject(name: str, batch_size: int | None, size: int | None) -> Subject:
    config.register()
    path = config.config_folder() / "model" / f"{name}.yaml"
    if not path.is_file():
        raise SystemExit(f"no model {name!r}: there is no {path}")
    found: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    options = dict(found["options"])
    if size is not None and "image_size" in options:
        options["image_size"] = size
    spec = ModelSpec(name, found["path"], options)
    return load(Case(spec, "eager", device="cpu", batch_size=batch_size))


def _capture(front_end: str, subject: Subject, now: Now = time.perf_counter) -> tuple[Capture, float]:
    """Return a capture of a fresh model and the milliseconds that it took."""
    torch._dynamo.reset()
    model, inputs = subject.fresh_model(), subject.fresh_inputs()
    gc.collect()
    started = now()
    made = make_front_end(front_end)
    capture = made.capture(model, inputs, make_executor("replay", for_verdict=False))
    if made.lazy:
        capture.call(*inputs.args, **inputs.kwargs)
    return capture, (now() - started) * 1e3


def _capture_rows(subject: Subject, captures: int, now: Now = time.perf_counter) -> list[str]:
    model, inputs = subject.fresh_model(), subject.fresh_inputs()
    taken: dict[str, list[float]] = {"eager": [], **{name: [] for name in FRONT_ENDS}}
    for turn in range(captures):
        for name in reversed(FRONT_ENDS) if turn % 2 else FRONT_ENDS:
            taken[name].append(_capture(name, subject, now)[1])
        started = now()
        model(*inputs.args, **inputs.kwargs)
        taken["eager"].append((now() - started) * 1e3)
    later = {name: statistics.median(times[1:]) for name, times in taken.items()}
    rows = [
        f"capture {name:<10} {later[name]:9.1f} ms ({min(times[1:]):.1f} to {max(times[1:]):.1f}), first {times[0]:.1f}"
        for name, times in taken.items()
    ]
    ratios = [hook / traced for hook, traced in zip(taken["hook"][1:], taken["jit_trace"][1:], strict=True)]
    return [
        *rows,
        f"capture hook / jit_trace  {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
    ]


@dataclass
class _Nothing:
    """Runs a graph once and returns that result for ever."""

    name: str = "nothing"
    compilations: int = 0
    lower: Callable[..., Any] = Replay().lower

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return what runs ``module`` at its first call only."""
        results: list[Any] = []

        def run(*args: Any) -> Any:
            if not results:
                results.append(module(*args))
            return results[0]

        return run


def _replay_rows(subject: Subject, seconds: float) -> list[str]:
    eager = _bound(subject.fresh_model(), subject)
    captures = {name: _capture(name, subject)[0] for name in FRONT_ENDS}
    calls = {name: _bound(capture.call, subject) for name, capture in captures.items()}
    rows = []
    for name, call in calls.items():
        found = _measured(eager, call, captures[name].compilations, seconds)
        rows.append(
            f"replay {name:<10} {found.captured.median_ms:9.3f} ms, eager {found.eager.median_ms:.3f}: "
            f"{_times(found)} of eager"
        )
    found = _measured(calls["dynamo"], calls["hook"], captures["dynamo"].compilations, seconds)
    rows.append(f"replay hook / dynamo  {_times(found)}")
    model, inputs = subject.fresh_model(), subject.fresh_inputs()
    idle = make_front_end("hook").capture(model, inputs, _Nothing())
    guards = _bound(idle.call, subject)
    guards()
    microseconds = []
    for _ in range(GUARD_CALLS):
        started = time.perf_counter()
        guards()
        microseconds.append((time.perf_counter() - started) * 1e6)
    rows.append(f"guards {idle.events.guards}, {statistics.median(microseconds):.0f} us a call")
    return rows


def _bound(call: Callable[..., Any], subject: Subject) -> Callable[[], Any]:
    inputs = subject.fresh_inputs()
    return lambda: call(*inputs.args, **inputs.kwargs)


def _measured(
    base: Callable[[], Any], call: Callable[[], Any], compilations: Callable[[], int], seconds: float
) -> ThroughputInfo:
    clock = clock_for(torch.device("cpu"))
    return measure(base, call, clock=clock, seconds=seconds, samples_per_call=None, compilations=compilations)


def _times(found: ThroughputInfo) -> str:
    """Tell how many times the base's time a call takes: the inverse of its speedup."""
    speedup = found.speedup
    noisy = f"; {found.warnings[0]}" if found.warnings else ""
    ends = f"{speedup.confidence:.0%} interval {1 / speedup.ci_high:.3f} to {1 / speedup.ci_low:.3f}"
    return f"{1 / speedup.ratio:.3f} times ({ends}){noisy}"


if __name__ == "__main__":
    main()
