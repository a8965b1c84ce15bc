"""The whole report of a results folder: summary.csv, the plots, the page, and the text for the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tracebench.errors import RequestError
from tracebench.record import Record, write_atomically
from tracebench.report import plots, webpage
from tracebench.report.columns import csv
from tracebench.report.load import load_records
from tracebench.report.table import MAX_WIDTH, render_table

T = TypeVar("T")


@dataclass
class Report:
    """What was built: the table as text, the files written, and what went wrong or is hidden."""

    table: str
    records: list[Record]
    paths: list[Path] = field(default_factory=list)
    #: Unreadable records, hidden older ones, and parts of the report that failed.
    problems: list[str] = field(default_factory=list)


def build(folder: Path, width: int = MAX_WIDTH, colour: bool = False) -> Report:
    """Build the report of ``folder`` from its records alone.

    A part that fails, such as a plot, is named among the problems; the others are built all the same.

    Raises:
        RequestError: the folder has no records.
    """
    folder = Path(folder)
    records, problems = load_records(folder)
    if not records:
        told = "".join(f"\n{problem}" for problem in problems)
        raise RequestError(
            f"{folder / 'records'} has no record to report.{told}\n"
            "Run cases into it first: python -m tracebench model=resnet50 frontend=dynamo "
            f"name={folder.resolve().name}"
        )
    report = Report(render_table(records, width, colour), records, problems=problems)
    _save(report, folder / "summary.csv", lambda: csv(records))
    pictures = _plots(report, folder / "plots", records)
    title = webpage.page_title(folder.resolve().name)
    _save(report, folder / "report.html", lambda: webpage.page(records, title, pictures, list(problems)))
    return report


def _plots(report: Report, folder: Path, records: Sequence[Record]) -> dict[str, tuple[bytes, str]]:
    """Draw and write every plot; remove those of an earlier report that no longer have anything to show."""
    pictures: dict[str, tuple[bytes, str]] = {}
    for name, (draw, caption) in plots.PLOTS.items():
        path = folder / f"{name}.png"
        picture = _attempt(report, path, lambda draw=draw: _picture(draw, records))  # type: ignore[misc]
        if picture is None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            continue
        pictures[name] = (picture, caption)
        _save(report, path, lambda picture=picture: picture)  # type: ignore[misc]
    return pictures


def _picture(draw: Callable[[Sequence[Record]], object], records: Sequence[Record]) -> bytes | None:
    figure = draw(records)
    return None if figure is None else plots.png(figure)  # type: ignore[arg-type]


def _attempt(report: Report, path: Path, make: Callable[[], T]) -> T | None:
    """Return what ``make`` makes, or None after noting why there is no ``path``."""
    try:
        return make()
    except Exception as error:
        report.problems.append(f"{path} not made: {type(error).__name__}: {error}")
        return None


def _save(report: Report, path: Path, make: Callable[[], str | bytes]) -> None:
    """Make the content of ``path`` and write it, noting the path or why there is none."""

    def write() -> Path:
        write_atomically(path, make())
        return path

    written = _attempt(report, path, write)
    if written is not None:
        report.paths.append(written)
