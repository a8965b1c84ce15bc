"""Arguments and results taken apart into tensors and everything else, for regions that graphs leave to Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

#: What is kept as it is, beside tensors.
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout)


class NotPlainError(RuntimeError):
    """What goes into a region or comes out of it is neither a tensor nor a plain value, nor a container of these."""


@dataclass(frozen=True)
class Form:
    """A structure of plain values and tensors, without the tensors."""

    spec: pytree.TreeSpec
    #: Plain values, and None at the place of each tensor.
    leaves: tuple[Any, ...]
    places: tuple[int, ...]

    @classmethod
    def split(cls, value: Any, what: str) -> tuple[Form, list[torch.Tensor]]:
        """Return the form of ``value`` and its tensors, in order.

        Raises:
            NotPlainError: something in it is neither; ``what`` names it in the message.
        """
        leaves, spec = pytree.tree_flatten(value)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                raise NotPlainError(f"{what} of type {type(leaf).__name__} cannot go from a graph to Python and back")
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        plain = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        return cls(spec, plain, places), [leaves[i] for i in places]

    def join(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a value of this form that holds ``tensors``."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.spec)
