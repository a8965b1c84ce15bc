"""Pieces of a model by name: submodules, classes, and Python functions, without editing the model's source.

A name is, in this order: the path of a submodule or a pattern of paths (``layer4.1``, ``blocks.*.attn``; ``*`` stands
for one step, ``**`` for any number); a class or function by its qualified name (``torch.nn.ReLU``,
``torchvision.ops.nms``, ``mypkg.mod:fn``); a class or function of the model's own file (``fn``).
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from tracebench.errors import RequestError

_NEAR = 4


@dataclass(frozen=True)
class Target:
    """What a name stands for: submodules by path, or a function with the places that it is called by."""

    name: str
    paths: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    #: (namespace, attribute) of every module or class through which the function is reached.
    sites: tuple[tuple[Any, str], ...] = ()

    @property
    def is_function(self) -> bool:
        """Whether it is a function rather than submodules."""
        return self.function is not None

    def modules(self, model: nn.Module, within: nn.Module | None = None) -> list[nn.Module]:
        """Return the pieces of ``model``, or those of them that lie within one of its submodules."""
        inside = None if within is None else {id(module) for module in within.modules()}
        found = [model.get_submodule(path) for path in self.paths]
        return [module for module in found if inside is None or id(module) in inside]


def resolve(name: str, model: nn.Module, file: ModuleType | None = None) -> Target:
    """Return what ``name`` stands for in ``model``; ``file`` is the module of the model's file.

    Raises:
        RequestError: nothing of that name; the message lists near matches.
    """
    paths = tuple(path for path, _ in model.named_modules() if path and _pattern(name).fullmatch(path))
    if paths:
        return Target(name, paths)
    owner, attribute, found = _import(name, file)
    if isinstance(found, type) and issubclass(found, nn.Module):
        paths = tuple(path for path, module in model.named_modules() if path and isinstance(module, found))
        if not paths:
            classes = sorted({type(module).__qualname__ for _, module in model.named_modules()})
            raise RequestError(f"the model has no {name}. Classes of its modules: {', '.join(classes)}.")
        return Target(name, paths)
    if callable(found):
        return Target(name, function=found, sites=tuple(_sites(owner, attribute, found)))
    raise RequestError(_unknown(name, model, file))


def _pattern(name: str) -> re.Pattern[str]:
    text = re.escape(name).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    return re.compile(text)


def _import(name: str, file: ModuleType | None) -> tuple[Any, str, Any]:
    """Return the owner, the attribute and the object of a qualified name; None for what is not there."""
    module, colon, rest = name.partition(":")
    if colon:
        return _attribute(_imported(module) if module else file, rest)
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        owner = _imported(".".join(parts[:split]))
        if owner is not None:
            found = _attribute(owner, ".".join(parts[split:]))
            if found[2] is not None:
                return found
    return _attribute(file, name)


def _imported(name: str) -> ModuleType | None:
    if not re.fullmatch(r"[\w.]+", name) or name.startswith("."):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _attribute(owner: Any, path: str) -> tuple[Any, str, Any]:
    *inner, last = path.split(".")
    for step in inner:
        owner = getattr(owner, step, None)
    return owner, last, getattr(owner, last, None) if owner is not None and last else None


def _sites(owner: Any, attribute: str, function: Any) -> Iterator[tuple[Any, str]]:
    """Yield where ``function`` is reached: its owner, and the modules that imported it by name."""
    yield owner, attribute
    if isinstance(owner, type):
        return
    for module in list(sys.modules.values()):
        # What torch and Python keep for themselves (tables of overrides, of ops) are no callers.
        if not isinstance(module, ModuleType) or module.__name__.startswith(("torch._", "torch.overrides")):
            continue
        for key, value in list(vars(module).items()):
            if value is function and (module is not owner or key != attribute):
                yield module, key


def _unknown(name: str, model: nn.Module, file: ModuleType | None) -> str:
    known = [path for path, _ in model.named_modules() if path]
    own = [key for key, value in vars(file).items() if callable(value)] if file is not None else []
    near = difflib.get_close_matches(name, [*known, *own], _NEAR, 0.5)
    children = ", ".join(dict(model.named_children()))
    hint = f"Did you mean: {', '.join(near)}?" if near else f"Top-level modules: {children}."
    return (
        f"the model has no piece {name!r}: no submodule, no class or function that can be imported, none of its own "
        f"file. {hint}"
    )
