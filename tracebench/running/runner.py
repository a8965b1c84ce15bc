"""The parent side of one case: start its process, watch its limits, make its record whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracebench.case import Case
from tracebench.record import BatchTry, ErrorInfo, Record
from tracebench.running import journal
from tracebench.running.largest import run_largest
from tracebench.running.launch import Launcher, ServerDied, kill_group
from tracebench.running.limits import Limits, out_of_memory_kills, resident_bytes
from tracebench.userlocation import is_user_file, short

_POLL_S = 0.02
#: Time given to a hanging process to print its stack before it is killed.
_STACK_S = 0.3
_LOG_LINES = 30
_STACK_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
#: Modules worth importing in the server before it forks, by front end and executor: they take a second or more.
_COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
_PRELOAD = {"dynamo": ("torch._dynamo",), "inductor": _COMPILER, "dynamo native": _COMPILER}


@dataclass(frozen=True)
class _Ending:
    """How a job's process ended; ``reason`` is set if the harness ended it."""

    exit_code: int | None
    reason: str | None = None
    detail: str = ""


def run_case(
    case: Case,
    key: str,
    limits: Limits,
    launcher: Launcher,
    config: dict[str, Any] | None = None,
    dump: Path | None = None,
    artifact: Path | None = None,
) -> Record:
    """Run ``case`` in a process of its own and return its record.

    ``dump`` is the folder that graphs go to if they are asked for, and ``artifact`` the file for what is captured.
    Where its batch is to be the largest that fits, that is looked for first, each try in a process of its own.
    """
    if case.batch_limit is None:
        return _run_case(case, key, limits, launcher, config, dump, artifact)
    started_at, started = datetime.now(UTC).isoformat(timespec="milliseconds"), time.perf_counter()

    def sized(size: int) -> Case:
        return replace(case, batch_size=size, batch_limit=None)

    record, found = run_largest(
        lambda size: _try_batch(sized(size), size, limits, launcher),
        lambda size: _run_case(sized(size), key, limits, launcher, config, dump, artifact),
        case.batch_limit,
    )
    return replace(
        record,
        batch_search=found,
        notes=(*record.notes, f"batch_size=max: {found.ended}"),
        started_at=started_at,
        wall_s=time.perf_counter() - started,
    )


def _try_batch(case: Case, size: int, limits: Limits, launcher: Launcher) -> BatchTry:
    """Make the calls of ``case`` that need the most memory in a process of its own."""
    started = time.perf_counter()
    with _scratch() as scratch:
        ending = _run({"kind": "try", "case": case.to_dict()}, scratch, limits, launcher, _preload(case))
        entries = journal.read(scratch / "journal")
        failure = _failure(ending, entries, scratch / "log")
    seconds = time.perf_counter() - started
    if failure is None:
        told = {name: value for entry in entries for name, value in entry.get("set", {}).items()}
        status, error = str(told["status"]), told.get("error")
        detail = f"{error['type']}: {_first_line(error['message'])}" if error else ""
    else:
        status, detail = failure[0], _first_line(failure[1].message)
    outcome = {"done": "fits", "oom": "oom", "timeout": "timeout"}.get(status, "error")
    return BatchTry(size, outcome, seconds, detail)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]


def _run_case(
    case: Case,
    key: str,
    limits: Limits,
    launcher: Launcher,
    config: dict[str, Any] | None,
    dump: Path | None,
    artifact: Path | None,
) -> Record:
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    started = time.perf_counter()
    with _scratch() as scratch:
        job = {
            "kind": "case",
            "case": case.to_dict(),
            "dump": str((dump or scratch / "graphs").resolve()),
            "artifact": str((artifact or scratch / "artifact.pt").resolve()),
        }
        ending = _run(job, scratch, limits, launcher, _preload(case))
        entries = journal.read(scratch / "journal")
        failure = _failure(ending, entries, scratch / "log")
        if failure is None and (ending.reason or ending.exit_code):
            how = ending.detail or f"exit code {ending.exit_code}"
            stage = journal.last_stage(entries)
            entries.append({"note": f"verdict and figures are there, but {stage} did not come to its end: {how}"})
    return journal.assemble(
        entries,
        key=key,
        started_at=started_at,
        wall_s=time.perf_counter() - started,
        case=case.describe(),
        config=config or {},
        failure=failure,
    )


def ask_machine(launcher: Launcher) -> dict[str, Any]:
    """Return ``device`` (what ``auto`` stands for here), ``devices`` and ``environment`` of this machine.

    They are found out in a process of their own.

    Raises:
        ServerDied: torch does not start here; the message has what it printed last.
    """
    with _scratch() as scratch:
        ending = _run({"kind": "machine"}, scratch, Limits(seconds=300.0), launcher, ())
        entries = journal.read(scratch / "journal")
        if not journal.finished(entries):
            said = _tail(scratch / "log") or ending.detail
            raise ServerDied(f"torch does not start on this machine:\n{said}")
    found: dict[str, Any] = entries[0]["set"]
    return found


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tracebench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(job: dict[str, Any], scratch: Path, limits: Limits, launcher: Launcher, preload: tuple[str, ...]) -> _Ending:
    job |= {"journal": str(scratch / "journal"), "log": str(scratch / "log")}
    path = scratch / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    memory_limit = limits.memory_bytes()
    kills_before = out_of_memory_kills()
    try:
        process = launcher.start(path, preload)
        deadline = time.monotonic() + limits.seconds
        while (code := process.wait(_POLL_S)) is None:
            if time.monotonic() > deadline:
                _end(process.pid, process.wait)
                return _Ending(None, "timeout", f"not finished after limits.seconds={limits.seconds:g} s")
            used = resident_bytes(process.pid) if memory_limit is not None else None
            if used is not None and memory_limit is not None and used > memory_limit:
                kill_group(process.pid)
                process.wait(10.0)
                detail = f"used {used / 1e9:.1f} GB of memory, more than the limit of {memory_limit / 1e9:.1f} GB"
                return _Ending(None, "oom", f"{detail} (limits.memory_gb)")
        kill_group(process.pid)  # what the case itself started
    except ServerDied as error:
        launcher.close()
        return _Ending(None, "error", str(error))
    if code == -signal.SIGKILL and out_of_memory_kills() > kills_before:
        return _Ending(code, "oom", "the system ran out of memory and killed the process")
    return _Ending(code)


def _end(pid: int, wait: Any) -> None:
    """End a process that hangs, after it has written its Python stack to its log."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, getattr(signal, "SIGUSR1", signal.SIGTERM))
    if wait(_STACK_S) is None:
        kill_group(pid)
        wait(10.0)


def _failure(ending: _Ending, entries: list[journal.Entry], log: Path) -> tuple[str, ErrorInfo] | None:
    """Return status and error of a case whose process did not come to its end, or None if it did."""
    if journal.finished(entries):
        return None
    stage, tail = journal.last_stage(entries), _tail(log)
    if ending.reason is not None:
        kinds = {"timeout": "Timeout", "oom": "OutOfMemory", "error": "ServerDied"}
        error = ErrorInfo(stage, kinds[ending.reason], ending.detail, user_location=_hung_at(tail), log_tail=tail)
        return ending.reason, error
    code = ending.exit_code
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        message = f"the process was ended by {name}"
        return "crashed", ErrorInfo(stage, "Crash", message, user_location=_hung_at(tail), log_tail=tail, signal=name)
    message = f"the process exited with code {code} in the middle of the case"
    return "crashed", ErrorInfo(stage, "Crash", message, log_tail=tail, exit_code=code)


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    text = log.read_bytes()[-20_000:].decode("utf-8", errors="replace")
    # The list of loaded extension modules that a fatal signal leaves is no news to anyone.
    lines = [line for line in text.splitlines() if line and not line.startswith("Extension modules:")]
    return "\n".join(lines[-_LOG_LINES:])


def _hung_at(tail: str) -> str | None:
    """The user line in the stack that a dying process left in its log, innermost frame first."""
    for frame in _STACK_FRAME.finditer(tail):
        if is_user_file(frame["file"]):
            return short(frame["file"], int(frame["line"]))
    return None


def _preload(case: Case) -> tuple[str, ...]:
    names = (case.frontend, case.executor, f"{case.frontend} {case.executor}")
    return tuple(dict.fromkeys(module for name in names for module in _PRELOAD.get(name, ())))
