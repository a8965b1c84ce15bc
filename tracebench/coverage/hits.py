"""How often a call comes by each graph break, between which graphs and from where: seen by Python's trace function.

Where a frame goes on after a break, Dynamo calls a function of its own whose name holds the line; where nothing is
left to do, or the whole frame is left to Python, the line itself is passed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from tracebench.coverage.origin import origin
from tracebench.frontends import regions
from tracebench.userlocation import short

_RESUMED = re.compile(r"torch_dynamo_resume_in_.+_at_(\d+)")
#: What code that Dynamo wrote refers to.
_WRITTEN = ("__compiled_fn", "__resume_at")


@dataclass
class Passes:
    """One break: for each time the call came by, how many graphs it had entered; and the lines it came from."""

    graphs: list[int] = field(default_factory=list)
    #: Innermost first.
    callers: dict[str, None] = field(default_factory=dict)


def hits(call: Callable[[], object], locations: Iterable[str]) -> dict[str, Passes]:
    """Make a call; return how it came by each of ``locations`` (``file:line``)."""
    passed = {location: Passes() for location in locations}
    resumed = {location: Passes() for location in passed}
    files = {location.rpartition(":")[0] for location in passed}
    before = regions.graphs_entered()

    def note(passes: Passes, location: str, frame: FrameType) -> None:
        passes.graphs.append(regions.graphs_entered() - before)
        lines = [user.location for user in origin(frame, hits.__code__, {}).frames]
        passes.callers.update(dict.fromkeys(line for line in lines if line != location))

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        file = _file(code.co_filename)
        # A comprehension is part of the line it stands in.
        if event != "call" or file not in files or code.co_name.endswith(("comp>", "genexpr>")):
            return None
        found = _RESUMED.fullmatch(code.co_name)
        own = f"{file}:{found[1]}" if found else ""
        if own in resumed:
            note(resumed[own], own, frame)
        once = any(name.startswith(_WRITTEN) for name in code.co_names)
        seen = {own}
        last = 0

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event != "line":
                return step
            line = frame.f_lineno
            location = f"{file}:{line}"
            # A statement of several lines comes back to its first.
            back = location in passed and line < last <= _end(code, line)
            if location in passed and location not in seen and not back:
                note(passed[location], location, frame)
                if once:
                    # Code that Dynamo wrote has no loops, but a line may be in several of its parts.
                    seen.add(location)
            last = line
            return step

        return step

    tracer = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(tracer)
    both = ((location, resumed[location], lines) for location, lines in passed.items())
    return {location: max(one, other, key=lambda passes: len(passes.graphs)) for location, one, other in both}


def _end(code: CodeType, line: int) -> int:
    """Return the last line of what begins in a line."""
    ends = (end for start, end, _, _ in code.co_positions() if start == line and end is not None)
    return max(ends, default=line)


@lru_cache(maxsize=4096)
def _file(filename: str) -> str:
    return short(filename, 0).rpartition(":")[0]
