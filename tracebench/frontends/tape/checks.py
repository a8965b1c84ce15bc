"""Checks within a tape: where a run went on from what a tensor became in Python, and what it was then."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tracebench.record import Specialisation

_TEXT = 60


@dataclass(frozen=True)
class Kind:
    """One way in which a run depends on values of tensors."""

    #: What happened, for messages.
    says: str
    #: What Python learnt, as a key: equal keys, equal runs.
    key: Callable[[Any], Hashable]
    text: Callable[[Any], str]


def _number(value: Any) -> Hashable:
    # NaN is one value here, and 0.0 is not -0.0.
    return value if value == value and value != 0 else repr(value)


def _values(tensor: torch.Tensor) -> Hashable:
    # Bytes that are equal only for equal lists; version 2 knows nothing of shared objects.
    return marshal.dumps(torch._C.TensorBase.tolist(tensor), 2)


def _values_text(tensor: torch.Tensor) -> str:
    text = repr(torch._C.TensorBase.tolist(tensor))
    return text if len(text) < _TEXT else text[: _TEXT - 3] + "..."


def _shapes(result: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(leaf.shape) for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))


def _error_text(error: type[Exception] | None) -> str:
    return "no error" if error is None else error.__name__


KINDS = {
    "value": Kind("a tensor's value became a Python number", _number, str),
    "list": Kind("a tensor's values became Python numbers", _values, _values_text),
    "shapes": Kind("a size depends on values", _shapes, lambda result: str(list(_shapes(result)))),
    "error": Kind("an op that may fail", lambda error: error, _error_text),
}


@dataclass(frozen=True)
class Check:
    """One such place of a run."""

    #: A key of ``KINDS``.
    kind: str
    subject: fx.Node
    #: How many nodes come before it, and those from there on that are run to know what the subject is.
    start: int
    asked: tuple[fx.Node, ...]
    #: What the subject was.
    key: Hashable
    text: str
    #: Source of the expression, and where it stands.
    expression: str
    location: str
    #: What a tape fixes here.
    fact: Specialisation | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        node: fx.Node,
        subject: Any,
        start: int,
        asked: tuple[fx.Node, ...],
        expression: str,
        location: str,
        fact: Specialisation | None,
    ) -> Check:
        """Return the check of what ``subject`` is now."""
        how = KINDS[kind]
        return cls(kind, node, start, asked, how.key(subject), how.text(subject), expression, location, fact)


def attempt(op: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[type[Exception] | None, Any]:
    """Run an op that may fail, and return the type of its error, if it did, and its result, if it did not."""
    try:
        return None, op(*args, **kwargs)
    except Exception as error:
        return type(error), None


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor.data``."""
    return tensor.data
