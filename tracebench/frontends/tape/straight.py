"""A tape's code run with what it names at hand: the same ops on the same tensors, found and called faster.

As a ``GraphModule`` runs it, a tensor costs about a microsecond for each dot in its name, and an op up to some eight
microseconds more than by the function that torch itself gives to Python for it, as calls of ``torch.ops`` are boxed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

_ATEN = torch.ops.aten
_FUNCTIONS: Any = torch._C._VariableFunctions
_METHODS: Any = torch._C.TensorBase
#: Ops with functions of torch's that take the same arguments and, given tensors for tensors, call that op and no other.
BINDINGS: dict[Any, Callable[..., Any]] = {
    **{
        getattr(getattr(_ATEN, name), overload): getattr(_FUNCTIONS, name)
        for name, overload in (
            ("_native_multi_head_attention", "default"),
            ("_unsafe_view", "default"),
            ("add", "Tensor"),
            ("addmm", "default"),
            ("bmm", "default"),
            ("cat", "default"),
            ("clone", "default"),
            ("convolution", "default"),
            ("detach", "default"),
            ("div", "Tensor"),
            ("embedding", "default"),
            ("empty", "memory_format"),
            ("mean", "dim"),
            ("mm", "default"),
            ("mul", "Tensor"),
            ("native_batch_norm", "default"),
            ("native_group_norm", "default"),
            ("native_layer_norm", "default"),
            ("permute", "default"),
            ("relu", "default"),
            ("relu_", "default"),
            ("select", "int"),
            ("sigmoid", "default"),
            ("sub", "Tensor"),
            ("t", "default"),
            ("tanh", "default"),
            ("transpose", "int"),
            ("unbind", "int"),
            ("unsqueeze", "default"),
        )
        if hasattr(_FUNCTIONS, name) and hasattr(_ATEN, name)
    },
    **{
        getattr(getattr(_ATEN, name), overload): getattr(_METHODS, name)
        for name, overload in (("add_", "Tensor"), ("expand", "default"), ("mul_", "Tensor"), ("view", "default"))
    },
    **{
        getattr(_ATEN, name).default: getattr(torch._C._nn, name)
        for name in ("gelu", "hardswish_", "hardtanh_", "max_pool2d_with_indices")
        if hasattr(torch._C._nn, name)
    },
}
_PLAIN = (torch.Tensor, nn.Parameter)


class _Names:
    """Stands for ``real`` as something to get attributes from, each looked up once."""

    def __init__(self, real: Any, **known: Any) -> None:
        vars(self).update(known, _real=real)

    def __getattr__(self, name: str) -> Any:
        found = getattr(vars(self)["_real"], name)
        vars(self)[name] = found
        return found


def straight(graph: fx.GraphModule, *, plain: bool) -> Callable[..., Any]:
    """Return what runs the code of ``graph``; ``plain`` tells whether all tensors that it is given are plain ones.

    Tensors that it holds are those of now. Modes and classes of tensors that look at functions see what they would have
    seen: where there are any, ops are called by ``torch.ops``.
    """
    held = _Names(None)
    plain = plain and torch._C._len_torch_function_stack() == 0
    ops: dict[Any, bool] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            *path, name = node.target.split(".")
            place, module = held, graph
            for part in path:
                module = getattr(module, part)
                place = vars(place).setdefault(part, _Names(None))
            vars(place)[name] = found = getattr(module, name)
            plain = plain and is_plain(found)
        elif node.op == "call_function" and node.target in BINDINGS:
            ops[node.target] = ops.get(node.target, True) and _gives_tensors(node)
    aten: dict[str, _Names] = {}
    if plain:
        for op in [op for op, fits in ops.items() if fits]:
            name, overload = op._schema.name.partition("::")[2], op._overloadname
            vars(aten.setdefault(name, _Names(getattr(_ATEN, name))))[overload] = BINDINGS[op]
    stands = _Names(torch, ops=_Names(torch.ops, aten=_Names(_ATEN, **aten)))
    forward: Any = type(graph).forward
    names = {name: stands if value is torch else value for name, value in forward.__globals__.items()}
    code = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    return functools.partial(code, held)


def is_plain(value: Any) -> bool:
    """Return whether a value is no tensor of a class of its own."""
    return not isinstance(value, torch.Tensor) or type(value) in _PLAIN


def _gives_tensors(node: fx.Node) -> bool:
    """Whether a node gives its op a tensor for each tensor; a number would be another op's."""
    args = node.args
    return all(
        isinstance(args[index] if index < len(args) else node.kwargs.get(name), fx.Node)
        for index, name in _tensors(node.target)
    )


@functools.cache
def _tensors(op: Any) -> tuple[tuple[int, str], ...]:
    """Return place and name of the arguments of an op that are tensors."""
    arguments = enumerate(op._schema.arguments)
    return tuple((index, argument.name) for index, argument in arguments if str(argument.type) == "Tensor")
