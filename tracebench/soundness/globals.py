"""Module-level values of the files under test, and those of their classes: read, and put back.

What a forward writes there outlives the call, and neither parameters, buffers nor module attributes show it.
"""

from __future__ import annotations

import copy
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn


class Globals:
    """Plain values of the modules that define the model's classes, and of the classes defined there.

    Plain are numbers, text, and lists, tuples, dicts and sets of these. What a value became that is no longer plain is
    known by its type alone. Class attributes go by ``Class.name``.
    """

    def __init__(self, model: nn.Module) -> None:
        names = sorted({type(part).__module__ for part in model.modules()})
        modules = [sys.modules[name] for name in names if name in sys.modules and not _is_library(name)]
        self._places = [place for module in modules for place in (module, *_classes(module))]
        self._start = [self._plain(place) for place in self._places]
        self._objects = [dict(vars(place)) for place in self._places]

    def read(self) -> dict[str, Any]:
        """Return copies of the present values by name, and words for those that were plain and no longer are."""
        found: dict[str, Any] = {}
        for place, start in zip(self._places, self._start, strict=True):
            now = {key: f"a {type(vars(place)[key]).__name__}" for key in start if key in vars(place)}
            found.update({_name(place, key): value for key, value in {**now, **self._plain(place)}.items()})
        return found

    def restore(self) -> list[str]:
        """Put the values back that were there when this object was made; return the names that had changed."""
        changed = []
        for place, start, objects in zip(self._places, self._start, self._objects, strict=True):
            now = self._plain(place)
            for key in [key for key in now if key not in start and vars(place)[key] is not objects.get(key, start)]:
                changed.append(_name(place, key))
                if key in objects:
                    setattr(place, key, objects[key])
                else:
                    delattr(place, key)
            for key, value in start.items():
                if key not in now or not _same(now[key], value):
                    changed.append(_name(place, key))
                    _set(place, key, value)
        return changed

    def adopt(self, values: Mapping[str, Any]) -> None:
        """Set the values that another run's ``read`` found, as far as they are plain here and there."""
        for place, start in zip(self._places, self._start, strict=True):
            now = self._plain(place)
            for key in now:
                value = values.get(_name(place, key), now[key])
                if key in start and not _same(now[key], value):
                    _set(place, key, value)

    @staticmethod
    def _plain(place: Any) -> dict[str, Any]:
        return copy.deepcopy(
            {key: value for key, value in list(vars(place).items()) if not key.startswith("__") and _is_plain(value)}
        )


def _classes(module: ModuleType) -> list[type]:
    found = [
        value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return list(dict.fromkeys(found))


def _name(place: Any, key: str) -> str:
    return f"{place.__qualname__}.{key}" if isinstance(place, type) else key


def _set(place: Any, key: str, value: Any) -> None:
    """Set a value, in place where that can be: functions and graphs may hold the same object."""
    value = copy.deepcopy(value)
    present = vars(place).get(key)
    if isinstance(value, list) and type(present) is type(value):
        present[:] = value
    elif isinstance(value, (dict, set)) and type(present) is type(value):
        present.clear()
        present.update(value)
    else:
        setattr(place, key, value)


def _is_library(name: str) -> bool:
    """Return whether a module is installed: what libraries keep (warned once, have looked for X) is their own."""
    file = getattr(sys.modules[name], "__file__", None) or ""
    return any(Path(file).is_relative_to(sysconfig.get_path(scheme)) for scheme in ("purelib", "platlib", "stdlib"))


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (type(None), bool, int, float, complex, str, bytes)):
        # Subclasses (enumerations, symbolic numbers) may not copy.
        return type(value).__module__ == "builtins"
    if depth > 4 or not isinstance(value, (dict, list, tuple, set, frozenset)) or len(value) > 10_000:
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return type(value).__module__ in ("builtins", "collections") and all(_is_plain(item, depth + 1) for item in items)


def _same(a: Any, b: Any) -> bool:
    # repr tells 1 from 1.0 and from True, and one NaN from none; sets of equal content may print in another order.
    return type(a) is type(b) and (repr(a) == repr(b) or (isinstance(a, (set, frozenset)) and bool(a == b)))
