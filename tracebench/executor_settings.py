"""What executors can be told, checked before anything runs: imports no torch, reads the source of its options."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracebench.errors import RequestError, unknown_choice

#: Ways of ``torch.compile`` to set several options of Inductor at once.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
#: Setting -> what it is when not given, and the executor that has it.
SETTINGS: dict[str, tuple[Any, str]] = {
    "mode": ("default", "inductor"),
    "options": ({}, "inductor"),
    "cuda_graphs": (False, "replay"),
}
_HINTS = {
    ("cuda_graphs", "inductor"): "Inductor has CUDA graphs of its own: executor.mode=reduce-overhead.",
    ("cuda_graphs", "native"): "native uses them by itself for frontend=hook.",
}


def checked(executor: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``given`` sets to other than it is anyway, options of Inductor by their dotted names.

    Raises:
        RequestError: a setting that ``executor`` has not, or a mode or option that does not exist.
    """
    told: dict[str, Any] = {}
    for name, value in given.items():
        if name not in SETTINGS:
            raise unknown_choice("setting of an executor", name, SETTINGS)
        default, owner = SETTINGS[name]
        if value == default:
            continue
        if owner != executor:
            hint = _HINTS.get((name, executor), f"Leave it out, or give executor={owner}.")
            raise RequestError(f"executor.{name} is a setting of executor={owner}, not of {executor}. {hint}")
        told[name] = value
    if told.get("mode", "default") not in MODES:
        raise unknown_choice("executor.mode", told["mode"], MODES)
    if "options" in told:
        told["options"] = _flat(told["options"])
    return told


def _flat(options: Any) -> dict[str, Any]:
    """Return options by dotted name: ``triton={cudagraphs: true}`` is ``triton.cudagraphs``."""
    if not isinstance(options, Mapping):
        raise RequestError("executor.options must map names of torch._inductor.config, as {max_autotune: true} does.")
    known = inductor_options()
    found: dict[str, Any] = {}

    def take(prefix: str, inner: Mapping[str, Any]) -> None:
        for key, value in inner.items():
            name = f"{prefix}{key}".replace("-", "_")
            if isinstance(value, Mapping) and name not in known:
                take(f"{name}.", value)
            elif known and name not in known:
                raise unknown_option(name, known)
            else:
                found[name] = value

    take("", options)
    return found


def unknown_option(name: str, known: Iterable[str]) -> RequestError:
    """Return the error for an option that Inductor has not: there are hundreds, so only near ones are listed."""
    listed = str(unknown_choice("executor option", name, known)).splitlines()
    near = [line for line in listed if line.startswith("Did you mean")]
    where = "All of them: python -c 'import torch._inductor as i; print(*i.list_options())'"
    return RequestError("\n".join([listed[0], *near, where]))


@functools.cache
def inductor_options() -> frozenset[str]:
    """Return the names that the installed torch's Inductor can be told, dotted; none where its source is not found.

    Read from the source of ``torch._inductor.config``, as importing torch takes seconds. May hold a few names more.
    """
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    source = Path(next(iter(places or ["."]))) / "_inductor" / "config.py"
    if not source.is_file():
        return frozenset()
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return frozenset(_assigned(tree.body, "", {}))


def _assigned(body: list[ast.stmt], prefix: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Yield what the statements of a module or class assign to, those under conditions and of base classes included."""
    for statement in body:
        match statement:
            case ast.Assign(targets=targets):
                yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.ClassDef(name=name, bases=bases):
                classes[name] = statement
                known = [classes[base.id] for base in bases if isinstance(base, ast.Name) and base.id in classes]
                for part in (*known, statement):
                    yield from _assigned(part.body, f"{prefix}{name}.", classes)
            case ast.If(body=inner, orelse=other):
                yield from _assigned([*inner, *other], prefix, classes)
            case ast.Try(body=inner, handlers=handlers):
                caught = [line for handler in handlers for line in handler.body]
                yield from _assigned([*inner, *caught], prefix, classes)
