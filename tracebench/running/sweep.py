"""The cases of one request: which of them still have to run, one after the other, each record kept as it comes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracebench import environment
from tracebench.case import Case, key, labels
from tracebench.errors import RequestError, check_device
from tracebench.record import Record, load, save
from tracebench.running.launch import Launcher
from tracebench.running.limits import Limits
from tracebench.running.runner import ask_machine, run_case

#: Which cases run although a record of them exists: none, those that failed, all.
RERUNS = ("missing", "failed", "all")


@dataclass(frozen=True)
class Request:
    """One case with what is not part of its identity: its limits and the configuration it came from."""

    case: Case
    limits: Limits
    config: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A case that is over: its record, how many are over of how many, and an estimate of the seconds left."""

    record: Record
    case: Case
    #: The case's name among those of this sweep.
    label: str
    number: int
    total: int
    reused: bool
    seconds_left: float | None
    #: Why the record could not be saved.
    problem: str | None = None


def run_sweep(requests: list[Request], folder: Path, rerun: str, launcher: Launcher) -> Iterator[Step]:
    """Run what has to run and yield every case as it ends, those with a record in ``folder`` first.

    Raises:
        RequestError: a device that is not here, a ``folder`` that cannot be written to, a model file that cannot be
            read.
        ServerDied: torch does not start on this machine.
    """
    machine = ask_machine(launcher)
    for request in requests:
        if request.case.device != "auto":
            check_device(request.case.device, machine["devices"])
    records = folder / "records"
    check_writable(records)
    here = {**environment.versions(), "device_name": str(machine["environment"]["device_name"])}
    wanted: dict[str, Request] = {}
    for request in requests:
        case = request.case
        if case.device == "auto":
            case = replace(case, device=str(machine["device"]))
        wanted.setdefault(key(case, here), replace(request, case=case))
    known = {name: found for name in wanted if (found := _known(records / f"{name}.json", rerun)) is not None}
    named = dict(zip(wanted, labels([request.case for request in wanted.values()]), strict=True))
    total, number = len(wanted), 0
    for name, record in known.items():
        number += 1
        yield Step(record, wanted[name].case, named[name], number, total, reused=True, seconds_left=None)
    spent: list[float] = []
    for name, request in wanted.items():
        if name in known:
            continue
        started = time.perf_counter()
        dump = folder / "graphs" / name
        shutil.rmtree(dump, ignore_errors=True)  # what an earlier run of the case left
        artifact = folder / "artifacts" / f"{name}.pt"
        record = run_case(request.case, name, request.limits, launcher, request.config, dump, artifact)
        record = replace(
            record, environment={**machine["environment"], **record.environment, "isolation": launcher.name}
        )
        problem = None
        try:
            save(record, records)
        except OSError as error:
            problem = f"the record could not be saved in {records}: {error}"
        spent.append(time.perf_counter() - started)
        number += 1
        yield Step(
            record,
            request.case,
            named[name],
            number,
            total,
            reused=False,
            seconds_left=sum(spent) / len(spent) * (total - number),
            problem=problem,
        )


def _known(path: Path, rerun: str) -> Record | None:
    """The record at ``path`` if it is there, readable and need not be made again."""
    if rerun == "all" or not path.exists():
        return None
    try:
        record = load(path)
    except ValueError:
        return None  # half a record is none: the case runs again and replaces it
    return None if rerun == "failed" and record.status != "done" else record


def check_writable(folder: Path) -> None:
    """Make ``folder`` and see that files can be made in it.

    Raises:
        RequestError: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(dir=folder)
        os.close(handle)
        Path(probe).unlink()
    except OSError as error:
        raise RequestError(
            f"the results folder {folder} cannot be written to: {error.strerror or error}. "
            "Choose another with results_dir=FOLDER."
        ) from None
