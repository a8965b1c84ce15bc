"""Brings what README.md and pages of docs/ show of runs up to date with the records of ``results/reference-*``."""

from __future__ import annotations

import re
from pathlib import Path

from tracebench.record import Record
from tracebench.report import load_records, render_table
from tracebench.report.plots import PLOTS, png

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/hooks.md", "docs/measuring.md")
_BLOCK = re.compile(r"(<!-- table of results/(?P<name>[\w-]+)(?P<short>, short)? -->\n```text\n).*?(```\n)", re.S)


def records_of(name: str) -> list[Record]:
    """Return the records of a reference run."""
    records, problems = load_records(ROOT / "results" / name)
    if problems:
        raise SystemExit("\n".join(problems))
    return records


def readme(text: str) -> str:
    """Return a page's text with the tables that the reference records give.

    A short table is the printed one without what stands below it, but for the closing count of cases.
    """

    def table(found: re.Match[str]) -> str:
        printed = render_table(records_of(found["name"]), width=100)
        if found["short"]:
            blocks = printed.split("\n\n")
            printed = "\n\n".join([*blocks[:2], blocks[-1]])
        return found[1] + printed.rstrip("\n") + "\n" + found[4]

    return _BLOCK.sub(table, text)


def main() -> None:
    """Write the pages and the plots that they show."""
    for page in PAGES:
        path = ROOT / page
        path.write_text(readme(path.read_text(encoding="utf-8")), encoding="utf-8")
    for plot, name in (("verdicts", "reference-cpu"), ("gains", "reference-executors")):
        draw, _ = PLOTS[plot]
        figure = draw(records_of(name))
        assert figure is not None
        (ROOT / "docs" / f"{plot}.png").write_bytes(png(figure))


if __name__ == "__main__":
    main()
