"""Records from a folder: every readable one, and what is wrong with the others."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

from tracebench.errors import RequestError
from tracebench.record import Record, load
from tracebench.report.facts import order
from tracebench.report.text import plural
from tracebench.status import STATUSES, VERDICTS


def load_records(folder: Path) -> tuple[list[Record], list[str]]:
    """Return the records of ``folder/records`` in the order they are shown, and what there is to say about the rest.

    A file that is not a record is named among the problems. Of several records of one case only the newest
    is returned; how many older ones are hidden is said as well.

    Raises:
        RequestError: the folder has no records.
    """
    place = Path(folder) / "records"
    if not place.is_dir():
        what = "has no folder 'records'" if Path(folder).is_dir() else "does not exist"
        raise RequestError(
            f"{folder} {what}.\nGive the folder of a finished run, such as results/NAME, or make one:\n"
            f"  python -m tracebench model=resnet50 frontend=dynamo name={Path(folder).name or 'NAME'}"
        )
    records, problems = [], []
    for path in sorted(place.glob("*.json")):
        if path.name.startswith("."):
            continue
        try:
            record = load(path)
            _check(record)
        except ValueError as error:
            text = str(error)
            problems.append(text if str(path) in text else f"{path} is not a tracebench record: {text}")
            continue
        records.append(record)
    newest, hidden = _newest(records)
    if hidden:
        problems.append(f"{plural(hidden, 'older record')} of the same cases not shown: the newest of each case is")
    return order(newest), problems


def _newest(records: list[Record]) -> tuple[list[Record], int]:
    """Return the newest record of each case, and how many were left out."""
    newest: dict[str, Record] = {}
    for record in records:
        case = json.dumps(record.case, sort_keys=True)
        known = newest.get(case)
        if known is None or record.started_at >= known.started_at:
            newest[case] = record
    return list(newest.values()), len(records) - len(newest)


def _check(record: Record) -> None:
    """Raise a ValueError if a value has a type or is a word that no record has."""
    problem = _misfit(record, Record, "")
    if not problem and record.status not in STATUSES:
        problem = f"unknown status {record.status!r}"
    if not problem and record.verdict not in (None, *VERDICTS):
        problem = f"unknown verdict {record.verdict!r}"
    if problem:
        raise ValueError(problem)


def _misfit(value: Any, hint: Any, where: str) -> str | None:
    """Return what in ``value`` does not fit ``hint``, or None. A float may be null: that is how NaN is saved."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or (value is None and (hint is float or origin is types.UnionType)):
        return None
    if origin is types.UnionType:
        return _misfit(value, args[0], where)
    if origin is tuple:
        found = (_misfit(item, args[0], f"{where}[{index}]") for index, item in enumerate(value))
        return next(filter(None, found), None)
    if dataclasses.is_dataclass(hint) and dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(hint)
        found = (_misfit(getattr(value, name), inner, f"{where}.{name}".lstrip(".")) for name, inner in hints.items())
        return next(filter(None, found), None)
    wanted = origin or hint
    accepted = (int, float) if wanted is float else wanted
    if isinstance(value, accepted) and (wanted is bool or not isinstance(value, bool)):
        return None
    return f"{where} should be {getattr(wanted, '__name__', wanted)}, not {type(value).__name__}"
