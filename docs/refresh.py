"""Brings what README.md shows of a run up to date with the records of ``results/reference-cpu``."""

from __future__ import annotations

import re
from pathlib import Path

from tracebench.report import load_records, render_table
from tracebench.report.plots import PLOTS, png

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "results" / "reference-cpu"
_BLOCK = re.compile(r"(<!-- table of results/reference-cpu -->\n```text\n)(.*?)(```\n)", re.S)


def readme(text: str) -> str:
    """Return the README's text with the table that the reference records give."""
    records, problems = load_records(REFERENCE)
    if problems:
        raise SystemExit("\n".join(problems))
    table = render_table(records, width=100)
    return _BLOCK.sub(lambda found: found[1] + table.rstrip("\n") + "\n" + found[3], text)


def main() -> None:
    """Write README.md and the plot it shows."""
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8")), encoding="utf-8")
    records, _ = load_records(REFERENCE)
    draw, _ = PLOTS["verdicts"]
    figure = draw(records)
    assert figure is not None
    (ROOT / "docs" / "verdicts.png").write_bytes(png(figure))


if __name__ == "__main__":
    main()
