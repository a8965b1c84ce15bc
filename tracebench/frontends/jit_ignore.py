"""Regions that a TorchScript trace leaves to Python.

``torch.jit.ignore`` on a method does nothing while tracing: its ops are traced straight through. A scripted function
that calls an ignored one stays Python, in the trace too. One such pair serves every region: it takes and returns lists
of tensors, and everything else about arguments and results stays as it was when the trace was made.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tracebench.frontends.exclude import Hole

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout)


class NotIgnorableError(RuntimeError):
    """What goes into a region or comes out of it cannot cross the border between TorchScript and Python."""


@contextlib.contextmanager
def ignored(holes: Sequence[Hole]) -> Iterator[list[Any]]:
    """Within the context, let a trace leave the modules of ``holes`` to Python.

    Yields a list that must live as long as the trace, which finds the regions through it.
    """
    kept: list[Any] = []
    before = [vars(hole.module).get("forward") for hole in holes]
    try:
        for hole in holes:
            vars(hole.module)["forward"] = _stand_in(hole, kept)
        yield kept
    finally:
        for hole, forward in zip(holes, before, strict=True):
            if forward is None:
                del vars(hole.module)["forward"]
            else:
                vars(hole.module)["forward"] = forward


@dataclass(frozen=True)
class _Form:
    """A structure of plain values and tensors, without the tensors."""

    spec: pytree.TreeSpec
    #: Plain values, and None at the place of each tensor.
    leaves: tuple[Any, ...]
    places: tuple[int, ...]

    @classmethod
    def split(cls, value: Any, what: str) -> tuple[_Form, list[torch.Tensor]]:
        leaves, spec = pytree.tree_flatten(value)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                raise NotIgnorableError(f"{what} of type {type(leaf).__name__} cannot leave a trace for Python")
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        plain = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        return cls(spec, plain, places), [leaves[i] for i in places]

    def join(self, tensors: Sequence[torch.Tensor]) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.spec)


class _Region:
    """One place in a trace where Python runs."""

    def __init__(self, run: Callable[..., Any], form: _Form) -> None:
        self.key = next(_keys)
        self.inputs = form
        self.outputs: _Form | None = None
        self._run = run
        _regions[self.key] = self

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = self.inputs.join(tensors)
        self.outputs, results = _Form.split(self._run(*args, **kwargs), "a result")
        return results


_keys = itertools.count()
_regions: weakref.WeakValueDictionary[int, _Region] = weakref.WeakValueDictionary()


def _stand_in(hole: Hole, kept: list[Any]) -> Callable[..., Any]:
    """Return what stands for the forward of ``hole`` while a trace is made."""
    made: list[_Region] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        form, tensors = _Form.split((args, kwargs), "an argument")
        # The tracer's own check traces again, and must find the same number in the graph.
        region = next((region for region in made if region.inputs == form), None)
        if region is None:
            region = _Region(hole.run, form)
            made.append(region)
            kept.append(region)
        results = _border()(region.key, tensors)
        assert region.outputs is not None, "the region has run"
        return region.outputs.join(results)

    return forward


@functools.cache
def _border() -> Callable[[int, list[torch.Tensor]], list[torch.Tensor]]:
    """Return the scripted function that calls into Python."""
    # TorchScript wants the types themselves, not the strings that this module's annotations are.
    _run_region.__annotations__.update(key=int, tensors=list[torch.Tensor], **{"return": list[torch.Tensor]})
    source = "def border(key: int, tensors: List[Tensor]) -> List[Tensor]:\n    return _run_region(key, tensors)\n"
    border: Callable[[int, list[torch.Tensor]], list[torch.Tensor]] = torch.jit.CompilationUnit(source).border
    return border


@torch.jit.ignore
def _run_region(key: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return _regions[key](tensors)
