"""What a front end fixes on capture, in the words of the record, whichever front end it was."""

from __future__ import annotations

import ast
import dataclasses
import dis
import linecache
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

from tracebench.record import Specialisation
from tracebench.userlocation import caller_location, is_user_file

#: What ops and functions call the argument that says whether they run as in training.
TRAINING_FLAGS = ("training", "train")
_EXPRESSION_LIMIT = 80
#: Files of torch that stand between a tensor's method and who called it.
_PLUMBING = ("/torch/_tensor.py", "/torch/_compile.py", "/torch/_dynamo/eval_frame.py")
_SIZE_METHODS = ("size", "numel", "nelement", "dim")
_NUMBER_FUNCTIONS = ("int", "float", "bool", "len", "range", "max", "min", "round", "abs")


def merged(found: Iterable[Specialisation]) -> list[Specialisation]:
    """Return ``found`` with equal entries as one that counts them, in order of first appearance."""
    counts: dict[Specialisation, int] = {}
    for item in found:
        once = dataclasses.replace(item, count=1)
        counts[once] = counts.get(once, 0) + item.count
    return [dataclasses.replace(item, count=count) for item, count in counts.items()]


def became_python(frame: FrameType | None, what: str, value: str | None = None) -> Specialisation:
    """Return the specialisation that a tensor became ``what`` (``Python boolean``) in ``frame``, to ``value``."""
    text = _said(frame, f"a {what}")
    # None where torch's own code asks.
    user = user_frame(frame) if user_frame(frame) is _past_plumbing(frame) else None
    if what == "Python boolean" or (user is not None and _decides(user)):
        kind = "branch"
    elif user is not None and is_of_sizes(expression(user)):
        kind = "size"
    else:
        kind = "value"
    return Specialisation(kind, text, caller_location(frame), value)


def _decides(frame: FrameType) -> bool:
    """Whether ``frame`` is asking for the truth of something."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return "_IF_" in instruction or instruction in ("TO_BOOL", "UNARY_NOT")


def python_kind(value: Any) -> str:
    """Return what a number read from a tensor is called: ``Python boolean``."""
    return "Python " + {bool: "boolean", int: "integer"}.get(type(value), type(value).__name__)


def fixed_size(frame: FrameType | None, what: str, value: str | None = None) -> Specialisation:
    """Return the specialisation that a size within the model was fixed in ``frame``."""
    return Specialisation("size", _said(frame, what), caller_location(frame), value)


def training_flag(what: str, flag: bool, location: str | None) -> Specialisation:
    """Return the specialisation that ``what``, an op or function, has its train/eval argument in the graph."""
    return Specialisation("training mode", what, location, "train" if flag else "eval")


def _said(frame: FrameType | None, what: str) -> str:
    user = user_frame(frame)
    text = expression(user) if user is not None else ""
    if not text:
        return what
    return f"`{text}`: {what}" if user is _past_plumbing(frame) else f"within `{text}`: {what}"


def _past_plumbing(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame from ``frame`` outward that is none of those by which a tensor's method is called."""
    while frame is not None and frame.f_code.co_filename.endswith(_PLUMBING):
        frame = frame.f_back
    return frame


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of user code from ``frame`` outward."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def expression(frame: FrameType) -> str:
    """Return the source of the expression that ``frame`` is evaluating, on one line; empty where that is unknown."""
    code, at = frame.f_code, frame.f_lasti // 2
    positions = list(code.co_positions())
    if not 0 <= at < len(positions):
        return ""
    source = _source(code.co_filename, *positions[at])
    if source.startswith(("for ", "async for ")):
        # The statement with all its body: its head says enough.
        source = source.partition("\n")[0].partition("#")[0].rstrip().removesuffix(":")
    text = " ".join(source.split())
    return text if len(text) <= _EXPRESSION_LIMIT else text[: _EXPRESSION_LIMIT - 3].rstrip() + "..."


def _source(filename: str, line: int | None, last: int | None, start: int | None, end: int | None) -> str:
    if line is None or last is None or start is None or end is None:
        return ""
    # Columns count bytes.
    lines = [linecache.getline(filename, number).encode() for number in range(line, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")


@lru_cache(maxsize=512)
def is_of_sizes(source: str) -> bool:
    """Return whether an expression is arithmetic on sizes of tensors, read off it alone: ``int(x.shape[0]) // 2``."""
    try:
        tree = ast.parse(source, mode="eval").body
    except SyntaxError:
        return False
    return _of_sizes(tree) and not isinstance(tree, ast.Constant)


def _of_sizes(node: ast.AST) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Attribute(attr="shape"):
            return True
        case ast.Subscript(value=value):
            return _of_sizes(value)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _SIZE_METHODS
        case ast.Call(func=ast.Name(id=name), args=args):
            # How many elements a list has is no size of a tensor, and how long a tensor is one.
            return name == "len" or (name in _NUMBER_FUNCTIONS and bool(args) and all(map(_of_sizes, args)))
        case ast.BinOp(left=left, right=right):
            return _of_sizes(left) and _of_sizes(right)
        case ast.UnaryOp(operand=operand):
            return _of_sizes(operand)
    return False


def argument_flag(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Return the train/eval argument of a call, whose parameters have ``names``, if it is a plain bool."""
    for name in TRAINING_FLAGS:
        value = kwargs.get(name)
        if value is None and name in names and names.index(name) < len(args):
            value = args[names.index(name)]
        if isinstance(value, bool):
            return value
    return None
