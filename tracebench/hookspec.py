"""Which trace hook of a user's own is meant: ``frontend.hook=path/to/file.py:function`` or ``pkg.mod:function``.

Imports neither torch nor the hook: a request is checked as a whole before any case runs. What can only be seen by
importing the hook is checked again where it is loaded (``tracebench.frontends.userhook``).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracebench.errors import RequestError, unknown_choice

#: The function of a file or module that is named alone.
DEFAULT = "custom_trace"
FORM = (
    "Give frontend.hook=path/to/file.py:function or frontend.hook=pkg.mod:function; without a function it is "
    f"{DEFAULT}. It takes (model, inputs), or (model, inputs, kwargs), and returns a callable: see docs/hooks.md."
)


@dataclass(frozen=True)
class HookSpec:
    """A function in a file, or in a module that can be imported."""

    #: The file's path as given, or the module's dotted name.
    place: str
    function: str

    @classmethod
    def parse(cls, text: str) -> HookSpec:
        """Read ``place`` or ``place:function``.

        Raises:
            RequestError: neither of the two.
        """
        place, colon, function = text.rpartition(":") if ":" in text and not text.endswith(".py") else (text, "", "")
        function = function if colon else DEFAULT
        if not place or not function.isidentifier() or not (_is_path(place) or _is_dotted(place)):
            raise RequestError(f"frontend.hook={text!r} names no hook. {FORM}")
        return cls(place, function)

    @property
    def is_file(self) -> bool:
        """Whether ``place`` is a path."""
        return _is_path(self.place)

    def __str__(self) -> str:
        """Return the shortest form that reads the same: the file from the current folder on where it lies below it."""
        place = self.place
        if self.is_file:
            path, here = Path(place).resolve(), Path.cwd()
            place = path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)
        return place if self.function == DEFAULT else f"{place}:{self.function}"

    def file(self) -> Path:
        """Return the file that the function is in, without importing anything but what finds it.

        Raises:
            RequestError: there is no such file or module.
        """
        if self.is_file:
            path = Path(self.place)
            if not path.is_file() or path.suffix != ".py":
                what = "is not a Python file" if path.exists() else "does not exist"
                beside = sorted(found.name for found in path.parent.glob("*.py")) if path.parent.is_dir() else []
                has = f" {path.parent} has: {', '.join(beside)}." if beside else ""
                raise RequestError(f"the hook's file {path} {what}.{has}\n{FORM}")
            return path
        found = _module_file(self.place)
        if found is None:
            raise RequestError(f"there is no module {self.place!r} in this folder or on Python's path.\n{FORM}")
        return found

    def identity(self) -> list[str]:
        """Return what makes the hook another one: its name, its function, its file's content.

        The folder that it lies in makes no difference.

        Raises:
            RequestError: its file cannot be read.
        """
        name = Path(self.place).name if self.is_file else self.place
        return [name, self.function, hashlib.sha256(_read(self.file())).hexdigest()]

    def check(self) -> None:
        """See that the function is there and takes what a hook is given, as far as its file's text tells.

        Raises:
            RequestError: it is not, or does not; or the file is no Python.
        """
        path = self.file()
        try:
            tree = ast.parse(_read(path), str(path))
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise RequestError(f"the hook's file {path}{line} is no Python: {error}. {FORM}") from None
        names: dict[str, ast.arguments | None] = {}
        for node in _top_level(tree):
            names |= _bound(node)
        if self.function in names:
            signature = names[self.function]
            if signature is not None and (problem := misfit(_parameters(signature))):
                raise RequestError(f"{path}: {self.function}{problem}. {FORM}")
        elif "*" not in names:
            functions = [name for name, found in names.items() if found is not None] or list(names)
            if not functions:
                raise RequestError(f"{path} has no function {self.function!r}, nor any other. {FORM}")
            raise unknown_choice(f"function of {path}:", self.function, functions, FORM)


def own_hook(options: Mapping[str, Any], defaults: Mapping[str, Any], controls: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``frontend=hook`` for a case; those of the built-in hook do not hold for a user's own.

    Args:
        options: all that are given, ``hook`` among them.
        defaults: those of the built-in hook, by name.
        controls: those asked for.

    Raises:
        RequestError: the hook is not there, or something is asked of it that only the built-in hook has.
    """
    text = options.get("hook")
    if text is None:
        return {name: value for name, value in options.items() if name != "hook"}
    check_alone(options, defaults, controls)
    spec = HookSpec.parse(str(text))
    spec.check()
    return {"hook": str(spec)}


def check_alone(options: Mapping[str, Any], defaults: Mapping[str, Any], controls: Mapping[str, Any]) -> None:
    """See that nothing is asked of a user's own hook (``options["hook"]``) that only the built-in hook has.

    Raises:
        RequestError: an option other than its default, or a control.
    """
    text = options["hook"]
    for name, value in options.items():
        if name != "hook" and value != defaults.get(name):
            raise RequestError(
                f"frontend.{name}={value} is a key of the built-in hook and has no meaning for {text}. "
                "Leave it out, or leave frontend.hook out."
            )
    asked = [name for name, value in controls.items() if value]
    if asked:
        raise RequestError(
            f"controls.{asked[0]} is something that a hook of your own ({text}) is not told of. "
            "Leave the controls out, or have the hook do it."
        )


def spelled(function: Any) -> str:
    """Return how a function at hand is named in ``frontend.hook``.

    Raises:
        RequestError: it is not at the top level of its module, so that no name leads to it.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", type(function).__name__)
    if getattr(sys.modules.get(module or ""), name, None) is not function:
        raise RequestError(f"the hook {name!r} must be a function at the top level of its module.")
    return f"{module}:{name}"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a hook: ``kind`` is ``positional``, ``keyword``, ``*`` or ``**``."""

    name: str
    kind: str
    required: bool


def parameters_of(signature: inspect.Signature) -> list[Parameter]:
    """Return the parameters of ``signature``."""
    kinds: dict[Any, str] = {
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    return [
        Parameter(name, kinds.get(found.kind, "positional"), found.default is found.empty)
        for name, found in signature.parameters.items()
    ]


def takes_kwargs(parameters: list[Parameter]) -> bool:
    """Return whether a hook takes the keyword arguments of the example inputs."""
    return any(found.name == "kwargs" and found.kind in ("positional", "keyword") for found in parameters)


def misfit(parameters: list[Parameter]) -> str | None:
    """Return why a function with ``parameters`` cannot be called as a hook, or None if it can."""
    positional = [found for found in parameters if found.kind == "positional" and found.name != "kwargs"]
    said = ", ".join((found.kind if "*" in found.kind else "") + found.name for found in parameters)
    if len(positional) < 2 and not any(found.kind == "*" for found in parameters):
        return f"({said}) takes fewer than the two arguments (model, inputs)"
    wanted = [found for found in parameters if found.kind in ("positional", "keyword") and found.required]
    more = [found.name for found in wanted if found.name != "kwargs" and found not in positional[:2]]
    return f"({said}) wants more than (model, inputs): {', '.join(more)} would get no value" if more else None


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _is_dotted(place: str) -> bool:
    return all(part.isidentifier() for part in place.split("."))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read the hook's file {path}: {error.strerror or error}") from None


def _module_file(name: str) -> Path | None:
    """Return the file of a module, found without importing it or the packages it is in."""
    first, *rest = name.split(".")
    here = str(Path.cwd())
    found = importlib.machinery.PathFinder.find_spec(first, [here]) or _top_spec(first)
    for index, _ in enumerate(rest):
        if found is None or found.submodule_search_locations is None:
            return None
        inner = ".".join([first, *rest[: index + 1]])
        found = importlib.machinery.PathFinder.find_spec(inner, list(found.submodule_search_locations))
    if found is None or not found.origin or not found.origin.endswith(".py"):
        return None
    return Path(found.origin)


def _top_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:
        # Such as __main__, which has none.
        file = getattr(sys.modules.get(name), "__file__", None)
        return importlib.util.spec_from_file_location(name, file) if file else None


def _top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements that run when a file is imported, those within ``if``, ``try`` and ``with`` too."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _top_level(node)


def _bound(node: ast.AST) -> dict[str, ast.arguments | None]:
    """Return the names that a statement binds, with their parameters where these are plain to see."""
    if isinstance(node, ast.FunctionDef):
        # A decorator may make something else of it.
        return {node.name: None if node.decorator_list else node.args}
    if isinstance(node, ast.ClassDef):
        return {node.name: None}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0]: None for alias in node.names}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id: None}
    return {}


def _parameters(arguments: ast.arguments) -> list[Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    found = [Parameter(item.arg, "positional", index < required) for index, item in enumerate(positional)]
    found += [Parameter(arguments.vararg.arg, "*", False)] if arguments.vararg else []
    given = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [Parameter(item.arg, "keyword", default is None) for item, default in given]
    return found + ([Parameter(arguments.kwarg.arg, "**", False)] if arguments.kwarg else [])
