"""Where in user code something happens, without the cost of a formatted trace."""

from __future__ import annotations

from functools import lru_cache
from types import FrameType

from tracebench.userlocation import is_user_file, short

#: File and line.
Place = tuple[str, int]
#: Packages that torch itself is made with; what they keep is their own.
_BELOW = ("numpy", "sympy", "mpmath", "networkx", "jinja2", "triton", "filelock", "fsspec", "typing_extensions")


@lru_cache(maxsize=4096)
def is_watched(filename: str) -> bool:
    """Return whether the lines of this file are a model's: user code, and none of what torch is made with."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in filename:
            rest = filename.rsplit(folder, 1)[1]
            if rest.partition("/")[0].removesuffix(".py") in _BELOW:
                return False
    return is_user_file(filename)


def place(frame: FrameType | None) -> Place | None:
    """Return file and line of the innermost frame of user code from ``frame`` outward."""
    while frame is not None:
        if is_watched(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def spelled(where: Place | None) -> str:
    """Return a place as ``file:line``."""
    return "a line of torch's own" if where is None else short(*where)
