"""Which line of the user's code an error or an op comes from."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parent)
_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


@lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """Return whether ``filename`` is code under test: not torch's, the standard library's or this package's.

    Model libraries such as torchvision count as the user's: their lines are what a user wants to see.
    """
    if filename.startswith("<") or filename.startswith(_PACKAGE + "/_models/"):
        return not filename.startswith("<")
    if filename.startswith(_PACKAGE + "/"):
        return False
    if "/site-packages/" in filename or "/dist-packages/" in filename:
        return "/site-packages/torch/" not in filename and "/dist-packages/torch/" not in filename
    return not filename.startswith(_STDLIB)


def short(filename: str, line: int | None) -> str:
    """Return ``file:line``; files of installed packages are named from their package on, others as they are."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in filename:
            filename = filename.rsplit(folder, 1)[1]
    return f"{filename}:{line}"


def user_location(error: BaseException) -> str | None:
    """Return ``file:line`` of the innermost user frame in the traceback of ``error`` or of what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        found = innermost(traceback.extract_tb(seen.__traceback__))
        if found is not None:
            return found
        seen = seen.__cause__ or seen.__context__
    return None


def innermost(stack: traceback.StackSummary | list[traceback.FrameSummary]) -> str | None:
    """Return ``file:line`` of the innermost user frame of ``stack``, outermost frame first."""
    for frame in reversed(stack):
        if is_user_file(frame.filename):
            return short(frame.filename, frame.lineno)
    return None


def innermost_of_model(frames: Sequence[tuple[str, int]]) -> str | None:
    """Return ``file:line`` of the innermost user frame of the model's, outermost (file, line) first.

    Whatever has called the harness is user code, too, but no model.
    """
    for filename, line in reversed(frames):
        if is_user_file(filename):
            return short(filename, line)
        # Front ends put functions of their own between those of a model.
        if filename.startswith(_PACKAGE + "/") and not filename.startswith(_PACKAGE + "/frontends/"):
            return None
    return None


def caller_location(frame: FrameType | None) -> str | None:
    """Return ``file:line`` of the innermost user frame from ``frame`` outward."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return short(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def definition(function: object) -> str | None:
    """Return ``file:line`` where a method or function is defined, or None if that is not user code."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return None
    return short(code.co_filename, code.co_firstlineno)
