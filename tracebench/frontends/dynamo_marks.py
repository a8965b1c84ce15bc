"""What Dynamo keeps about functions for a whole process, written down for as long as controls are in force."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

from tracebench.controls.orders import Order
from tracebench.errors import RequestError

#: Control -> function of ``torch._dynamo`` that marks a function by its identity.
MARKS = {"opaque": "allow_in_graph", "allow_in_graph": "allow_in_graph", "disallow_in_graph": "disallow_in_graph"}

#: The oldest torch that is known to have all that is needed here.
_HAS_ALL = "2.11"
#: Sets of identities of functions in ``torch._dynamo.trace_rules``.
_SETS = ("_allowed_callable_ids", "_disallowed_callable_ids", "_nonstrict_trace_callable_ids", "_leaf_function_ids")


def needed(module: str, name: str) -> Any:
    """Return something of torch's.

    Raises:
        RequestError: this torch lacks it.
    """
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        raise RequestError(f"torch {torch.__version__} has no {module}.{name}, which torch {_HAS_ALL} has.")
    return found


def check(order: Order) -> None:
    """See that Dynamo takes the mark.

    Raises:
        RequestError: it does not.
    """
    assert order.target is not None
    function = order.target.function
    if order.instruction.control == "disallow_in_graph" and not _goes_in_as_is(function):
        raise RequestError(
            f"controls.{order.instruction} is no function that Dynamo puts into the graph as it is, such as torch.sin. "
            "Use disable, graph_break_before or graph_break_after."
        )


@contextlib.contextmanager
def marked(order: Order) -> Iterator[None]:
    """Within the context, have the function that ``order`` names be marked, wherever it is called."""
    assert order.target is not None
    function = order.target.function
    mark = needed("torch._dynamo", MARKS[order.instruction.control])
    with _kept(function):
        mark(function)
        yield


@contextlib.contextmanager
def substituted(order: Order) -> Iterator[None]:
    """Within the context, have Dynamo trace the replacement where the function is called.

    Raises:
        RequestError: one of them is no function, or Dynamo has a rule of its own for it, or they do not fit.
    """
    assert order.target is not None
    function, other = order.target.function, order.replacement.function if order.replacement else None
    if function is None or other is None:
        raise RequestError(
            f"controls.{order.instruction}: torch.compiler.substitute_in_graph is about functions, not submodules. "
            "Name two functions, such as {mypkg.mod:fn: mypkg.mod:other}."
        )
    from torch._dynamo.trace_rules import _polyfilled_function_ids, get_torch_obj_rule_map
    from torch._dynamo.variables import PolyfilledFunctionVariable
    from torch._dynamo.variables.builder import VariableBuilder

    try:
        stands_in: Any = torch.compiler.substitute_in_graph(function)(other)
    except (TypeError, ValueError) as error:
        raise RequestError(f"controls.{order.instruction}: {error}. Use a function that Dynamo looks into.") from error
    try:
        yield
    finally:
        handlers = PolyfilledFunctionVariable._get_polyfill_handlers()
        for one in (function, stands_in):
            VariableBuilder._id_dispatch().pop(id(one), None)
            get_torch_obj_rule_map().pop(one, None)
            handlers.pop(one, None)
            _polyfilled_function_ids.remove(id(one))


@contextlib.contextmanager
def _kept(function: Any) -> Iterator[None]:
    """Put back, when the context ends, which of Dynamo's sets ``function`` is in."""
    from torch._dynamo import trace_rules

    sets = [found for name in _SETS if (found := getattr(trace_rules, name, None)) is not None]
    before = [id(function) in found for found in sets]
    try:
        yield
    finally:
        for found, was_in in zip(sets, before, strict=True):
            (found.add if was_in else found.remove)(id(function))


def _goes_in_as_is(function: Any) -> bool:
    from torch._dynamo import trace_rules, variables

    whole = variables.TorchInGraphFunctionVariable
    return trace_rules.lookup_callable(function) is whole or trace_rules.lookup(function) is whole
