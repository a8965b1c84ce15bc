"""What a record says in words: its outcome, its name among others, why it is not sound, what else to know."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracebench.record import Excluded, GraphBreak, OpCount, Probe, Record, Specialisation, joined
from tracebench.report.text import clean, clip, percent, plural, size, some
from tracebench.status import OUTCOMES, Word, as_expected, outcome

#: Front ends in the order they are shown; others follow by name.
FRONTENDS = ("dynamo", "jit_trace", "fx", "hook", "eager")
#: Parts of a case that name a row, where they differ between records, and how each is said.
_AXES = ("executor", "mode", "device", "dtype", "batch_size", "seed", "controls")
#: Outcomes that enter a mean.
USABLE = ("sound", "restricted")
_MESSAGE_LIMIT = 400


def word(record: Record) -> Word:
    """Return the one word that stands for ``record``."""
    name = outcome(record.status, record.verdict)
    return OUTCOMES.get(name) or Word(name, "failure", "#e7e9ed", "an outcome this version does not know")


def order(records: Iterable[Record]) -> list[Record]:
    """Return ``records`` by model, then variant, then front end, in an order that depends on nothing else."""

    def key(record: Record) -> tuple[Any, ...]:
        case = record.case
        frontend = str(case.get("frontend") or "")
        rank = FRONTENDS.index(frontend) if frontend in FRONTENDS else len(FRONTENDS)
        options = [fixed_text(case.get(name)) for name in ("options", *_AXES)]
        return (str(case.get("model") or ""), options, rank, frontend, fixed_text(case), record.started_at, record.key)

    return sorted(records, key=key)


def fixed_text(value: Any) -> str:
    """Return a text that is equal for equal values; nothing and an empty mapping are the same."""
    return json.dumps(value or None, sort_keys=True, default=str) if value != 0 else "0"


@dataclass(frozen=True)
class Names:
    """How records are told apart: only by what differs between them."""

    axes: tuple[str, ...]
    #: Models that appear with several sets of options, and front ends that do, each with the options that differ.
    models: Mapping[str, frozenset[str]]
    frontends: Mapping[str, frozenset[str]]
    #: Models that appear with several batch sizes: only theirs was chosen, others have that of their file.
    batches: frozenset[str]
    #: Hooks of users' own, each with the shortest name that tells it from the others.
    hooks: Mapping[str, str]

    def row(self, record: Record) -> str:
        """Return the model and what varies besides the front end."""
        case = record.case
        model = clean(case.get("model") or "(unnamed model)")
        model += _options(case.get("options"), self.models.get(model))
        told = [model]
        for axis in self.axes:
            own = axis == "batch_size" and clean(case.get("model") or "") not in self.batches
            # Inference is what one assumes; training is said.
            if not own and not (axis == "mode" and case.get(axis) == "inference"):
                told.append(setting(axis, case))
        return ", ".join(told)

    def column(self, record: Record) -> str:
        """Return the front end, with its options if it appears with several."""
        name = clean(record.case.get("frontend") or "(no front end)")
        if (hook := own_hook(record)) is not None:
            return f"{name}({self.hooks.get(hook, hook)})"
        return name + _options(record.case.get("frontend_options"), self.frontends.get(name))

    def full(self, record: Record) -> str:
        """Return the name of the case: ``jit_trace on resnet50``."""
        return f"{self.column(record)} on {self.row(record)}"


def names(records: Sequence[Record]) -> Names:
    """Return how to name each of ``records``."""
    axes = tuple(axis for axis in _AXES if len(_told(records, axis)) > 1)
    sized = [record for record in records if record.case.get("batch_size") is not None]
    return Names(
        axes,
        _differing(records, "model", "options"),
        _differing([record for record in records if own_hook(record) is None], "frontend", "frontend_options"),
        frozenset(_values(sized, "model", "batch_size", 2)),
        _short_hooks(records),
    )


def own_hook(record: Record) -> str | None:
    """Return the file or function of the user's own hook that captured, or None: the front end is a built-in one."""
    found = (record.case.get("frontend_options") or {}).get("hook")
    return None if found is None else clean(found)


def _short_hooks(records: Sequence[Record]) -> dict[str, str]:
    hooks = dict.fromkeys(hook for record in records if (hook := own_hook(record)) is not None)
    # A file is named without its folder and suffix, where no other has that name.
    short = {hook: hook.replace("\\", "/").rpartition("/")[2].replace(".py", "") for hook in hooks}
    seen = Counter(short.values())
    return {hook: name if seen[name] == 1 else hook for hook, name in short.items()}


def _told(records: Sequence[Record], axis: str) -> dict[str, Any]:
    """Return the distinct values of a part of the case, but for what a case that failed early left open."""
    found: dict[str, Any] = {}
    for record in records:
        value = _of(record.case, axis)
        if record.status == "done" or value not in ("auto", None):
            found.setdefault(fixed_text(value), value)
    return found


def executor(case: Mapping[str, Any]) -> str:
    """Return the executor of a case with what it was told: ``inductor(mode=max-autotune)``."""
    settings = case.get("executor_settings")
    return clean(case.get("executor") or "(no executor)") + (f"({mapping(settings)})" if settings else "")


def _of(case: Mapping[str, Any], axis: str) -> Any:
    return executor(case) if axis == "executor" and case.get("executor") else case.get(axis)


def _values(records: Sequence[Record], name: str, part: str, least: int) -> dict[str, list[Any]]:
    """Return the distinct values of a part of the case by ``name``, where there are ``least`` or more."""
    seen: dict[str, dict[str, Any]] = {}
    for record in records:
        value = record.case.get(part)
        seen.setdefault(clean(record.case.get(name) or ""), {}).setdefault(fixed_text(value), value)
    return {key: list(values.values()) for key, values in seen.items() if len(values) >= least}


def _differing(records: Sequence[Record], name: str, part: str) -> dict[str, frozenset[str]]:
    """Return by ``name`` which options are not the same in all records, where any is not."""
    found = {}
    for key, values in _values(records, name, part, 2).items():
        given = [value if isinstance(value, dict) else {} for value in values]
        names = {option for one in given for option in one}
        found[key] = frozenset(
            option for option in names if len({fixed_text([one.get(option), option in one]) for one in given}) > 1
        )
    return found


def _options(options: Any, shown: frozenset[str] | None) -> str:
    """Return the options to be shown, such as ``(a=1 b=2)``; nothing where none differ."""
    if shown is None:
        return ""
    return f"({mapping({name: value for name, value in (options or {}).items() if name in shown})})"


def mapping(value: Any) -> str:
    """Return a mapping as ``a=1 b=[x, y]``."""
    if not isinstance(value, dict):
        return clean(value)
    return " ".join(f"{clean(key)}={_item(item)}" for key, item in value.items())


def _item(value: Any) -> str:
    return f"[{', '.join(map(clean, value))}]" if isinstance(value, (list, tuple)) else clean(value)


def controls(case: Mapping[str, Any]) -> str:
    """Return the name of the preset of a case where it says all, else the controls."""
    asked = case.get("controls")
    return clean(case.get("controls_preset") or mapping(asked)) if asked else "no controls"


def setting(axis: str, case: Mapping[str, Any]) -> str:
    """Return what a case sets a part of it to, as it is named in a row."""
    if axis == "controls":
        return controls(case)
    value = _of(case, axis)
    if value is None:
        return f"no {axis.replace('_', ' ')}"
    return {"batch_size": "batch ", "seed": "seed "}.get(axis, "") + clean(value)


def shared(records: Sequence[Record], axis: str) -> str | None:
    """Return the value of a part of the case that all ``records`` have in common, or None."""
    values = list(_told(records, axis).values())
    return clean(values[0]) if len(values) == 1 and values[0] is not None else None


def environment(record: Record, name: str) -> str | None:
    """Return ``device_name``, ``torch`` or another version from the environment section, however deep it lies."""
    found = record.environment.get(name)
    for section in ("versions", "machine", "device", name):
        inner = record.environment.get(section)
        if found is None and isinstance(inner, dict):
            found = inner.get(name)
    return clean(found) if isinstance(found, (str, int, float)) else None


def device_name(record: Record) -> str | None:
    """Return the name of the hardware the case ran on."""
    names = ["device_name", "cpu"] if str(record.case.get("device") or "cpu").startswith("cpu") else ["device_name"]
    return next((found for name in names if (found := environment(record, name))), None)


def machine(records: Sequence[Record]) -> str:
    """Return the devices of ``records``: ``cuda (NVIDIA H200)``. A case that failed early may not know its own."""
    seen = dict.fromkeys((clean(record.case.get("device") or "auto"), device_name(record)) for record in records)
    named = {device for device, name in seen if name}
    told = [f"{device} ({name})" if name else device for device, name in seen if name or device not in named]
    known = [device for device in told if device != "auto"]
    return some(known or ["unknown device"], 3, "device", ", ")


def missing(record: Record, stage: str) -> str:
    """Return what stands for a figure that is not there: ``-`` not asked for, ``n/a`` not applicable."""
    asked = record.config.get("stages")
    if isinstance(asked, (list, tuple)) and stage in ("soundness", "coverage", "throughput") and stage not in asked:
        return "-"
    if record.status != "done" or record.verdict == "refused":
        return "n/a"
    return "n/a" if stage in record.stages else "-"


def failing(record: Record) -> list[Probe]:
    """Return the probes that do not match: silent differences first, then loud ones."""
    probes = record.probes or ()
    return [probe for outcome in ("diverge", "raise") for probe in probes if probe.outcome == outcome]


def why(record: Record) -> str | None:
    """Return why a case is not plainly sound, or None if there is nothing to explain."""
    return "; ".join(reasons(record)) or None


def reasons(record: Record) -> list[str]:
    """Return the parts of ``why``: what is wrong, where, probably why, and what usually helps, as far as is known."""
    name = word(record).name
    if name in ("sound", "no verdict"):
        return []
    if name in ("unsound", "restricted"):
        return [f"{name}: {_probes(record)}", *_blame(record), *_explanation(record)]
    stage = record.error.stage if record.error else ""
    where = f" in stage {clean(stage)}" if stage and not (name == "refused" and stage == "capture") else ""
    before = f" (verdict before that: {record.verdict})" if record.status != "done" and record.verdict else ""
    return [f"{name}{where}: {_cause(record)}{before}", *_blame(record), *_explanation(record)]


def _blame(record: Record) -> list[str]:
    """Return where the fault is, if a part of the model shows it by itself."""
    blame = record.blame
    if blame is None or not blame.path:
        return []
    where = f" at {clean(blame.location)}" if blame.location else ""
    unsure = "" if blame.complete else ", as far as the search got"
    return [f"the smallest part that shows it: {clean(blame.path)} ({clean(blame.type)}{where}){unsure}"]


def probable_cause(record: Record) -> str | None:
    """Return the lines of user code that a verdict is probably due to, and what they do; None where none is known."""
    suspects = record.explanation.suspects if record.explanation else ()
    return ", or of ".join(f"{clean(item.location)}: {clean(item.what)}" for item in suspects) or None


def _explanation(record: Record) -> list[str]:
    """Return why that is, as far as it can be told, and what usually helps."""
    found = record.explanation
    if found is None:
        return []
    cause = probable_cause(record)
    told = [f"probably because of {cause}"] if cause else [clean(found.note)] if found.note else []
    return told + ([f"what usually helps: {clean(found.advice)}"] if found.advice else [])


def _probes(record: Record) -> str:
    found = failing(record)
    if not found:
        return "the record names no failing probe"
    verb = {"diverge": "differs", "raise": "raises"}
    # Probes that fail alike are named together.
    alike: dict[tuple[str, str], list[str]] = {}
    for probe in found:
        detail = clip(clean(probe.detail).removeprefix("raises "), 200)
        alike.setdefault((verb[probe.outcome], detail), []).append(clean(probe.name))
    said = [
        f"{how} on {', '.join(names)}" + (f": {detail}" if detail else "") for (how, detail), names in alike.items()
    ]
    return some(said, 2, "reason")


def _cause(record: Record) -> str:
    error = record.error
    if error is None:
        return "the record has no error"
    if record.status == "crashed" and (error.signal or error.exit_code is not None):
        cause = clean(error.signal) if error.signal else f"exit code {error.exit_code}"
        last = [line for line in (error.log_tail or "").splitlines() if line.strip()]
        return f"{cause}; last output: {clip(clean(last[-1]), 200)}" if last else cause
    said = ": ".join(part for part in (clean(error.type), clip(clean(error.message), _MESSAGE_LIMIT)) if part)
    return (said or "no message") + (f" at {clean(error.user_location)}" if error.user_location else "")


def breaks(record: Record) -> list[GraphBreak]:
    """Return the graph breaks by distinct user location, the dearest first; reports of one location are joined."""
    merged: dict[str, GraphBreak] = {}
    for found in record.capture.graph_breaks if record.capture else ():
        place = found.location or f"no location: {found.reason}"
        merged[place] = joined(merged[place], found) if place in merged else found
    return sorted(merged.values(), key=lambda found: (-(found.ms or 0.0), -(found.count or 0)))


def break_text(found: GraphBreak) -> str:
    """Return a graph break as ``reason at file:line (3 times a call, 12 ops outside, 4.5 % of its time)``."""
    place = f" at {clean(found.location)}" if found.location else ""
    said = [
        f"{found.count} times a call" if found.count is not None and found.count != 1 else "",
        f"{plural(found.ops, 'op')} outside" if found.ops else "",
        f"{percent(min(found.share, 1.0))} % of its time" if found.share is not None else "",
    ]
    told = ", ".join(filter(None, said))
    return f"{clip(clean(found.reason), 200)}{place}" + (f" ({told})" if told else "")


def remarks(record: Record) -> list[str]:
    """Return what else to know about a case: its graph breaks, what is baked in, and the controls that did nothing."""
    said: list[str] = []
    found = breaks(record)
    if found and record.capture:
        reasons = some([break_text(item) for item in found], 3, "break")
        said.append(f"{plural(record.capture.graphs, 'graph')}; breaks: {reasons}")
    told = fixed(record)
    if told:
        said.append(told)
    excluded = record.capture.excluded if record.capture else ()
    if excluded:
        listed = [_excluded(item) for item in excluded]
        said.append(f"left to Python, for it refuses: {some(listed, 3, 'module')}")
    if record.capture is not None and (artifact := record.capture.artifact) is not None:
        said.append(f"artifact: {artifact.mb:.4g} MB in {clean(artifact.path)}; {clean(artifact.detail)}")
    if record.coverage is not None and record.coverage.note:
        said.append(f"coverage: {clean(record.coverage.note)}")
    if record.coverage is not None and record.coverage.missing:
        count, named = _counted(record.coverage.missing)
        said.append(f"{plural(count, 'op')} of eager {'is' if count == 1 else 'are'} not run ({named})")
    if record.coverage is not None and record.coverage.extra:
        count, named = _counted(record.coverage.extra)
        said.append(f"{plural(count, 'op')} {'is' if count == 1 else 'are'} run that eager does not run ({named})")
    return said


def tree(record: Record) -> list[str]:
    """Return how the tapes of a capture branch, a line for each check and each answer; indentation is kept."""
    lines = (record.capture.tree if record.capture else None) or ()
    return [" " * (len(line) - len(line.lstrip(" "))) + clean(line) for line in lines]


def could_exclude(record: Record) -> bool:
    """Return whether the model was refused by a front end that could have left what refuses to Python."""
    return record.verdict == "refused" and record.case.get("frontend_options", {}).get("on_refusal") == "refuse"


def constant_bytes(record: Record) -> int | None:
    """Return the size of the tensors that were baked in, or None if one of them does not tell its own."""
    found = record.capture.constants if record.capture else None
    sizes = [item.bytes for item in found or () if item.bytes is not None]
    return sum(sizes) if found is not None and len(sizes) == len(found) else None


def fixed(record: Record) -> str | None:
    """Return what a capture fixed that eager decides anew, or None if that is no more than what any capture does.

    Sizes of inputs alone, and attributes and modes, which only matter if someone changes them, are no news.
    """
    if record.capture is None:
        return None
    constants, found = record.capture.constants, record.capture.specialised or ()
    said: list[str] = []
    if constants:
        total = constant_bytes(record)
        told = [size(total)] if total is not None else []
        told += [_places(item.location for item in constants)]
        inside = "; ".join(filter(None, told))
        said.append(f"baked in: {plural(len(constants), 'constant')}" + (f" ({inside})" if inside else ""))
    parts = [_fixed_at(kind, [item for item in found if item.kind == kind]) for kind in ("branch", "value", "size")]
    if said or any(parts):
        inputs = sum(item.count for item in found if item.kind == "shape")
        parts.append(f"sizes of {plural(inputs, 'input')}" if inputs else "")
    if any(parts):
        said.append(f"fixed: {', '.join(filter(None, parts))}")
    return "; ".join(said) or None


def _fixed_at(kind: str, found: Sequence[Specialisation]) -> str:
    """Return ``2 branches at my_model.py:12``."""
    if not found:
        return ""
    places = _places(item.location for item in found)
    return plural(sum(item.count for item in found), kind) + (f" at {places}" if places else "")


def _places(locations: Iterable[str | None]) -> str:
    return some([clean(place) for place in dict.fromkeys(locations) if place], 3, "line", ", ")


def _excluded(item: Excluded) -> str:
    where = f" at {clean(item.location)}" if item.location else ""
    return f"{clean(item.path) or 'the whole model'} ({clean(item.type)}{where}): {clip(clean(item.reason), 120)}"


def _counted(ops: Sequence[OpCount]) -> tuple[int, str]:
    """Return how many ops there are, and the most frequent by name: ``aten.randn x12``."""
    by_name: Counter[str] = Counter()
    for op in ops:
        by_name[clean(op.op)] += op.count
    return by_name.total(), some([f"{name} x{count}" for name, count in by_name.most_common()], 3, "op name", ", ")


def timing_warnings(record: Record) -> tuple[str, ...]:
    """Return the warnings of the throughput stage."""
    return record.throughput.warnings if record.throughput else ()


def lifecycle(record: Record) -> str | None:
    """Return which changes after capture the capture does not follow, or None if that was not asked."""
    if record.lifecycle is None:
        return None
    said = {"diverge": "silently", "raise": "raises"}
    missed = [f"{probe.name} ({said[probe.outcome]})" for probe in record.lifecycle if probe.outcome in said]
    return f"does not follow: {', '.join(missed)}" if missed else "follows every change that could be tried"


def shared_notes(records: Sequence[Record], naming: Names) -> list[str]:
    """Return each distinct note once, with the cases it holds for."""
    holders: dict[str, list[str]] = {}
    for record in records:
        for note in record.notes:
            holders.setdefault(clean(note), []).append(naming.full(record))
    return [f"{some(cases, 3, 'case', ', ')}: {note}" for note, cases in holders.items()]


def interval(records: Sequence[Record]) -> str:
    """Return what the intervals of the speedups are called: ``99 % interval``, or ``interval`` where they differ."""
    found = {record.throughput.speedup.confidence for record in records if record.throughput}
    return f"{found.pop():.0%}".replace("%", " %") + " interval" if len(found) == 1 else "interval"


def speedup(record: Record) -> float | None:
    """Return the measured speedup, or None."""
    value = record.throughput.speedup.ratio if record.throughput else None
    return value if value is not None and value > 0 else None


@dataclass(frozen=True)
class Mean:
    """The geometric mean of the speedups of a group, ``used`` of whose ``total`` cases have one that counts."""

    group: str
    value: float
    used: int
    total: int


def geometric_means(records: Sequence[Record]) -> list[Mean]:
    """Return the mean speedup of each front end and executor over its sound and restricted cases.

    Devices, modes, dtypes and controls are not mixed where they differ. A group with fewer than two
    such cases has no mean.
    """
    naming = names(records)
    axes = [axis for axis in ("device", "mode", "dtype", "controls") if axis in naming.axes]
    groups: dict[str, list[Record]] = {}
    for record in records:
        case = record.case
        parts = [
            case.get("frontend") if own_hook(record) is None else naming.column(record),
            "with",
            executor(case),
            *(controls(case) if axis == "controls" else case.get(axis) for axis in axes),
        ]
        groups.setdefault(" ".join(clean(part) for part in parts if part is not None), []).append(record)
    means = []
    for group, members in groups.items():
        logs = [math.log(value) for record in members if word(record).name in USABLE and (value := speedup(record))]
        if len(logs) >= 2:
            means.append(Mean(group, math.exp(math.fsum(logs) / len(logs)), len(logs), len(members)))
    return means


def counts(records: Sequence[Record]) -> str:
    """Return ``12 cases: 5 sound, 2 unsound, 5 refused``, in the order of the table of words."""
    seen = Counter(word(record).name for record in records)
    listed = [*(name for name in OUTCOMES if name in seen), *(name for name in seen if name not in OUTCOMES)]
    return f"{plural(len(records), 'case')}: {', '.join(f'{seen[name]} {name}' for name in listed)}"


def surprises(records: Sequence[Record], naming: Names) -> list[str]:
    """Return, for each case that did not end as its model's file expects, what was found and what was expected."""
    return [
        f"{naming.full(record)}: {word(record).name}, but its file expects {' or '.join(record.expected or ())}"
        for record in records
        if as_expected(record.status, record.verdict, record.expected) is False
    ]


def means(records: Sequence[Record]) -> list[str]:
    """Return the geometric means with their counts: failures are counted, never averaged."""
    return [
        f"{mean.group}: {mean.value:.2f}x ({mean.used} of {mean.total} cases: sound or restricted, and timed)"
        for mean in geometric_means(records)
    ]


def agreement(records: Sequence[Record]) -> list[str]:
    """Return per front end how many cases ended as their files expect, and how many of these are silently wrong."""
    judged: dict[str, list[Record]] = {}
    for record in records:
        if as_expected(record.status, record.verdict, record.expected) is not None:
            judged.setdefault(clean(record.case.get("frontend") or ""), []).append(record)
    lines = []
    for front_end, found in judged.items():
        right = sum(as_expected(r.status, r.verdict, r.expected) is True for r in found)
        wrong = sum(record.verdict == "unsound" for record in found)
        lines.append(f"{front_end}: agreement {right}/{len(found)}; silently wrong on {wrong} of {len(found)}")
    return lines
