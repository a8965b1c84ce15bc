"""Where in the user's program an op was dispatched, read from the Python frames that stand while it runs.

Hooks on modules would change what Dynamo guards on; frames are there anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType

from tracebench.userlocation import is_user_file, short

#: Frame of torch's own that runs a function under ``torch.compiler.disable``.
_DISABLING = ("/torch/_dynamo/eval_frame.py", "DisableContext.")
#: Files of the frames that keep Dynamo away from the recorder itself.
_GUARDING = ("/torch/_dynamo/eval_frame.py", "/torch/_compile.py")


@dataclass(frozen=True, slots=True)
class UserFrame:
    """A frame of user code: the function, where it begins, its last line, and the line it stands at."""

    function: str
    definition: str
    end: int
    location: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Frames of user code, innermost first, and the module whose method is the innermost of a module's."""

    frames: tuple[UserFrame, ...] = ()
    #: Path in the model, empty for the model itself; None if no module's method is running.
    module: str | None = None
    #: Whether one of the frames runs under ``torch.compiler.disable``.
    disabled: bool = False

    @property
    def location(self) -> str | None:
        """``file:line`` of the innermost frame."""
        return self.frames[0].location if self.frames else None


def origin(frame: FrameType | None, until: CodeType, modules: Mapping[int, str]) -> Origin:
    """Return the origin of what ``frame`` runs; frames from that of ``until`` outward are not the model's.

    ``modules`` are the paths of the model's modules by ``id``.
    """
    frames: list[UserFrame] = []
    module: str | None = None
    disabled = False
    while frame is not None and frame.f_code.co_filename.endswith(_GUARDING):
        frame = frame.f_back
    while frame is not None and frame.f_code is not until:
        code = frame.f_code
        if module is None and "self" in code.co_varnames[: code.co_argcount]:
            module = modules.get(id(frame.f_locals.get("self")))
        if is_user_file(code.co_filename):
            frames.append(_user_frame(code, frame.f_lineno))
        elif code.co_qualname.startswith(_DISABLING[1]) and code.co_filename.endswith(_DISABLING[0]):
            disabled = True
        frame = frame.f_back
    return Origin(tuple(frames), module, disabled)


#: User frames seen so far. Kept by name: code kept alive would keep alive what Dynamo compiled for it.
_seen: dict[tuple[str, str, int, int], UserFrame] = {}


def _user_frame(code: CodeType, line: int) -> UserFrame:
    key = (code.co_filename, code.co_qualname, code.co_firstlineno, line)
    if key not in _seen:
        end = max((last for _, _, last in code.co_lines() if last), default=code.co_firstlineno)
        definition = short(code.co_filename, code.co_firstlineno)
        _seen[key] = UserFrame(code.co_name, definition, end, short(code.co_filename, line))
    return _seen[key]
