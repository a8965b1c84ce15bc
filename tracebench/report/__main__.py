"""``python -m tracebench.report DIR``: the table, the plots and the page again, from the records alone."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from tracebench.errors import RequestError
from tracebench.report import build, terminal_width, use_colour


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 if there is nothing to report or nowhere to write it."""
    parser = argparse.ArgumentParser(
        prog="python -m tracebench.report",
        description="Print the table of a finished run and write summary.csv, plots/*.png and report.html again.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder of a run, such as results/NAME")
    parser.add_argument("--width", type=int, default=None, help="width of the table (default: terminal, at most 100)")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        report = build(options.folder, options.width or terminal_width(), use_colour(sys.stdout))
    except (RequestError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report.table)
    if report.paths:
        print()
    for path in report.paths:
        print(path)
    for problem in report.problems:
        print(f"note: {problem}", file=sys.stderr)
    if not report.paths:
        print(f"nothing could be written to {options.folder}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
