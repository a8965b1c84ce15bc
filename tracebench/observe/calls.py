"""Calls that no recording of tensor ops can repeat or look through, by what is called."""

from __future__ import annotations

import pathlib
import random
import types
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd.function import Function
from torch.utils import _pytree as pytree

from tracebench.observe.places import is_watched

_CLOCKS = {
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
    "process_time_ns", "thread_time", "clock_gettime", "localtime", "gmtime", "now", "utcnow", "today", "sleep",
}  # fmt: skip
_OUTSIDE = {
    "print", "input", "open", "write", "writelines", "system", "fork_exec", "posix_spawn", "start_new_thread",
    "start_joinable_thread", "remove", "mkdir", "unlink", "exec", "eval",
}  # fmt: skip
_DRAWS = {"random", "getrandbits", "randbytes", "seed", "setstate", "urandom", "uuid4", "generate_time_safe"}
_FOREIGN = {
    "numpy", "data_ptr", "untyped_storage", "storage", "_to_dlpack", "to_dlpack", "_to_dlpack_versioned",
    "_typed_storage", "share_memory_", "set_data", "storage_offset",
}  # fmt: skip
_GENERATOR = {"manual_seed", "set_state", "seed", "graphsafe_set_state", "set_offset"}
_GRADIENTS = {"retain_grad", "register_hook", "register_prehook"}
#: Names of C functions that are worth a look.
NAMES = frozenset({"apply"} | _CLOCKS | _OUTSIDE | _DRAWS | _FOREIGN | _GENERATOR | _GRADIENTS)
_BACKWARD = {torch.autograd.backward.__code__, torch.Tensor.backward.__code__}
_HOOK = {torch.Tensor.register_hook.__code__}
#: None where torch has it in C.
_APPLY: CodeType | None = getattr(getattr(vars(Function)["apply"], "__func__", None), "__code__", None)
#: Python functions of torch that are worth a look.
CODES = frozenset({*_BACKWARD, *_HOOK, *([_APPLY] if _APPLY else [])})
_PACKAGE = str(pathlib.Path(__file__).resolve().parents[1])
_RANDOM: Any = vars(random)["random"].__self__
_EARLIER = "calls an autograd.Function by an apply that was taken earlier"


def effect_of(function: Any, frame: FrameType) -> str | None:
    """Return what a C function called from ``frame`` does that cannot be repeated; None if nothing of the kind."""
    name, owner = function.__name__, getattr(function, "__self__", None)
    module = function.__module__ or (owner.__name__ if isinstance(owner, types.ModuleType) else "")
    kind = owner if isinstance(owner, type) else type(owner)
    home = kind.__module__ if owner is not None and not isinstance(owner, types.ModuleType) else module
    if name == "apply":
        by_class = isinstance(owner, type) and issubclass(owner, Function)
        own = frame.f_code.co_filename.startswith(_PACKAGE)
        return _EARLIER if by_class and not own and torch.is_grad_enabled() else None
    if isinstance(owner, torch.Generator):
        return f"sets a random generator ({name})" if name in _GENERATOR else None
    if isinstance(owner, torch.Tensor) or module.startswith("torch"):
        if name in _FOREIGN and (name != "storage_offset" or _asked_by_user(frame)):
            return f"takes a tensor's memory out of torch ({name})"
        return "has gradients watched by Python (" + name + ")" if name in _GRADIENTS else None
    if name in _GRADIENTS and home.startswith(("torch", "builtins")) and isinstance(owner, torch.autograd.graph.Node):
        return f"has gradients watched by Python ({name})"
    if not _asked_by_user(frame):
        return None
    if name in _CLOCKS and (home in ("time", "datetime") or module in ("time", "datetime")):
        return f"asks the clock ({name})"
    if name in _DRAWS and owner is not _RANDOM and home in ("random", "_random"):
        # A generator of its own: what becomes of it shows in the memory, but not what it begins with by itself.
        begins = name == "seed" and frame.f_code.co_name == "seed" and frame.f_locals.get("a", name) is None
        return "draws random numbers from a generator without a seed" if begins else None
    if name in _DRAWS and (
        home in ("random", "_random", "posix", "nt", "_uuid") or module in ("posix", "nt", "_random")
    ):
        return f"draws Python's random numbers ({name})"
    if name in ("print", "input", "open", "eval", "exec") and module in ("builtins", "io", "_io"):
        return None if name in ("eval", "exec") else f"calls {name}"
    if name in ("write", "writelines") and home in ("_io", "io"):
        return f"writes text or a file ({name})"
    if module in ("posix", "nt", "_thread", "_posixsubprocess") and name in _OUTSIDE:
        return f"calls {module}.{name}"
    return None


def effect_of_frame(frame: FrameType) -> str | None:
    """Return what a call of one of ``CODES`` does that cannot be repeated; None if nothing of the kind."""
    if frame.f_code in _BACKWARD:
        return "computes gradients into tensors (backward)"
    if frame.f_code in _HOOK:
        return "has gradients watched by Python (register_hook)"
    if not torch.is_grad_enabled():
        return None
    leaves = pytree.tree_leaves(frame.f_locals.get("args", ()))
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        return _EARLIER
    return None


def _asked_by_user(frame: FrameType | None) -> bool:
    """Whether user code is behind a call, by way of the standard library at most, and of no warning."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.endswith("/warnings.py") or name.startswith("<frozen importlib"):
            return False
        if is_watched(name):
            return True
        if "/torch/" in name or name.startswith(_PACKAGE):
            return False
        frame = frame.f_back
    return False
