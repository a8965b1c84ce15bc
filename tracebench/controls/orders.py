"""Wishes bound to a model: what a front end carries out, and how callables are put in the place of others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from tracebench.controls.arguments import Argument, resolve_argument
from tracebench.controls.targets import Target, resolve
from tracebench.controls.vocabulary import CONTROLS, Instruction, Wishes

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Order:
    """One instruction; ``target`` is the piece it is about, None where it is about none."""

    instruction: Instruction
    target: Target | None = None
    #: What takes its place, where the control is about such a pair.
    replacement: Target | None = None
    #: The argument of the model's call that it is about, where it is about one.
    argument: Argument | None = None


@dataclass(frozen=True)
class Orders:
    """All instructions of a case, bound to its model."""

    orders: tuple[Order, ...] = ()

    def of(self, *controls: str) -> tuple[Order, ...]:
        """Return the orders of the given controls, in the order of the controls."""
        return tuple(order for name in controls for order in self.orders if order.instruction.control == name)

    def without(self, left_out: Order) -> Orders:
        """Return all but one."""
        return Orders(tuple(order for order in self.orders if order != left_out))

    def __bool__(self) -> bool:
        return bool(self.orders)


NO_ORDERS = Orders()


def bind(
    asked: Wishes,
    model: nn.Module,
    file: ModuleType | None = None,
    example: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
) -> Orders:
    """Return ``asked`` bound to the pieces of ``model``; ``file`` is the module of its file.

    ``example`` are the arguments of a call, which arguments that are asked for are looked up in.

    Raises:
        RequestError: the model has no such piece, or takes no such argument.
    """

    def bound(found: Instruction) -> Order:
        kind = CONTROLS[found.control].kind
        if kind == "pieces":
            return Order(found, resolve(found.target, model, file))
        if kind == "pairs":
            return Order(found, resolve(found.target, model, file), resolve(str(found.value), model, file))
        if kind == "inputs":
            return Order(found, argument=resolve_argument(found.target, found.value, model, example, found.control))
        return Order(found)

    return Orders(tuple(map(bound, asked.instructions)))


def decorate_modules(modules: Iterable[nn.Module], decorate: Decorator) -> None:
    """Put ``decorate(forward)`` in the place of the forward of each of ``modules``, for good.

    They belong to a capture's own copy of a model, so the decorated ones end with it.
    """
    for module in modules:
        # Past nn.Module's own rules, by which a module would become a submodule.
        vars(module)["forward"] = decorate(module.forward)


@contextlib.contextmanager
def rebound(target: Target, stands_in: Callable[..., Any]) -> Iterator[None]:
    """Within the context, have ``stands_in`` called wherever the target, a function, is called by one of its names."""
    before = [(owner, name, vars(owner)[name]) for owner, name in target.sites if name in vars(owner)]
    for owner, name, found in before:
        # A static method of a class stays one; what was found of a class method is bound to the class.
        unbound = isinstance(found, (staticmethod, classmethod))
        setattr(owner, name, staticmethod(stands_in) if unbound else stands_in)
    try:
        yield
    finally:
        for owner, name, found in before:
            setattr(owner, name, found)


@contextlib.contextmanager
def stand_in_forward(module: nn.Module, stands_in: Callable[..., Any]) -> Iterator[None]:
    """Within the context, have ``stands_in`` called in the place of the forward of ``module``."""
    before = vars(module).get("forward")
    vars(module)["forward"] = stands_in
    try:
        yield
    finally:
        if before is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = before
