"""The child side: one case from load to throughput, told to a journal."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from tracebench import environment
from tracebench import subject as subjects
from tracebench.artifact import judge_artifact, save_artifact, try_artifact
from tracebench.case import Case
from tracebench.controls.ablation import differences, figures
from tracebench.controls.causes import cause as cause_of_nothing
from tracebench.controls.orders import Order, Orders, bind
from tracebench.controls.reach import Reach, reach
from tracebench.controls.vocabulary import wishes
from tracebench.coverage.breaks import with_costs
from tracebench.coverage.stage import cover, refused_coverage
from tracebench.dump import structured_trace, write_graphs
from tracebench.errors import CallError, CaptureError, RequestError
from tracebench.executors import make_executor
from tracebench.executors.replay import Replay
from tracebench.failures import first_line, is_out_of_memory, own_error
from tracebench.frontends import make_front_end
from tracebench.frontends.base import UNSAVED, Capture, Events, Executor, FrontEnd, Inputs
from tracebench.probes import LIFECYCLE, chosen
from tracebench.record import CaptureInfo, ControlEffect, ErrorInfo, ThroughputInfo
from tracebench.running import compiling
from tracebench.running.journal import Journal
from tracebench.soundness.blame import find_blame
from tracebench.soundness.lifecycle import follow
from tracebench.soundness.randomness import judge_random_numbers
from tracebench.soundness.stage import CaptureFn, judge
from tracebench.soundness.suspects import Fault, explain
from tracebench.subject import Subject, seed_everything
from tracebench.throughput.roofline import roofline
from tracebench.throughput.stage import paid_back, time_capture, try_calls
from tracebench.userlocation import definition, is_user_file, short, user_location


def run_case(
    case: Case,
    journal: Journal,
    subject: Subject | None = None,
    dump: Path | None = None,
    artifact: Path | None = None,
) -> None:
    """Run every stage of ``case``; ``subject`` is the model if it did not come from a file.

    ``dump`` is the folder that graphs are written to, if the case asks for them, and ``artifact`` the file that what is
    captured is saved to.

    A refusal of the front end is a finding. So is bad input and running out of memory, told as such.

    Raises:
        BaseException: only what is neither, such as ``SystemExit`` from the model.
    """
    asked: _Asked | None = None
    with contextlib.ExitStack() as in_force:
        afterwards: list[Callable[[], None]] = []
        try:
            with journal.stage("load"):
                asked = _load(case, journal, subject)
                in_force.enter_context(_current(asked.subject.device))
                in_force.enter_context(asked.front_end.controlled(asked.orders))
            with journal.stage("reference"):
                _reference(asked.subject)
            afterwards = _run_stages(asked, journal, dump if case.capture["dump"] else None)
            if case.capture["save"] and artifact is not None and journal.found.get("verdict") != "refused":
                afterwards.append(functools.partial(_save, asked, journal, artifact))
        except Exception as error:
            if is_out_of_memory(error):
                journal.put(status="oom", error=describe_error(journal.current, error))
            else:
                # What the user asked for makes no sense, or the harness has a fault: neither is a verdict.
                journal.put(status="error", verdict=None, error=describe_error(journal.current, error))
        # Verdict and figures are told by now: should what follows end the process, they are not lost.
        journal.finish()
        for look in afterwards:
            look()
    # The case's own controls are no longer in force, so that each can be left out.
    if asked is not None and asked.orders and case.ablation and journal.found.get("status") == "done":
        _ablate(asked, journal)


def try_case(case: Case, journal: Journal) -> None:
    """Make the calls of ``case`` that need the most memory, and tell its status: ``done``, ``oom`` or ``error``.

    Eager and the capture are called with both at hand, as when they are timed; where soundness is asked for, the
    example is judged. A refusal is no failure: eager fits then.
    """
    try:
        with journal.stage("load"):
            asked = _load(case, journal, None)
        subject = asked.subject
        with journal.stage("reference"):
            _reference(subject)
        with _current(subject.device), asked.front_end.controlled(asked.orders):

            def captures(*, for_verdict: bool) -> CaptureFn:
                executor = functools.partial(_executor, asked.case, for_verdict=for_verdict)
                return _capturer(asked.front_end, executor, asked.orders, marked=False)

            with journal.stage("throughput"), _told(journal, "throughput"):
                optimizer = str(case.throughput.get("optimizer", "sgd"))
                try_calls(subject, captures(for_verdict=False), optimizer=optimizer)
            if "soundness" in case.stages:
                with journal.stage("soundness"), _told(journal, "soundness"):
                    judge(dataclasses.replace(subject, probes=chosen(())), captures(for_verdict=True))
        journal.put(status="done")
    except Exception as error:
        status = "oom" if is_out_of_memory(error) else "error"
        journal.put(status=status, error=describe_error(journal.current, error))
    journal.finish()


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A case with all that it takes to run it."""

    case: Case
    subject: Subject
    front_end: FrontEnd
    orders: Orders


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which a device that was asked for by number is the one that a bare ``cuda`` stands for."""
    numbered = device.type != "cpu" and device.index is not None
    return torch.accelerator.device_index(device.index) if numbered else contextlib.nullcontext()


def _load(case: Case, journal: Journal, subject: Subject | None) -> _Asked:
    subject = subject or subjects.load(case)
    case = _resolved(case, subject)
    # A model file speaks of the front end, so of its graphs as captured; a compiler may add faults of its own, and
    # controls may. It knows the front end as it is without options.
    front_end = make_front_end(case.frontend, case.frontend_options)
    plain = case.executor == "replay" and not case.executor_settings and not case.controls
    plain = plain and front_end == make_front_end(case.frontend, {})
    expected = subject.expect.get(case.frontend) if plain else None
    journal.put(case=case.describe(), environment=environment.describe(subject.device), expected=expected)
    example = (subject.example.args, subject.example.kwargs)
    orders = bind(wishes(case.controls, case.frontend), subject.model, subject.file, example)
    why = "the case did not get that far" if case.ablation else "not asked for: controls.ablation=false"
    journal.put(controls=tuple(_effect(order, None, why) for order in orders.orders))
    if case.frontend == "eager" and (case.executor != "replay" or case.executor_settings):
        journal.note("frontend=eager has no graphs, so the executor has nothing to run")
    looked_into = {"dynamo": (), "fx": ("opaque",)}.get(case.frontend, ("disable", "opaque"))
    if _executor(case).compiles and looked_into and orders.of(*looked_into):
        journal.note(
            f"executor {case.executor} compiles through the pieces that controls keep apart in the graphs of "
            f"{case.frontend}: verdict and speed are of code that holds them, coverage is of the graphs as captured"
        )
    return _Asked(case, subject, front_end, orders)


def _run_stages(asked: _Asked, journal: Journal, dump: Path | None) -> list[Callable[[], None]]:
    """Run the stages from capture on; return what else is asked for that is no part of verdict and figures."""
    case, subject, front_end, orders = asked.case, asked.subject, asked.front_end, asked.orders
    #: What executors say, each makes anew for every capture.
    told: set[str] = set()

    def tell(note: str) -> None:
        if note not in told:
            told.add(note)
            journal.note(note)

    def captures(*, marked: bool = False, for_verdict: bool = False) -> CaptureFn:
        def executor() -> Executor:
            # Coverage is of the graphs as captured, whatever runs them otherwise.
            return Replay() if marked else _executor(case, for_verdict=for_verdict, tell=tell)

        return _capturer(front_end, executor, orders, marked=marked)

    with journal.stage("capture"):
        # Under a compiling executor the first call belongs to capturing, as it does for a lazy front end.
        lazy = front_end.lazy or _executor(case).compiles
        with structured_trace(dump) if dump is not None else contextlib.nullcontext():
            info, refusal, first_call, notes = _capture(subject, lazy, captures(), dump)
        if info is not None:
            journal.put(capture=info)
        for note in notes:
            journal.note(note)

    afterwards: list[Callable[[], None]] = []

    def look_into(verdict: str, detail: str, probe: str = "", error: ErrorInfo | None = None) -> None:
        seconds = float(case.soundness["blame_seconds"])
        if "soundness" in case.stages and seconds > 0:
            capture = captures(for_verdict=True)
            seen = (error.traceback or "", error.user_location) if error else ("", None)
            as_captured = case.executor == "replay" and not case.executor_settings
            fault = Fault(verdict, front_end.name, detail, probe, *seen, not as_captured)
            afterwards.append(
                lambda: _look_into(
                    journal, subject, capture, fault, lazy=lazy, controlled=bool(orders), seconds=seconds
                )
            )

    if refusal is not None:
        journal.put(status="done", verdict="refused", error=refusal, coverage=refused_coverage())
        look_into("refused", f"{refusal.type}: {refusal.message}", error=refusal)
        return afterwards
    journal.put(status="done")

    if "soundness" in case.stages:
        judged: list[Capture] = []

        def kept(model: nn.Module, inputs: Inputs) -> Capture:
            judged.append(captures(for_verdict=True)(model, inputs))
            return judged[-1]

        with journal.stage("soundness"):
            try:
                found = judge(subject, kept)
            except CaptureError as error:
                if is_out_of_memory(error):
                    raise
                journal.note("the front end captured the model once and refused it the next time")
                refusal = _refusal(error, subject.model, "soundness")
                journal.put(verdict="refused", error=refusal, coverage=refused_coverage())
                return []
            for made in judged:
                # Recompiles come with the later calls, which the capture stage does not make.
                made.events.refresh()
                assert info is not None
                specialised = tuple(made.events.specialised)
                info = dataclasses.replace(
                    info, recompiles=tuple(made.events.recompiles), specialised=specialised, tree=_tree(made.events)
                )
                journal.put(capture=info)
                for note in made.events.notes:
                    if note not in notes:
                        journal.note(note)
            if "random" in subject.probes and _executor(case).own_random_numbers:
                # The capture that was judged draws eager's numbers; the one that users run does not.
                extra = judge_random_numbers(subject, captures())
                found = found if extra is None else found.joined(extra)
            journal.put(verdict=found.verdict, probes=found.probes)
            for text in found.notes:
                journal.note(text)
        if found.verdict != "unsound" and info is not None:
            for warning in info.warnings:
                if warning.startswith("TracerWarning"):
                    journal.note(f"no probe differs, but the tracer warned; other_inputs() could tell. {warning}")
        if found.verdict in ("unsound", "restricted"):
            failing = "diverge" if found.verdict == "unsound" else "raise"
            wrong = [probe for probe in found.probes if probe.outcome == failing]
            # What goes wrong beside the output may have another cause, and matters less.
            telling = next((probe for probe in wrong if probe.detail.startswith("output")), wrong[0])
            look_into(found.verdict, telling.detail, telling.name)
        seconds = float(case.soundness["lifecycle_seconds"])
        if subject.probes.intersection(LIFECYCLE) and seconds > 0:
            afterwards.append(lambda: _lifecycle(journal, subject, captures(for_verdict=True), seconds))
    if first_call is not None:
        journal.note(f"coverage and throughput n/a: the capture raises on the example inputs: {first_call}")
        return afterwards
    covered = None
    if "coverage" in case.stages:
        with journal.stage("coverage"), _told(journal, "coverage"):
            covered = cover(subject, captures(marked=True), dump)
            journal.put(coverage=covered.info)
            if info is not None:
                breaks = with_costs(info.graph_breaks, covered.breaks)
                journal.put(capture=dataclasses.replace(info, graph_breaks=breaks, guard_us=covered.guard_us))
    if "throughput" in case.stages:
        with journal.stage("throughput"), _told(journal, "throughput"):
            seconds = float(case.throughput["seconds"])
            optimizer = str(case.throughput.get("optimizer", "sgd"))
            timed, spent_s = time_capture(subject, captures(), seconds=seconds, optimizer=optimizer)
            journal.put(throughput=timed)
            if case.throughput.get("roofline", True):
                under = roofline(subject, None if covered is None else covered.info, timed)
                timed = dataclasses.replace(timed, roofline=under)
                journal.put(throughput=timed)
            if compiling.wanted(case):
                afterwards.append(functools.partial(_compile_time, journal, case, timed, spent_s))
    return afterwards


@contextlib.contextmanager
def prepared(case: Case) -> Iterator[tuple[Subject, CaptureFn]]:
    """Return the subject of ``case``, whose model has run once, and what captures it to be timed, controls in force.

    Raises:
        RequestError: the request makes no sense.
    """
    asked = _load(case, Journal(lambda entry: None), None)
    with asked.front_end.controlled(asked.orders):
        _reference(asked.subject)
        executor = functools.partial(_executor, asked.case)
        yield asked.subject, _capturer(asked.front_end, executor, asked.orders, marked=False)


def _compile_time(journal: Journal, case: Case, timed: ThroughputInfo, spent_s: float) -> None:
    """Add compile times to what was ``timed``; they need processes of their own, and none of them a part here."""
    with journal.stage("compile"):
        found, said = compiling.compile_seconds(case)
        timed = dataclasses.replace(timed, compile_s=found, warnings=(*timed.warnings, *said))
        journal.put(throughput=paid_back(timed, spent_s))


def _ablate(asked: _Asked, journal: Journal) -> None:
    """Run the stages once more without each control, and tell what it did."""
    effects = list(journal.found["controls"])
    given = figures(journal.found)
    with journal.stage("ablation"):
        for index, order in enumerate(asked.orders.orders):
            rest = asked.orders.without(order)
            quiet = Journal(lambda entry: None)
            try:
                with asked.front_end.controlled(rest):
                    _run_stages(dataclasses.replace(asked, orders=rest), quiet, None)
                without = figures(quiet.found)
                changed = differences(without, given)
                if changed:
                    detail = "" if without.refusal is None else f"refused without it: {first_line(without.refusal)}"
                    effects[index] = _effect(order, changed, detail)
                else:
                    covered = (quiet.found.get("coverage"), journal.found.get("coverage"))
                    reached = _reach(asked.subject, order) if order.target else None
                    model = asked.subject.model
                    why = cause_of_nothing(order, rest, asked.case.frontend, model, reached, without, covered)
                    effects[index] = _effect(order, "none", why)
                effects[index] = dataclasses.replace(effects[index], without=without)
            except Exception as error:
                effects[index] = _effect(
                    order, None, f"not measured without it: {type(error).__name__}: {first_line(error)}"
                )
            # Should the next one end the process, this one is told.
            journal.put(controls=tuple(effects))


def _effect(order: Order, effect: Any, detail: str) -> ControlEffect:
    told = order.instruction
    target = told.target if told.value is None else f"{told.target}:{told.value}"
    return ControlEffect(told.control, target, effect, detail)


def _reach(subject: Subject, order: Order) -> Reach | None:
    """Return how an eager run of the example comes by the piece of ``order``; None where it does not stand watching."""
    assert order.target is not None
    model, inputs = subject.fresh_model(), subject.fresh_inputs()
    try:
        with subject.grad_mode(), subject.hooks.call_context(0), contextlib.redirect_stdout(io.StringIO()):
            return reach(order.target, model, lambda: model(*inputs.args, **inputs.kwargs))
    except Exception:
        return None


def _save(asked: _Asked, journal: Journal, path: Path) -> None:
    """Save what is captured, and see what another process gets from it."""
    subject = asked.subject
    with journal.stage("artifact"), subject.grad_mode():
        try:
            inputs = subject.fresh_inputs()
            capture = _capturer(asked.front_end, Replay, asked.orders, marked=False)
            made = capture(subject.fresh_model(), subject.fresh_inputs())
            if made.save is None:
                if not any(note.startswith(UNSAVED) for note in made.events.notes):
                    journal.note(f"{UNSAVED}{made.unsavable or f'{asked.case.frontend} has no way to'}")
                return
            saved = save_artifact(made.save, path)
            given = subject.fresh_inputs()
            seed_everything(subject.seed)
            with subject.hooks.call_context(0):
                returned = made.call(*inputs.args, **inputs.kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            journal.note(f"{UNSAVED}{type(error).__name__}: {first_line(own_error(error))}")
            return
        found = judge_artifact(
            saved,
            tree_leaves(returned),
            lambda: try_artifact(saved, given.args, dict(given.kwargs), subject.seed, subject.training),
        )
        journal.put(capture=dataclasses.replace(journal.found["capture"], artifact=found))


def _lifecycle(journal: Journal, subject: Subject, capture: CaptureFn, seconds: float) -> None:
    with journal.stage("lifecycle"), _told(journal, "lifecycle"):
        journal.put(lifecycle=follow(subject, capture, seconds=seconds))


def _look_into(
    journal: Journal,
    subject: Subject,
    capture: CaptureFn,
    fault: Fault,
    *,
    lazy: bool,
    controlled: bool,
    seconds: float,
) -> None:
    """Look for the line and for the submodule at fault, together for ``seconds``."""
    started = time.monotonic()
    with journal.stage("explanation"):
        try:
            journal.put(explanation=explain(subject, fault, capture, lazy=lazy, seconds=seconds / 2))
        except Exception as error:
            journal.note(f"explanation n/a: {type(error).__name__}: {first_line(error)}")
    if fault.verdict == "restricted":
        return
    if controlled:
        journal.note("blame n/a: submodules are not judged by themselves under controls")
        return
    left = seconds - (time.monotonic() - started)
    with journal.stage("blame"):
        try:
            blame = find_blame(subject, capture, fault.verdict, fault.detail, lazy=lazy, seconds=left)
            journal.put(blame=blame)
        except Exception as error:
            journal.note(f"blame n/a: {type(error).__name__}: {first_line(error)}")


def _executor(case: Case, *, for_verdict: bool = False, tell: Callable[[str], None] = lambda note: None) -> Executor:
    """Return a new executor as ``case`` asks for; its device is known by now."""
    return make_executor(
        case.executor,
        for_verdict=for_verdict,
        front_end=case.frontend,
        settings=case.executor_settings,
        device=case.device,
        tell=tell,
    )


def _capturer(front_end: FrontEnd, executor: Callable[[], Executor], orders: Orders, *, marked: bool) -> CaptureFn:
    """Bind a front end to executors; what it raises comes as ``CaptureError``."""

    def capture(model: nn.Module, inputs: Inputs) -> Capture:
        runner = executor()
        try:
            made = front_end.capture(model, inputs, runner, marked=marked, orders=orders)
        except Exception as error:
            raise CaptureError(f"{type(error).__name__}: {error}") from error
        return dataclasses.replace(made, compilations=lambda: made.events.compilations + runner.compilations)

    return capture


@contextlib.contextmanager
def _told(journal: Journal, stage: str) -> Iterator[None]:
    """Note that a figure could not be had because eager or the capture does not stand being called so often."""
    try:
        yield
    except (CallError, CaptureError) as error:
        if is_out_of_memory(error):
            raise
        journal.note(f"{stage} n/a: {first_line(error)}")


def _resolved(case: Case, subject: Subject) -> Case:
    return dataclasses.replace(
        case, mode=subject.mode, device=str(subject.device), dtype=subject.dtype, batch_size=subject.batch_size
    )


def _reference(subject: Subject) -> None:
    model, inputs = subject.fresh_model(), subject.fresh_inputs()
    try:
        with subject.grad_mode(), subject.hooks.call_context(0):
            model(*inputs.args, **inputs.kwargs)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise RequestError(
            f"the model {subject.name!r} raises on its own example inputs when run eagerly, before any capture: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def _capture(
    subject: Subject, lazy: bool, capture: CaptureFn, dump: Path | None
) -> tuple[CaptureInfo | None, ErrorInfo | None, str | None, list[str]]:
    """Return the events of capturing, or why it was refused, what a first call of the capture raised, and notes."""
    model, inputs, again = subject.fresh_model(), subject.fresh_inputs(), subject.fresh_inputs()
    first_call = None
    with warnings.catch_warnings(record=True) as caught, subject.grad_mode():
        warnings.simplefilter("always")
        seed_everything(subject.seed)
        started = time.perf_counter()
        try:
            made = capture(model, inputs)
            if lazy:
                _call(subject, made, again)
            seconds = time.perf_counter() - started
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None, _refusal(error, model, "capture"), None, []
        if not lazy:
            try:
                _call(subject, made, again)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                first_call = f"{type(error).__name__}: {first_line(error)}"
    events = made.events
    events.refresh()
    if dump is not None:
        write_graphs(dump, events.graphs)
    info = CaptureInfo(
        seconds=seconds,
        graphs=len(events.graph_nodes),
        graph_breaks=tuple(events.graph_breaks),
        recompiles=tuple(events.recompiles),
        guards=events.guards,
        constants=tuple(events.constants),
        specialised=tuple(events.specialised),
        excluded=tuple(events.excluded),
        graph_nodes=tuple(events.graph_nodes),
        tree=_tree(events),
        warnings=tuple(dict.fromkeys(_warning(w) for w in caught if not _about_torch(w))),
        dump=None if dump is None else f"{dump.parent.name}/{dump.name}",
    )
    return info, None, first_call, list(dict.fromkeys(events.notes))


def _tree(events: Events) -> tuple[str, ...] | None:
    return None if events.tree is None else tuple(events.tree)


def _refusal(error: Exception, model: nn.Module, stage: str) -> ErrorInfo:
    told = describe_error(stage, own_error(error))
    if told.user_location is None:
        # Raised outside the model's code, over what its forward takes or returns.
        location = getattr(own_error(error), "location", None) or definition(model.forward)
        told = dataclasses.replace(told, user_location=location)
    return told


def _call(subject: Subject, capture: Capture, inputs: Inputs) -> None:
    with subject.hooks.call_context(0):
        capture.call(*inputs.args, **inputs.kwargs)
    subject.synchronise()


def _about_torch(warning: warnings.WarningMessage) -> bool:
    """Whether a warning speaks of torch's own future rather than of this model."""
    return issubclass(warning.category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning))


def _warning(warning: warnings.WarningMessage) -> str:
    place = f" (at {short(warning.filename, warning.lineno)})" if is_user_file(warning.filename) else ""
    return f"{warning.category.__name__}: {first_line(warning.message)}{place}"


def describe_error(stage: str, error: BaseException) -> ErrorInfo:
    """Return the record's form of an exception, its traceback included."""
    return ErrorInfo(
        stage=stage,
        type=type(error).__name__,
        message=str(error).strip(),
        user_location=user_location(error),
        traceback="".join(traceback.format_exception(error)),
    )
