"""Text in a terminal's cells: how wide it is, how it wraps, and numbers trimmed to the digits that can be trusted."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Iterable, Sequence

#: A long word is preferably broken after one of these.
_BREAK_AFTER = "/_-.,:=)]"


def clean(text: object) -> str:
    """Return ``text`` as one line without control characters, so that no message can move the cursor."""
    flat = " ".join(str(text).split())
    return "".join(" " if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") else char for char in flat).strip()


def clip(text: str, limit: int) -> str:
    """Return ``text`` cut to ``limit`` terminal cells, with an ellipsis where something was cut off."""
    if cells(text) <= limit:
        return text
    used = itertools.accumulate(map(_cell, text))
    return "".join(char for char, end in zip(text, used, strict=True) if end <= limit - 3).rstrip() + "..."


def cells(text: str) -> int:
    """Return how many terminal cells ``text`` takes; East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, width: int, right: bool = False) -> str:
    """Return ``text`` filled up with spaces to ``width`` cells."""
    fill = " " * max(0, width - cells(text))
    return fill + text if right else text + fill


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows in columns, indented, the first column to the left and figures to the right."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [pad(cell, wide, index > 0) for index, (cell, wide) in enumerate(zip(row, widths, strict=True))]
        lines.append(f"  {'  '.join(padded)}".rstrip())
    return lines


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return ``text`` in lines of at most ``width`` cells that start with ``first`` and then ``rest``.

    ``width`` must leave at least two cells beside ``first`` and ``rest``.
    """
    lines: list[str] = []
    prefix, line = first, ""
    for word in text.split():
        for index, piece in enumerate(_pieces(word, width - max(cells(first), cells(rest)))):
            joined = f"{line} {piece}" if line and index == 0 else piece
            if line and (index > 0 or cells(prefix) + cells(joined) > width):
                lines.append(prefix + line)
                prefix, joined = rest, piece
            line = joined
    return [*lines, prefix + line]


def _pieces(word: str, width: int) -> Iterable[str]:
    """Yield ``word`` in pieces of at most ``width`` cells, broken at punctuation where there is some."""
    while cells(word) > width:
        cut = used = 0
        while cut < len(word) and used + _cell(word[cut]) <= width:
            used += _cell(word[cut])
            cut += 1
        cut = max(cut, 1)
        breaks = [i + 1 for i in range(cut // 2, cut) if word[i] in _BREAK_AFTER]
        cut = breaks[-1] if breaks else cut
        yield word[:cut]
        word = word[cut:]
    yield word


def grid(rows: Sequence[Sequence[str]], indent: str = "", right: Sequence[bool] = ()) -> list[str]:
    """Return ``rows`` as lines of columns two cells apart; ``right`` says of each column whether it ends flush."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    sides = right or [False] * len(widths)
    return [
        indent + "  ".join(pad(cell, wide, side) for cell, wide, side in zip(row, widths, sides, strict=True)).rstrip()
        for row in rows
    ]


def decimals(uncertainty: float, most: int) -> int:
    """Return how many decimals a figure with this uncertainty deserves: up to the first uncertain digit."""
    if not uncertainty > 0:
        return most
    return max(0, min(most, math.ceil(-math.log10(uncertainty))))


def percent(fraction: float) -> str:
    """Return a share as a percentage. Only all is ``100`` and only nothing is ``0``."""
    if fraction in (0, 1):
        return str(round(100 * fraction))
    if 0 < fraction < 0.001:
        return "<0.1"
    return f"{math.floor(fraction * 1000 + 1e-9) / 10:.1f}"


def ratio(value: float, low: float | None, high: float | None, significant: bool | None) -> str:
    """Return a speedup with its interval, such as ``1.32x [1.28, 1.36]``, and ``n.s.`` if it may well be 1."""
    if low is None or high is None:
        return f"{value:.2f}x"
    digits = decimals((high - low) / 2, 3)
    if significant:
        # Rounding must not make an interval that excludes 1 look as if it touched it.
        while digits < 4 and any(float(f"{bound:.{digits}f}") == 1 for bound in (low, high)):
            digits += 1
    mark = " n.s." if significant is False else ""
    return f"{value:.{digits}f}x [{low:.{digits}f}, {high:.{digits}f}]{mark}"


def milliseconds(median: float, iqr: float | None = None, count: int = 0) -> str:
    """Return a latency with the digits its spread leaves standing: at least two, at most four."""
    if not median > 0:
        return "0"
    magnitude = math.floor(math.log10(median))
    error = iqr / math.sqrt(count) if iqr and count else 0.0
    digits = min(3 - magnitude, max(1 - magnitude, decimals(error, 9)))
    return f"{median:.{max(0, digits)}f}"


def size(count: int) -> str:
    """Return a number of bytes: ``24 B``, ``3.1 kB``."""
    if count < 1000:
        return f"{count} B"
    # Not 1000 kB for what rounds to 1 MB.
    power = next((power for power in (1, 2) if count < 999.5 * 1000**power), 3)
    value = count / 1000**power
    return f"{value:.{1 if value < 99.95 else 0}f} {('kB', 'MB', 'GB')[power - 1]}"


def plural(count: int, noun: str) -> str:
    """Return ``1 case``, ``2 cases``, ``3 branches``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def some(items: list[str], limit: int, noun: str, separator: str = "; ") -> str:
    """Return the first ``limit`` items and how many more there are."""
    if len(items) <= limit:
        return separator.join(items)
    return separator.join([*items[:limit], f"and {plural(len(items) - limit, f'more {noun}')}"])
