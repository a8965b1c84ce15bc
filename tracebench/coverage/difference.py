"""Ops that eager runs and the capture does not (baked in, folded or dead), and the reverse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

from tracebench.coverage.recorder import Op
from tracebench.record import OpCount

#: Sequences whose lengths multiply to more are not aligned: it could take minutes.
_ALIGNABLE = 4_000_000


def surplus(one: Sequence[Op], other: Sequence[Op]) -> tuple[OpCount, ...]:
    """Return the ops that ``one`` has more of than ``other``, most frequent first, by name and user line.

    An op in place and one that is not, an internal form and a public one, and overloads of one op are the same.
    How many is exact. Which of several ops of one name are meant is told by aligning the two sequences; where that
    leaves a choice between lines, the line is None.
    """
    more = Counter(_kind(op) for op in one) - Counter(_kind(op) for op in other)
    if not more:
        return ()
    alone = _unaligned(one, other)
    found: Counter[tuple[str, str | None]] = Counter()
    for kind, count in more.items():
        ops = [op for op in alone if _kind(op) == kind]
        named = [(op.name, op.origin.location if op.origin else None) for op in ops]
        if len(named) == count:
            found.update(named)
        else:
            lines = {line for _, line in named}
            names = Counter(name for name, _ in named) or Counter(op.name for op in one if _kind(op) == kind)
            found[names.most_common(1)[0][0], lines.pop() if len(lines) == 1 else None] += count
    return tuple(OpCount(name, count, line) for (name, line), count in found.most_common())


def _kind(op: Op) -> str:
    namespace, _, name = op.name.partition(".")
    return f"{namespace}.{name.partition('.')[0].strip('_')}"


def _unaligned(one: Sequence[Op], other: Sequence[Op]) -> list[Op]:
    """Return the ops of ``one`` that have no counterpart in ``other``; all of a name if that is too much work."""
    names = [[_kind(op) for op in ops] for ops in (one, other)]
    start = 0
    while start < min(map(len, names)) and names[0][start] == names[1][start]:
        start += 1
    end = 0
    while end < min(map(len, names)) - start and names[0][-1 - end] == names[1][-1 - end]:
        end += 1
    ours, theirs = (part[start : len(part) - end] for part in names)
    if len(ours) * len(theirs) > _ALIGNABLE:
        return list(one)
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    return [
        one[start + index]
        for tag, low, high, _, _ in matcher.get_opcodes()
        if tag in ("delete", "replace")
        for index in range(low, high)
    ]
