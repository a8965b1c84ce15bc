"""What a TorchScript trace has baked in, read off its graph, and what the tracer warns of while it bakes."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import nn

from tracebench.frontends.base import describe_constant
from tracebench.frontends.fixed import TRAINING_FLAGS, became_python, fixed_size, training_flag
from tracebench.record import Constant, Specialisation
from tracebench.userlocation import is_user_file, short

_CONVERTED = re.compile(r"Converting a tensor to a (Python \w+|NumPy array)")
#: Beginnings of warnings about sizes, and what became fixed. That ``torch.tensor`` gives a constant is told too, but
#: the graph shows it, and shows where it is not so.
_SIZES = {"Iterating over a tensor": "its number of turns", "Using len to get tensor shape": "the length of a tensor"}
_STACK_LINE = re.compile(r"^\s*(?P<file>.+?)\((?P<line>\d+)\): ")
#: A dtype narrower than that of a number's own tensor: a number takes on the dtype of what it meets, a tensor does not.
_NARROWER = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}


@contextlib.contextmanager
def warned() -> Iterator[list[Specialisation]]:
    """Within the context, gather what the tracer's warnings tell; the warnings take their course.

    To be entered inside ``warnings.catch_warnings``, which puts back what is changed here.
    """
    found: list[Specialisation] = []
    show = warnings.showwarning

    def note(message: Any, category: Any, *rest: Any) -> None:
        if issubclass(category, torch.jit._trace.TracerWarning):
            frame = _outside_warnings(sys._getframe(1))
            # The tracer's own check runs the model again.
            if (
                not _is_within(torch.jit._trace, "_check_trace", frame)
                and (told := _told(str(message), frame)) is not None
            ):
                found.append(told)
        show(message, category, *rest)

    warnings.showwarning = note  # type: ignore[assignment]
    try:
        yield found
    finally:
        warnings.showwarning = show


def _told(message: str, frame: FrameType | None) -> Specialisation | None:
    if _is_within(torch._tensor_str, "", frame):
        # Printing reads values, and no op depends on what is printed.
        return None
    converted = _CONVERTED.match(message)
    if converted is not None:
        return became_python(frame, converted[1])
    return next((fixed_size(frame, what) for start, what in _SIZES.items() if message.startswith(start)), None)


def _outside_warnings(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_filename == warnings.__file__:
        frame = frame.f_back
    return frame


def _is_within(module: ModuleType, function: str, frame: FrameType | None) -> bool:
    """Whether ``frame`` or one outward of it runs ``function`` of ``module``, or with no name any."""
    while frame is not None:
        if frame.f_code.co_filename == module.__file__ and function in ("", frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False


def baked(graph: Any, model: nn.Module) -> list[Constant]:
    """Return the tensors that are constants of an inlined ``graph`` of ``model``, each once.

    Numbers that Python wrote, which a trace keeps as tensors without dimensions, are left out.
    """
    names = {
        value.data_ptr(): f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    }
    found: list[Constant] = []
    seen: set[int] = set()
    for node in _nodes(graph):
        if node.kind() != "prim::Constant" or not node.hasAttribute("value") or node.kindOf("value") != "t":
            continue
        value = node.t("value")
        if is_number(value):
            continue
        place = value.data_ptr() if value.layout is torch.strided else 0
        if value.dim() == 0 and place not in names and _is_assigned(node):
            continue
        # Each use of a tensor of the model's has a node of its own.
        if place in seen:
            continue
        if place:
            seen.add(place)
        found.append(describe_constant(names.get(place, f"constant_{len(found)}"), value, location(node)))
    return found


def _is_assigned(node: Any) -> bool:
    """Whether all that a constant is for is ``x[i] = 0.5``, for which Python's number becomes a tensor of x's dtype."""
    uses = [use.user.kind() for use in node.output().uses()]
    return bool(uses) and all(kind in ("aten::fill_", "aten::index_put_") for kind in uses)


def is_number(value: torch.Tensor) -> bool:
    """Return whether a tensor stands for a plain Python number, as the 2 of ``x * 2``."""
    narrower = _NARROWER.get(value.dtype)
    if value.dim() != 0 or narrower is None:
        return False
    return torch.result_type(value, torch.empty((), dtype=narrower)) == narrower


def training_flags(graph: Any) -> list[Specialisation]:
    """Return the ops of an inlined ``graph`` whose train/eval argument is a constant of it."""
    found = []
    for node in _nodes(graph):
        at = _flag_place(node.schema()) if node.kind().startswith("aten::") else None
        if at is not None:
            flag = list(node.inputs())[at].toIValue()
            if isinstance(flag, bool):
                found.append(training_flag(node.kind(), flag, location(node)))
    return found


@lru_cache(maxsize=512)
def _flag_place(schema: str) -> int | None:
    try:
        names = [argument.name for argument in torch._C.parse_schema(schema).arguments]
    except RuntimeError:
        # Not every node has one.
        return None
    return next((names.index(name) for name in TRAINING_FLAGS if name in names), None)


def location(node: Any) -> str | None:
    """Return ``file:line`` of the innermost user frame that made a node of a trace."""
    for text in node.sourceRange().splitlines():
        frame = _STACK_LINE.match(text)
        if frame is not None and is_user_file(frame["file"]):
            return short(frame["file"], int(frame["line"]))
    return None


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.nodes():
        yield node
        for block in node.blocks():
            yield from _nodes(block)


def computing_nodes(graph: Any) -> Any:
    """Yield the nodes of a TorchScript graph or block that are neither constants nor plumbing of the graph."""
    for node in graph.nodes():
        if not node.kind().startswith("prim::"):
            yield node
        for block in node.blocks():
            yield from computing_nodes(block)
