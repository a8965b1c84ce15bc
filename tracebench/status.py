"""Every word a case can end with: what it means and the colour it is drawn in, in one table.

A verdict is what the harness found out about a capture; a failure status says that it could not find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["verdict", "failure"]


@dataclass(frozen=True)
class Word:
    """One outcome of a case.

    ``colour`` is a hex RGB colour whose text is readable in black; the words also differ in lightness,
    so that a heatmap can be read without telling hues apart.
    """

    name: str
    kind: Kind
    colour: str
    meaning: str


OUTCOMES: dict[str, Word] = {
    word.name: word
    for word in (
        Word("sound", "verdict", "#8fd19e", "every applicable probe matches eager"),
        Word("restricted", "verdict", "#f5e08a", "never silently wrong, but raises on an input eager accepts"),
        Word("unsound", "verdict", "#f08a7a", "silently different from eager on at least one probe"),
        Word("refused", "verdict", "#c9ced6", "the front end raised while capturing"),
        Word("timeout", "failure", "#b7a5d6", "the case did not finish within limits.seconds"),
        Word("oom", "failure", "#b7a5d6", "the case ran out of memory"),
        Word("crashed", "failure", "#b7a5d6", "the case's process died (signal or exit code)"),
        Word("error", "failure", "#b7a5d6", "the harness could not run the case; its error is in the record"),
        Word("no verdict", "failure", "#e7e9ed", "finished, but the soundness stage was not asked for"),
    )
}

#: ``status`` of a record: did the harness get to the end of the case?
STATUSES = ("done", "timeout", "oom", "crashed", "error")
#: ``verdict`` of a record; null where there is none.
VERDICTS = ("sound", "restricted", "unsound", "refused")
#: The stages a user can choose with ``stages=``; load, reference and capture always run before them.
OPTIONAL_STAGES = ("soundness", "coverage", "throughput")


def outcome(status: str, verdict: str | None) -> str:
    """Return the one word that stands for a case in tables and plots."""
    if status != "done":
        return status
    return verdict or "no verdict"


def as_expected(status: str, verdict: str | None, expected: tuple[str, ...] | None) -> bool | None:
    """Return whether a case ended as its model's file expects; None where that says nothing or nothing was judged."""
    word = outcome(status, verdict)
    return None if expected is None or word == "no verdict" else word in expected
