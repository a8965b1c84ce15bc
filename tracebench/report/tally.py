"""How many of the models each front end captures, and how that ends, as a small table under the main one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tracebench.record import Record
from tracebench.report import facts
from tracebench.report.text import aligned, cells, clean, wrap
from tracebench.status import OUTCOMES

#: Verdicts of a front end that made a capture, right or wrong.
_CAPTURED = ("sound", "restricted", "unsound")


@dataclass(frozen=True)
class Tally:
    """The outcomes of the cases of one front end under otherwise equal settings."""

    group: str
    outcomes: Counter[str]

    @property
    def cases(self) -> int:
        """How many cases there are, whatever became of them."""
        return self.outcomes.total()

    @property
    def captured(self) -> int:
        """Of how many cases there is a capture that was judged."""
        return sum(self.outcomes[name] for name in _CAPTURED)

    @property
    def usable(self) -> int:
        """How many of these are never silently wrong."""
        return sum(self.outcomes[name] for name in facts.USABLE)


def tallies(records: Sequence[Record]) -> list[Tally]:
    """Return the tally of each front end; settings that differ besides the model are not mixed.

    None where that compares nothing: a single front end, or no more than one case of each.
    """
    naming = facts.names(records)
    axes = [axis for axis in naming.axes if axis not in ("batch_size", "seed")]
    found: dict[str, Counter[str]] = {}
    for record in records:
        if record.case.get("frontend") == "eager":
            continue  # captures nothing
        settings = (facts.setting(axis, record.case) for axis in axes)
        found.setdefault(", ".join((naming.column(record), *settings)), Counter())[facts.word(record).name] += 1
    compares = len(found) > 1 and any(counts.total() > 1 for counts in found.values())
    return [Tally(group, counts) for group, counts in found.items()] if compares else []


def grid(records: Sequence[Record]) -> list[list[str]]:
    """Return heading and rows; nothing where there is nothing to compare or no verdict."""
    found = tallies(records)
    if not any(tally.captured for tally in found):
        return []
    words = [name for name in OUTCOMES if any(tally.outcomes[name] for tally in found)]
    words += sorted({name for tally in found for name in tally.outcomes} - set(words))
    heading = ["front end", "cases", "captured", "never silently wrong", *words]
    return [
        heading,
        *(
            [clean(one.group), *map(str, (one.cases, one.captured, one.usable)), *(str(one.outcomes[w]) for w in words)]
            for one in found
        ),
    ]


def tally_table(records: Sequence[Record], width: int) -> list[str]:
    """Return the table in columns where they fit, else as text."""
    rows = grid(records)
    if not rows:
        return []
    lines = aligned(rows)
    if max(map(cells, lines)) > width:
        told = [[f"{cell} {name}" for name, cell in zip(rows[0][1:], row[1:], strict=True)] for row in rows[1:]]
        lines = [
            line
            for row, said in zip(rows[1:], told, strict=True)
            for line in wrap(f"{row[0]}: {', '.join(said)}", width, "  ", "    ")
        ]
    return ["by front end:", *lines]
