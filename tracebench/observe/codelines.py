"""What the source of a line tells: its text, the Python values it reads, and what a graph could lose of it.

Everything here is read off the syntax tree of the file; no user code is run.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

#: A name and the attributes and constant keys that follow it: ``("SETTINGS", ("item", "gain"))``.
Chain = tuple[Any, ...]

_ASKS = {
    "is_tracing",
    "is_scripting",
    "is_compiling",
    "is_dynamo_compiling",
    "is_torchdynamo_compiling",
    "is_exporting",
    "is_fx_tracing",
    "is_fx_symbolic_tracing",
}
_DRAWS = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli_",
    "normal_",
    "uniform_",
    "random_",
    "exponential_",
    "log_normal_",
    "dropout",
}
_CLOCKS = {"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "now", "uuid4", "next"}
_FACTORIES = {"zeros", "ones", "empty", "full", "rand", "randn", "linspace", "logspace", "eye", "tensor", "arange"}
_CHANGES = {
    "append",
    "appendleft",
    "extend",
    "insert",
    "pop",
    "popleft",
    "remove",
    "clear",
    "update",
    "setdefault",
    "add",
    "discard",
}
#: Trait -> names of functions and methods whose call has it.
_CALLS = {
    "asks": _ASKS,
    "type": {"isinstance", "type", "hasattr", "issubclass", "callable"},
    "draws": _DRAWS,
    "clock": _CLOCKS,
    "prints": {"print", "pprint", "warn", "debug", "info", "warning", "error"},
    "grad mode": {"no_grad", "enable_grad", "set_grad_enabled", "inference_mode"},
    "autocast": {"autocast"},
    "detaches": {"detach", "detach_", "requires_grad_"},
    "backward": {"apply"},
    "foreign": {"data_ptr", "numpy", "from_numpy", "from_dlpack", "memmove"},
    "writes": _CHANGES,
}


@dataclass
class Line:
    """One line. ``traits`` are keys of ``_CALLS`` and, besides, ``in place``, ``effect``, ``default dtype``, ``raises``
    and ``python draws`` (random numbers that are not torch's)."""

    text: str
    reads: list[Chain] = field(default_factory=list)
    traits: set[str] = field(default_factory=set)
    #: Names of attributes, globals and containers that it changes.
    changes: set[str] = field(default_factory=set)
    #: Whether it decides where control goes on.
    branches: bool = False


def line_at(filename: str, number: int) -> Line:
    """Return what is known of a line; of a file without source, nothing."""
    return _lines(filename).get(number) or Line(linecache.getline(filename, number).strip())


@lru_cache(maxsize=512)
def _lines(filename: str) -> dict[int, Line]:
    source = linecache.getlines(filename)
    try:
        tree = ast.parse("".join(source))
    except (SyntaxError, ValueError):
        # Not Python as this interpreter reads it (a notebook's magic, a template): the text alone is known.
        return {}
    lines = {number: Line(text.strip()) for number, text in enumerate(source, 1)}
    _Reader(lines).visit(tree)
    return lines


class _Reader(ast.NodeVisitor):
    def __init__(self, lines: dict[int, Line]) -> None:
        self._lines = lines
        self._globals: set[str] = set()

    def _at(self, node: ast.AST) -> Line:
        return self._lines.setdefault(getattr(node, "lineno", 0), Line(""))

    def _branch(self, node: Any) -> None:
        self._at(node).branches = True
        self.generic_visit(node)

    visit_If = visit_While = visit_For = visit_Assert = visit_IfExp = visit_BoolOp = visit_Match = _branch
    visit_ListComp = visit_GeneratorExp = visit_SetComp = visit_DictComp = _branch

    def visit_FunctionDef(self, node: Any) -> None:
        outer, self._globals = self._globals, set()
        self.generic_visit(node)
        self._globals = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Global(self, node: ast.Global) -> None:
        self._globals |= set(node.names)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._at(node).traits.add("raises")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assigned(node.target)
        self._at(node).traits.add("in place")
        chain = _chain(node.target)
        if chain is not None:
            # It is read, too; its context says only that it is stored.
            self._at(node).reads.append(chain)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.target)
        self.generic_visit(node)

    def _assigned(self, target: ast.expr) -> None:
        line = self._at(target)
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._assigned(part)
        elif isinstance(target, ast.Attribute) or (isinstance(target, ast.Name) and target.id in self._globals):
            line.traits.add("writes")
            line.changes |= set(_names(target))
        elif isinstance(target, ast.Subscript):
            line.traits |= {"in place", "writes"}
            line.changes |= set(_names(target.value))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            *holder, called = [*_names(node.value.func)] or [""]
            method = bool(holder) and holder[0] != "torch"
            # Methods that change what they are called on are no mystery to a tracer.
            if not (method and (called.endswith("_") or called in _CHANGES)):
                self._at(node).traits.add("effect")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        line, names = self._at(node), list(_names(node.func))
        called = names[-1] if names else ""
        line.traits |= {trait for trait, known in _CALLS.items() if called in known}
        if called == "write" and "stdout" in names:
            line.traits.add("prints")
        if "random" in names[:-1]:
            line.traits.add("draws" if names[0] == "torch" else "python draws")
        if called in _CHANGES and len(names) > 1:
            line.changes |= set(names[:-1])
        if called.endswith("_") and not called.endswith("__") and len(names) != 1:
            line.traits.add("in place")
            line.changes |= set(names[:-1])
        if any(keyword.arg == "out" for keyword in node.keywords):
            line.traits.add("in place")
        if called in _FACTORIES and names[0] != called and all(keyword.arg != "dtype" for keyword in node.keywords):
            line.traits.add("default dtype")
        self.generic_visit(node)

    def _read(self, node: Any) -> None:
        chain = _chain(node) if isinstance(node.ctx, ast.Load) else None
        if chain is None:
            self.generic_visit(node)
        else:
            self._at(node).reads.append(chain)

    visit_Name = visit_Attribute = visit_Subscript = _read


def _chain(node: ast.AST) -> Chain | None:
    """Return ``node`` as a chain; None if it holds a call, a computed key or the like."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner = _chain(node.value)
        return None if inner is None else (*inner, ("attr", node.attr))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        inner = _chain(node.value)
        return None if inner is None else (*inner, ("item", node.slice.value))
    return None


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names in ``a.b[i].c`` from left to right, past calls and subscripts."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield from _names(node.value)
        yield node.attr
    elif isinstance(node, ast.Call):
        yield from _names(node.func)
    elif isinstance(node, ast.Subscript):
        yield from _names(node.value)


def spelled(chain: Chain) -> str:
    """Return a chain as it stands in the source."""
    return chain[0] + "".join(f".{key}" if kind == "attr" else f"[{key!r}]" for kind, key in chain[1:])
