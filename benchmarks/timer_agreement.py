"""Do our times agree with those of ``torch.utils.benchmark.Timer``?

Run: ``python benchmarks/timer_agreement.py [--seconds 10] [--turns 25] [MODEL ...]``. Captures each model with the
trace hook and times the replay of one and the same capture with the project's ``measure`` (the capture on both sides,
so that each call is the same) and with torch's ``Timer`` (``blocked_autorange``, same threads). Both take many short
turns, so that a machine that drifts does so for both. Prints the median of the turns' ratios and exits 1 if one is off
by more than 3 %.
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.benchmark import Timer

from tracebench import config
from tracebench.case import Case, ModelSpec
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.subject import load
from tracebench.throughput.calls import BoundCall
from tracebench.throughput.clock import clock_for
from tracebench.throughput.measure import measure
from tracebench.throughput.monitor import default_monitors, waits
from tracebench.throughput.statistics import median

#: Largest difference, as a share.
LIMIT = 0.03
MODELS = {
    "resnet18": ("vision.py", {"arch": "resnet18", "image_size": 64}),
    "mobilenet_v3_large": ("vision.py", {"arch": "mobilenet_v3_large", "image_size": 64}),
    "gpt": ("language.py", {"layers": 2, "width": 128, "heads": 4, "vocabulary": 1024}),
}


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--seconds", type=float, default=10.0, help="for each of the two timers, for each model")
    parser.add_argument("--turns", type=int, default=25, help="how often the timers take turns")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    right = True
    for name in asked.models or MODELS:
        if name not in MODELS:
            parser.error(f"unknown model {name!r}; valid choices: {', '.join(MODELS)}")
        right &= _agrees(name, asked)
    raise SystemExit(not right)


def _agrees(name: str, asked: argparse.Namespace) -> bool:
    file, options = MODELS[name]
    path = str(config.models_folder() / file)
    subject = load(Case(ModelSpec(name, path, options), "hook", device=asked.device, mode="inference"))
    seconds = asked.seconds / asked.turns
    ours, theirs, warned = [], [], set()
    with torch.no_grad():
        executor = make_executor("replay", for_verdict=False)
        made = make_front_end("hook").capture(subject.fresh_model(), subject.fresh_inputs(), executor)
        call = BoundCall("the capture", made.call, made.module, [subject.fresh_inputs()])
        clock = clock_for(subject.device)
        for turn in range(asked.turns):
            info = measure(
                call,
                call,
                clock=clock,
                seconds=seconds,
                samples_per_call=None,
                seed=turn,
                monitors=default_monitors(),
                waits=waits,
            )
            ours.append(median([*info.eager.samples_ms, *info.captured.samples_ms]))
            warned |= {warning.partition(":")[0] for warning in info.warnings}
            timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
            theirs.append(timer.blocked_autorange(min_run_time=seconds).median * 1e3)
    ratio = median([one / other for one, other in zip(ours, theirs, strict=True)])
    verdict = "agree" if abs(ratio - 1) <= LIMIT else "DIFFER"
    doubts = f"; warnings: {', '.join(sorted(warned))}" if warned else ""
    times = f"ours {median(ours):.4g} ms, torch's Timer {median(theirs):.4g} ms"
    print(f"{name}: {times}, ratio {ratio:.4f}: {verdict}{doubts}", flush=True)
    return abs(ratio - 1) <= LIMIT


if __name__ == "__main__":
    main()
