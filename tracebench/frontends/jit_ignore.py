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
from typing import Any

import torch

from tracebench.controls.orders import rebound, stand_in_forward
from tracebench.controls.targets import Target
from tracebench.frontends.exclude import Hole
from tracebench.frontends.form import Form


@contextlib.contextmanager
def ignored(holes: Sequence[Hole]) -> Iterator[list[Any]]:
    """Within the context, let a trace leave the modules of ``holes`` to Python.

    Yields a list that must live as long as the trace, which finds the regions through it.
    """
    kept: list[Any] = []
    with contextlib.ExitStack() as during:
        for hole in holes:
            stands_in = _stand_in(hole, kept)
            if isinstance(hole.piece, Target):
                during.enter_context(rebound(hole.piece, stands_in))
            else:
                during.enter_context(stand_in_forward(hole.piece, stands_in))
        yield kept


class _Region:
    """One place in a trace where Python runs."""

    def __init__(self, name: str, run: Callable[..., Any], form: Form) -> None:
        self.key = next(_keys)
        self.name = name
        self.inputs = form
        self.outputs: Form | None = None
        self._run = run
        _regions[self.key] = self

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = self.inputs.join(tensors)
        self.outputs, results = Form.split(self._run(*args, **kwargs), "a result")
        return results


_keys = itertools.count()
_regions: weakref.WeakValueDictionary[int, _Region] = weakref.WeakValueDictionary()


def _stand_in(hole: Hole, kept: list[Any]) -> Callable[..., Any]:
    """Return what stands for the forward of ``hole`` while a trace is made."""
    made: list[_Region] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        form, tensors = Form.split((args, kwargs), "an argument")
        # The tracer's own check traces again, and must find the same number in the graph.
        region = next((region for region in made if region.inputs == form), None)
        if region is None:
            region = _Region(hole.path, hole.run, form)
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
