"""Which line of user code a verdict is probably due to, and what usually helps.

Eager runs the planned calls once more under watch. A capture keeps what Python decided on the example: so the first
line or value in which the failing call differs from the example's is suspected. Where the capture is wrong on the
example already, capturing is watched, too, and the lines are suspected that do what was found to differ.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracebench.failures import first_line
from tracebench.frontends.base import Capture, Inputs
from tracebench.observe.codelines import Line, line_at
from tracebench.record import Explanation, Suspect
from tracebench.soundness.advice import ARGUMENT_GUARD, KINDS, TAPE_ADVICE, refusal
from tracebench.soundness.calls import Call, plan
from tracebench.soundness.globals import Globals
from tracebench.soundness.numerics import exact_numerics
from tracebench.soundness.runs import Target, run
from tracebench.soundness.stage import CaptureFn, capture_copy
from tracebench.soundness.watch import Event, Watch, digest, is_watched
from tracebench.subject import Subject
from tracebench.userlocation import short

_AT_MOST = 2
#: Characters of a line's text that are quoted.
_TEXT = 100
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_ASPECT = re.compile(
    r"(?:^|\. )(?:side effect \((?P<effect>[\w ]+)\)|(?P<aspect>output|input mutation|state|attribute|alias|grad)\b)"
)
_GUARD = re.compile(r"GuardError: (?P<what>.+) at (?P<file>.+?):(?P<line>\d+): ")
_UNTAPEABLE = re.compile(r"the forward (?P<what>.+) at (?P<file>.+?):(?P<line>\d+), which a tape cannot repeat")
#: A counter of torchvision's own use, which is not kept while capturing.
_COUNTER = "_log_api_usage_once"

#: What differs -> traits of lines that may be why, likeliest first.
_TRAITS: dict[str, tuple[str, ...]] = {
    "printed": ("prints",),
    "random state": ("python draws", "draws"),
    "observe": ("writes", "in place"),
    "global": ("writes",),
    "attribute": ("writes", "in place"),
    "state": ("writes", "in place"),
    "input mutation": ("in place",),
    "grad": ("grad mode", "backward", "detaches"),
}
#: The same for the output, by front end: what its graphs cannot hold.
_OUTPUT_TRAITS: dict[str, tuple[str, ...]] = {
    "fx": ("draws", "python draws", "clock", "autocast", "grad mode", "foreign", "writes", "in place"),
    "jit_trace": ("python draws", "clock", "foreign", "effect", "writes"),
    "hook": ("python draws", "clock", "foreign", "writes"),
}
#: What differs beside values.
_EFFECTS = ("printed", "random state", "global", "attribute", "observe")
#: How strongly a difference between two calls speaks against a line; sizes differ most often without harm.
_RANKS = {"runs": 1, "path": 1, "raise": 1, "value": 2, "state": 2, "fact": 2, "default dtype": 2}
_RANKS |= {"argument": 3, "foreign": 3, "told": 3, "shape": 4}


@dataclass(frozen=True)
class Fault:
    """What is to be explained: a verdict that is not sound."""

    verdict: str
    front_end: str
    #: What the first failing probe says, or the refusal as ``Type: message``.
    detail: str
    #: That probe's name; empty for a refusal.
    probe: str = ""
    #: The traceback of a refusal, and the line that is named where it passes through no user code.
    traceback: str = ""
    location: str | None = None
    #: Whether a compiler ran the graphs, so that the fault may be its own.
    compiled: bool = False


def explain(subject: Subject, fault: Fault, capture_fn: CaptureFn, *, lazy: bool, seconds: float) -> Explanation:
    """Return the lines probably to blame for ``fault``, at most two, and what usually helps.

    ``lazy`` says that capturing takes place in the first call, where it cannot be watched. After ``seconds`` no
    further call is begun or watched. The subject is left as it was.
    """
    # Its warnings were there when the model was judged.
    with (
        subject.restoring_globals(),
        warnings.catch_warnings(record=True),
        contextlib.redirect_stdout(io.StringIO()),
        exact_numerics(),
    ):
        warnings.simplefilter("ignore")
        if subject.hooks.reset is not None:
            subject.fresh_model()  # what the globals start from
        watched = Globals(subject.model)
        try:
            return _Search(subject, fault, capture_fn, lazy, time.monotonic() + seconds, watched).explanation()
        except _CannotTell as error:
            return Explanation((), _general_advice(fault), f"could not tell: {error}")
        finally:
            watched.restore()


class _CannotTell(Exception):
    """No line can be suspected; the message says why."""


@dataclass(frozen=True)
class _Found:
    """A line under suspicion."""

    file: str
    line: int
    kind: str
    rank: int = 0
    name: str = ""
    #: Such as ``False on the example, True now``.
    change: str = ""

    def suspect(self) -> Suspect:
        what = KINDS[self.kind].what.format(name=self.name, change=self.change)
        if self.change and "{change}" not in KINDS[self.kind].what:
            what += f" ({self.change})"
        return _suspect(self.file, self.line, what)


def _suspect(file: str, line: int, what: str) -> Suspect:
    text = line_at(file, line).text
    text = text if len(text) <= _TEXT else f"{text[: _TEXT - 3].rstrip()}..."
    return Suspect(short(file, line), f"`{text}` {what}" if text else what)


@dataclass
class _Search:
    subject: Subject
    fault: Fault
    capture_fn: CaptureFn
    lazy: bool
    deadline: float
    watched: Globals

    def explanation(self) -> Explanation:
        if self.fault.verdict == "refused":
            return self._refused()
        if self.fault.front_end == "hook" and ARGUMENT_GUARD.search(self.fault.detail):
            note = "no line is to blame: a tape holds for arguments like the example's alone"
            return Explanation((), TAPE_ADVICE, note)
        calls = plan(self.subject).calls
        index = next((i for i, call in enumerate(calls) if call.name == self.fault.probe), None)
        if index is None:
            raise _CannotTell(f"there is no call {self.fault.probe!r} to repeat")
        example, failing = self._eager(calls, index)
        return self._ranked(self._suspected(example, failing), [example, failing])

    def _refused(self) -> Explanation:
        if self.fault.detail.startswith("TracingCheckError"):
            # The tracer ran the example twice and saw two things; eager may, too.
            example, again = self._eager(plan(self.subject).calls, 1)
            found = _differences(example, again)
            found += _with_traits(again, ("python draws", "clock", "writes"), rank=5)
            return self._ranked(found, [example, again])
        known = refusal(self.fault.front_end, self.fault.detail)
        if told := _UNTAPEABLE.search(self.fault.detail):
            return Explanation((_suspect(told["file"], int(told["line"]), told["what"]),), known.helps)
        places = [(file, int(line)) for file, line in _FRAME.findall(f"{self.fault.traceback}\n{self.fault.detail}")]
        if self.fault.location is not None:
            file, _, line = self.fault.location.rpartition(":")
            places.insert(0, (file, int(line)))
        for file, line in reversed(places):
            if is_watched(file):
                return Explanation((_suspect(file, line, known.what),), known.helps)
        raise _CannotTell("the error passes through no line of user code")

    def _ranked(self, found: list[_Found], seen: Sequence[Watch]) -> Explanation:
        cut = next((watch.cut for watch in seen if watch.cut), "")
        places: dict[tuple[str, int], _Found] = {}
        for item in sorted(found, key=lambda item: item.rank):
            places.setdefault((item.file, item.line), item)
        best = list(places.values())[:_AT_MOST]
        if not best:
            if cut:
                raise _CannotTell(f"the watch ended {cut}")
            if not any(watch.events for watch in seen):
                raise _CannotTell("no line of user code runs in these calls")
            raise _CannotTell("eager does on this call what it does on the example, as far as can be seen")
        # A second suspect that is much weaker than the first would only distract.
        best = [item for item in best if item.rank <= best[0].rank + 1]
        note = f"the watch ended {cut}: there may be better suspects after that" if cut else ""
        advice = KINDS[best[0].kind].advice(self.fault.front_end)
        return Explanation(tuple(item.suspect() for item in best), advice, note)

    def _eager(self, calls: Sequence[Call], index: int) -> tuple[Watch, Watch]:
        """Return what eager does on the example and on call ``index``, which may be the example."""
        self.watched.restore()
        model = self.subject.fresh_model()
        watches = {i: Watch(self.deadline) for i in (0, index)}
        now = 0

        def call(*args: Any, **kwargs: Any) -> Any:
            with watches[now].on() if now in watches else contextlib.nullcontext():
                return model(*args, **kwargs)

        for i, seen in enumerate(run(self.subject, calls[: index + 1], Target(call, model, model))):
            if seen.failure is not None and i in watches and not calls[i].invalid:
                raise _CannotTell(f"eager raises while it is watched: {seen.failure}")
            now = i + 1
            if now <= index and time.monotonic() >= self.deadline:
                raise _CannotTell(f"the time limit came before call {calls[index].name}")
        return watches[0], watches[index]

    def _suspected(self, example: Watch, failing: Watch) -> list[_Found]:
        """Return the lines under suspicion; a lower rank is a stronger one."""
        aspects = {match["effect"] or match["aspect"]: "" for match in _ASPECT.finditer(self.fault.detail)}
        aspects = dict.fromkeys(aspects or ("output",), "")
        plain = [
            aspect for aspect in aspects if aspect in ("printed", "random state", "global", "attribute", "observe")
        ]
        found = _differences(example, failing)
        if len(plain) == len(aspects) or example is failing:
            # Not the values, or wrong from the start: look at what eager does, before how two calls differ.
            found = [item for item in found if item.rank <= 1]
        captured = not self.lazy and (example is failing or not any(item.rank <= 2 for item in found))
        if captured:
            capturing, warned = self._capturing()
            found = _told(found + list(_parted(example, capturing)), warned)
        elif self.fault.front_end == "jit_trace":
            found = _told(found, self._capturing()[1])
        guard = _GUARD.search(self.fault.detail)
        if guard is not None and self.fault.front_end == "hook":
            found = _told(found, {(guard["file"], int(guard["line"])): guard["what"]}, rank=0)
        if self.lazy:
            found += _with_traits(failing, ("asks",), rank=1 if example is failing else 3)
        found += self._doing(failing, aspects)
        return found

    def _doing(self, failing: Watch, aspects: dict[str, str]) -> Iterator[_Found]:
        """Yield the lines that do what was found to differ, by what differs."""
        for aspect in aspects:
            traits = _TRAITS.get(aspect, ())
            if aspect not in _TRAITS and not self.fault.compiled:
                traits = _OUTPUT_TRAITS.get(self.fault.front_end, ())
            named = re.search(rf"(?:{aspect}|\({aspect}\)): ([\w.]+)", self.fault.detail)
            name = named[1].rpartition(".")[2] if named else ""
            effect = aspect not in ("output", "alias", "grad")
            yield from _with_traits(failing, traits, rank=2 if effect else 5, name=name)

    def _capturing(self) -> tuple[Watch, dict[tuple[str, int], str]]:
        """Return what the front end has the model do while it captures, and the lines that the tracer warns of."""
        watch = Watch(self.deadline, tensors=False)

        def capture(model: nn.Module, inputs: Inputs) -> Capture:
            with watch.on():
                return self.capture_fn(model, inputs)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                capture_copy(self.subject, capture, self.watched)
            except Exception as error:
                raise _CannotTell(f"capturing fails while it is watched: {first_line(error)}") from error
        warned = {
            (str(Path(item.filename)), item.lineno): "the tracer warned: " + first_line(item.message).partition(".")[0]
            for item in caught
            if issubclass(item.category, torch.jit._trace.TracerWarning) and is_watched(item.filename)
        }
        return watch, warned


def _differences(example: Watch, other: Watch) -> list[_Found]:
    """Return in what another call differs from the example's, up to the first line that is not the same."""
    found: list[_Found] = []
    last: dict[int, Event] = {}
    changes: dict[tuple[str, int], _Found] = {}
    depth = same = 0
    for before, now in zip(example.events, other.events, strict=False):
        if before.step != now.step:
            break
        same += 1
        depth = now.where[0]
        if now.kind == "line":
            last[depth] = now
        elif before.value != now.value or now.kind == "foreign":
            change = "" if now.kind == "foreign" else _change(before, now)
            found.append(_Found(*now.where[1:], now.kind, _RANKS[now.kind], now.name, change))
            changes.setdefault(now.where[1:], found[-1])
    if example is not other:
        found += _parting(example.events[same : same + 1], other.events[same : same + 1], last, depth, changes)
        if example.default_dtype != other.default_dtype:
            change = f"{digest(example.default_dtype)} on the example, {digest(other.default_dtype)} now"
            found += [
                _Found(file, line, "default dtype", _RANKS["default dtype"], change=change)
                for file, line, known in _executed(other)
                if "default dtype" in known.traits
            ]
    return found


def _change(before: Event, now: Event) -> str:
    if before.identity and now.identity:
        return "another object than on the example"
    values = [f"a {event.value.partition(' #')[0]}" if event.identity else event.value for event in (before, now)]
    return f"{values[0]} on the example, {values[1]} now"


def _parting(
    before: list[Event], now: list[Event], last: dict[int, Event], depth: int, changes: dict[tuple[str, int], _Found]
) -> Iterator[_Found]:
    """Yield the line after which two calls go different ways, given the next event of each (none at the end)."""
    if not before and not now:
        return
    levels = [events[0].where[0] if events else 0 for events in (before, now)]
    if now and now[0].kind == "raise":
        yield _Found(*now[0].where[1:], "raise", _RANKS["raise"], now[0].name)
        return
    decided = max(min(level, depth) for level in levels)
    if levels[1] > depth >= levels[0]:
        # Something new is called, at a line that is the same.
        yield _Found(*now[0].where[1:], "runs", _RANKS["runs"])
    elif decided in last:
        place = last[decided].where[1:]
        decisive = changes.get(place)
        kind = f"{decisive.kind} path" if decisive is not None and f"{decisive.kind} path" in KINDS else "path"
        kind = next((trait for trait in ("python draws", "clock") if trait in line_at(*place).traits), kind)
        yield _Found(*place, kind, _RANKS["path"], change=decisive.change if decisive is not None else "")
    elif now:
        yield _Found(*now[0].where[1:], "runs", _RANKS["runs"])


def _parted(eager: Watch, capturing: Watch) -> Iterator[_Found]:
    """Yield where capturing leaves the way that eager takes on the same inputs.

    A function that only one of them enters (a layer that the tracer keeps as one call, a helper of the tracer's) is
    passed over.
    """
    kinds = ("line", "state")
    ways = [
        [event for event in watch.events if event.kind in kinds and _COUNTER not in line_at(*event.where[1:]).text]
        for watch in (eager, capturing)
    ]
    if not ways[0] or not ways[1]:
        return
    origin = ways[0][0]
    start = next((i for i, event in enumerate(ways[1]) if event.where[1:] == origin.where[1:]), None)
    if start is None:
        return
    # The tracer may call the model from further down.
    down = ways[1][start].where[0] - origin.where[0]
    ways[1] = [event._replace(where=(event.where[0] - down, *event.where[1:])) for event in ways[1][start:]]
    places = [0, 0]
    last: dict[int, Event] = {}
    depth = 0
    while all(place < len(way) for place, way in zip(places, ways, strict=True)):
        ours, theirs = (way[place] for place, way in zip(places, ways, strict=True))
        if ours.step == theirs.step:
            depth = ours.where[0]
            if ours.kind == "line":
                last[depth] = ours
            elif ours.value != theirs.value and not ours.identity and not theirs.identity:
                change = f"{theirs.value} while capturing, {ours.value} now"
                yield _Found(*ours.where[1:], "state", 1, ours.name, change)
            places = [place + 1 for place in places]
            continue
        deeper = [i for i, event in enumerate((ours, theirs)) if event.where[0] > depth]
        if not deeper:
            break
        for i in deeper:
            while places[i] < len(ways[i]) and ways[i][places[i]].where[0] > depth:
                places[i] += 1
    else:
        if places[0] >= len(ways[0]):
            # Tracers may run the model again.
            return
    levels = [way[place].where[0] if place < len(way) else 0 for place, way in zip(places, ways, strict=True)]
    decided = last.get(max(min(level, depth) for level in levels))
    if decided is None:
        return
    traits = line_at(*decided.where[1:]).traits
    kind = next((trait for trait in ("asks", "python draws", "draws", "clock", "type") if trait in traits), "captured")
    yield _Found(*decided.where[1:], kind, 0)


def _told(found: list[_Found], told: dict[tuple[str, int], str], rank: int = _RANKS["told"]) -> list[_Found]:
    """Return ``found`` with the lines first that a front end itself tells of; what is not there is added."""
    here = {(item.file, item.line) for item in found}
    first = [replace(item, rank=item.rank - 10) if (item.file, item.line) in told else item for item in found]
    return first + [_Found(*place, "told", rank, text) for place, text in told.items() if place not in here]


def _executed(watch: Watch) -> Iterator[tuple[str, int, Line]]:
    """Yield each line that ran, once, in the order of the first time."""
    for file, number in dict.fromkeys(event.where[1:] for event in watch.events if event.kind == "line"):
        yield file, number, line_at(file, number)


def _with_traits(watch: Watch, traits: Sequence[str], rank: int, name: str = "") -> list[_Found]:
    """Return the lines that ran and have one of ``traits``: those that change ``name`` first, then in that order."""
    found = []
    for place, trait in enumerate(traits):
        for file, line, known in _executed(watch):
            if trait in known.traits:
                named = bool(name) and name in known.changes
                changed = sorted(known.changes - {"self"})
                said = name if named else changed[-1] if changed else "Python state"
                found.append((not named, place, _Found(file, line, trait, rank, said)))
    found.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in found[:_AT_MOST]]


def _general_advice(fault: Fault) -> str:
    if fault.verdict == "refused":
        return refusal(fault.front_end, fault.detail).helps
    if fault.compiled:
        return "run the case with executor=replay: if that is right, the fault is the compiler's"
    return ""
