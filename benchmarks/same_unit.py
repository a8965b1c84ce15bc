"""Do ops and FLOPs of every front end agree with eager's, so that coverage is one unit for all?

Run: ``python benchmarks/same_unit.py [--size PIXELS] [--front-ends fx,hook] [ARCH ...]``. Counts one steady-state call
of each image classifier of torchvision (or of those named) under eager and each front end, with the recorder that
coverage uses. Prints a line a model, with what differs by op, and exits 1 if FLOPs differ anywhere or a front end
refuses.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from pathlib import Path

import torch
import torchvision

from tracebench import config
from tracebench.case import Case, ModelSpec
from tracebench.coverage.difference import surplus
from tracebench.coverage.recorder import Tally, record
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.subject import Subject, load

FRONT_ENDS = ("dynamo", "jit_trace", "fx", "hook")
#: Sides that a model insists on: multiples of its patches or windows.
SIDES = {"vit_h_14": 112, "maxvit_t": 224, "inception_v3": 96}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="*", metavar="ARCH")
    parser.add_argument("--size", type=int, default=96, help="side of the images in pixels")
    parser.add_argument("--front-ends", default=",".join(FRONT_ENDS))
    asked = parser.parse_args()
    archs = asked.archs or torchvision.models.list_models(module=torchvision.models)
    front_ends = asked.front_ends.split(",")
    wrong = 0
    for number, arch in enumerate(archs, 1):
        started = time.perf_counter()
        subject = _subject(arch, SIDES.get(arch, asked.size))
        eager = _tally(subject, None)
        said = []
        for name in front_ends:
            try:
                found = _tally(subject, name)
            except Exception as error:
                said.append(f"{name} refuses: {type(error).__name__}: {error}")
                wrong += 1
                continue
            wrong += found.flops != eager.flops
            said += _differences(name, eager, found)
        seconds = time.perf_counter() - started
        agreed = "agree" if not said else "; ".join(said)
        print(
            f"[{number}/{len(archs)}] {arch}: {len(eager.ops)} ops, {eager.flops:,} FLOPs: {agreed} ({seconds:.0f} s)",
            flush=True,
        )
        gc.collect()
    print(f"{len(archs)} models, {', '.join(front_ends)}: FLOPs differ, or a refusal, in {wrong} cases")
    raise SystemExit(wrong > 0)


def _subject(arch: str, side: int) -> Subject:
    path = config.models_folder() / "vision.py"
    return load(Case(ModelSpec(arch, str(Path(path)), {"arch": arch, "image_size": side}), "eager", device="cpu"))


def _tally(subject: Subject, front_end: str | None) -> Tally:
    model, inputs, again = subject.fresh_model(), subject.fresh_inputs(), subject.fresh_inputs()
    call = model
    with torch.no_grad(), torch.jit.optimized_execution(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if front_end is not None:
            executor = make_executor("replay", for_verdict=False)
            call = make_front_end(front_end).capture(model, inputs, executor, marked=True).call
        call(*again.args)
        inputs = subject.fresh_inputs()
        return record(lambda: call(*inputs.args))


def _differences(name: str, eager: Tally, found: Tally) -> list[str]:
    parts = []
    if found.flops != eager.flops:
        parts.append(f"{found.flops:,} FLOPs")
    for word, ops in (("lacks", surplus(eager.ops, found.ops)), ("adds", surplus(found.ops, eager.ops))):
        counts: dict[str, int] = {}
        for op in ops:
            counts[op.op] = counts.get(op.op, 0) + op.count
        parts += [f"{word} {op} x{count}" for op, count in counts.items()]
    if len(found.inside) != len(found.ops):
        parts.append(f"{len(found.ops) - len(found.inside)} ops outside")
    return [f"{name} {', '.join(parts)}"] if parts else []


if __name__ == "__main__":
    main()
