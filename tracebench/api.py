"""The harness from Python, for a model object in a notebook.

Cases run in this very process, so a model that crashes takes it along; the command line gives each case its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from torch import nn

from tracebench import subject as subjects
from tracebench.case import Case, ModelSpec, soundness_options
from tracebench.controls.vocabulary import wishes
from tracebench.errors import unknown_choice
from tracebench.executor_settings import checked
from tracebench.frontends import FRONT_ENDS
from tracebench.hookspec import check_alone, spelled
from tracebench.probes import ASPECTS, PROBES
from tracebench.record import Record
from tracebench.running import journal
from tracebench.running.stages import run_case
from tracebench.status import OPTIONAL_STAGES

_OPTIONS = (
    "executor",
    "executor_settings",
    "mode",
    "device",
    "dtype",
    "seed",
    "stages",
    "throughput_seconds",
    "optimizer",
    "probes",
    "aspects",
    "blame_seconds",
    "lifecycle_seconds",
    "name",
    "frontend_options",
    "controls",
    "ablation",
)


class Records(list[Record]):
    """Records whose printed form is the command line's table."""

    def __repr__(self) -> str:
        from tracebench.report import render_table

        return str(render_table(list(self)))

    __str__ = __repr__


def run(
    model: nn.Module,
    example_inputs: Any,
    frontend: str = "dynamo",
    other_inputs: Iterable[Any] = (),
    **options: Any,
) -> Record:
    """Run ``model`` through one front end and return its record.

    Args:
        model: left as it is; every run works on a copy. Its train/eval flag is respected.
        example_inputs: a tuple of positional arguments, or ``{"args": (...), "kwargs": {...}}``.
        frontend: dynamo, jit_trace, fx, hook or eager.
        other_inputs: inputs on which a sound capture must also match eager; with them no inputs are made up.
        options: ``executor`` (replay), ``executor_settings`` (such as ``{"mode": "max-autotune"}``), ``mode``
            (inference), ``device`` (auto), ``dtype`` (auto), ``seed`` (0), ``stages``, ``throughput_seconds`` (10),
            ``optimizer`` (sgd: its step is part of a call in training), ``probes`` and ``aspects`` (all),
            ``blame_seconds`` (20), ``lifecycle_seconds`` (20), ``name`` (the model's class), ``frontend_options`` (such
            as ``{"hook": function}`` with the front end hook), ``controls`` (such as ``{"disable": ["layer4.1"]}``) and
            ``ablation`` (True: say what each control did).

    Raises:
        RequestError: an option that does not exist or makes no sense.
    """
    for option in options:
        if option not in _OPTIONS:
            raise unknown_choice("option", option, _OPTIONS)
    if frontend not in FRONT_ENDS:
        raise unknown_choice("front end", frontend, FRONT_ENDS)
    executor = options.get("executor", "replay")
    controls = dict(options.get("controls", {}))
    wishes(controls, frontend)
    frontend_options = dict(options.get("frontend_options", {}))
    if (hook := frontend_options.get("hook")) is not None:
        frontend_options["hook"] = spelled(hook) if callable(hook) else hook
        check_alone(frontend_options, {}, controls)
    case = Case(
        model=ModelSpec(options.get("name", type(model).__name__), path=""),
        frontend=frontend,
        frontend_options=frontend_options,
        executor=executor,
        executor_settings=checked(executor, options.get("executor_settings", {})),
        mode=options.get("mode", "inference"),
        device=options.get("device", "auto"),
        dtype=options.get("dtype", "auto"),
        seed=options.get("seed", 0),
        controls=controls,
        ablation=options.get("ablation", True),
        stages=tuple(options.get("stages", OPTIONAL_STAGES)),
        soundness=soundness_options(**_soundness(options)),
        throughput={
            "seconds": options.get("throughput_seconds", 10.0),
            "optimizer": options.get("optimizer", "sgd"),
        },
    )
    subject = subjects.from_objects(case, model, example_inputs, tuple(other_inputs))
    entries: list[journal.Entry] = []
    started_at, started = datetime.now(UTC).isoformat(timespec="milliseconds"), time.perf_counter()
    run_case(case, journal.Journal(entries.append), subject)
    return journal.assemble(
        entries,
        key="",
        started_at=started_at,
        wall_s=time.perf_counter() - started,
        case=case.describe(),
        config=case.to_dict(),
    )


def _soundness(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: options[name] for name in ("probes", "aspects") if name in options}
    for name, words in (("probes", PROBES), ("aspects", tuple(ASPECTS))):
        for word in found.get(name, ()):
            if word not in words:
                raise unknown_choice(f"entry of {name}", word, words)
    return found | {name: options.get(name, 20.0) for name in ("blame_seconds", "lifecycle_seconds")}


def compare_frontends(
    model: nn.Module,
    example_inputs: Any,
    frontends: Sequence[str] = ("dynamo", "jit_trace", "fx", "hook"),
    **options: Any,
) -> Records:
    """Run ``model`` through each of ``frontends`` (see ``run``); the result prints as the command line's table."""
    return Records(run(model, example_inputs, frontend, **options) for frontend in frontends)
