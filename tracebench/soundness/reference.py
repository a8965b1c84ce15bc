"""The same calls in float64: what eager would have said without most of its rounding."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence

import torch

from tracebench.frontends.base import Inputs
from tracebench.soundness.calls import Call
from tracebench.soundness.runs import Snapshot, Target, run
from tracebench.soundness.structure import to_tree, walk
from tracebench.subject import Subject


def run_in_float64(subject: Subject, calls: Sequence[Call]) -> Iterator[Snapshot]:
    """Run ``calls`` on a float64 copy of the model, with floating-point inputs in float64 and the same seeds.

    Tensors that the model makes without naming a dtype are float64 too. Models that cannot run so fail in the
    snapshots, as any call may.
    """
    default = torch.get_default_dtype()
    model = subject.fresh_model().double()
    steps = run(subject, calls, Target.eager(model), prepare=in_float64)
    while True:
        with default_float64(default):
            try:
                snapshot = next(steps)
            except StopIteration:
                return
        yield snapshot


@contextlib.contextmanager
def default_float64(before: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_float64(inputs: Inputs) -> Inputs:
    """Return a copy of ``inputs`` with floating-point tensors in float64, those that share memory still sharing it."""
    storages: dict[tuple[str, int, torch.dtype], torch.Tensor] = {}
    replaced: dict[int, torch.Tensor] = {}
    for _, leaf in walk(to_tree(inputs)):
        tensor = leaf.live
        if not tensor.is_floating_point() or tensor.dtype == torch.float64:
            continue
        data = tensor.detach()
        if tensor.layout is not torch.strided or tensor.is_meta or type(data) is not torch.Tensor:
            wide = data.double()
        else:
            key = (str(data.device), data.untyped_storage().data_ptr(), data.dtype)
            if key not in storages:
                count = data.untyped_storage().nbytes() // data.element_size()
                storages[key] = data.as_strided((count,), (1,), 0).double()
            wide = storages[key].as_strided(data.shape, data.stride(), data.storage_offset())
        replaced[id(tensor)] = wide.requires_grad_(tensor.requires_grad)
    return copy.deepcopy(inputs, dict(replaced))
