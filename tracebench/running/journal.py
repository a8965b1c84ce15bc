"""What a running case tells, entry by entry, so that nothing found out is lost if its process dies."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tracebench.record import ErrorInfo, Record, from_dict, to_dict

Entry = dict[str, Any]


class Journal:
    """Tells the stages of a case and what they found to ``write``, one entry at a time."""

    def __init__(self, write: Callable[[Entry], None]) -> None:
        self._write = write
        #: The stage that began last.
        self.current = "load"
        #: The fields of the record that were told so far.
        self.found: dict[str, Any] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Enclose one stage; its seconds are told if it ends without an exception."""
        self.current = name
        started = time.perf_counter()
        self._write({"begin": name})
        yield
        self._write({"end": name, "seconds": time.perf_counter() - started})

    def put(self, **fields: Any) -> None:
        """Tell fields of the record."""
        self.found |= fields
        self._write({"set": to_dict(fields)})

    def note(self, text: str) -> None:
        """Tell something that belongs to no figure."""
        self._write({"note": text})

    def finish(self) -> None:
        """Tell that the case came to its end."""
        self._write({"finished": True})


def file_writer(path: Path) -> Callable[[Entry], None]:
    """Return a writer that appends to ``path``; each entry is there as soon as the call returns."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(entry: Entry) -> None:
        os.write(handle, (json.dumps(entry) + "\n").encode())

    return write


def read(path: Path) -> list[Entry]:
    """Return the entries of a journal file; a last line that was cut off is left out."""
    entries: list[Entry] = []
    if not path.exists():
        return entries
    for line in path.read_bytes().split(b"\n"):
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


def finished(entries: Iterable[Entry]) -> bool:
    """Return whether the case came to its end."""
    return any("finished" in entry for entry in entries)


def last_stage(entries: Iterable[Entry]) -> str:
    """Return the stage that began last; ``load`` if none did."""
    begun = [entry["begin"] for entry in entries if "begin" in entry]
    return begun[-1] if begun else "load"


def assemble(
    entries: list[Entry],
    *,
    key: str,
    started_at: str,
    wall_s: float,
    case: dict[str, Any],
    config: dict[str, Any],
    failure: tuple[str, ErrorInfo] | None = None,
) -> Record:
    """Make the record of a case from what it told and, if its process failed, from how (status and error)."""
    fields: dict[str, Any] = {"case": case}
    stages: dict[str, float] = {}
    notes: list[str] = []
    for entry in entries:
        fields.update(entry.get("set", {}))
        if "end" in entry:
            stages[entry["end"]] = entry["seconds"]
        if "note" in entry:
            notes.append(entry["note"])
    fields |= {
        "key": key,
        "started_at": started_at,
        "wall_s": wall_s,
        "config": config,
        "stages": stages,
        "notes": notes,
    }
    if failure is not None:
        status, error = failure
        fields |= {"status": status, "error": to_dict(error)}
    record = from_dict(Record, fields)
    assert isinstance(record, Record)
    return record
