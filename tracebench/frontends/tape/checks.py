"""Guards within a tape: nodes that compare what a tensor became in Python with what it became on tape."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tracebench.frontends.tape.errors import GuardError


def same_value(value: Any, recorded: Any, location: str) -> None:
    """Check a number that an op returned.

    Raises:
        GuardError: it is another.
    """
    if value != recorded and not (value != value and recorded != recorded):
        raise GuardError(f"a tensor's value became a Python number at {location}: {recorded} on tape, {value} now")


def same_list(tensor: torch.Tensor, recorded: Any, location: str) -> None:
    """Check all values of a tensor.

    Raises:
        GuardError: they are others.
    """
    now = torch._C.TensorBase.tolist(tensor)
    if now != recorded and repr(now) != repr(recorded):
        told = [text if len(text) < 60 else text[:57] + "..." for text in (repr(recorded), repr(now))]
        raise GuardError(f"a tensor's values became Python numbers at {location}: {told[0]} on tape, {told[1]} now")


def same_shapes(result: Any, recorded: list[tuple[int, ...]], location: str) -> None:
    """Check the shapes of an op's results.

    Raises:
        GuardError: they are others.
    """
    shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if shapes != [tuple(shape) for shape in recorded]:
        raise GuardError(f"a size depends on values at {location}: {recorded} on tape, {shapes} now")


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor.data``."""
    return tensor.data


class MustFail:
    """An op that raised on tape, for the forward to catch: it must raise at each call."""

    def __init__(self, op: Any, error: type[Exception], location: str) -> None:
        self._op = op
        self._error = error
        self._location = location
        self.__name__ = self.__qualname__ = "must_fail"
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the op.

        Raises:
            GuardError: it raises nothing, or something else than on tape.
        """
        try:
            self._op(*args, **kwargs)
        except Exception as error:
            if type(error) is self._error:
                return
            raise GuardError(f"{self._error.__name__} at {self._location} on tape, {error!r} now") from error
        raise GuardError(f"{self._error.__name__} at {self._location} on tape, no error now")


# Without outputs of their own, guards would be removed as dead code.
for _check_function in (same_value, same_list, same_shapes):
    fx.node.has_side_effect(_check_function)
