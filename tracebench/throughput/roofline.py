"""How far a case is from what the device could do: the roofline of Williams, Waterman and Patterson (CACM, 2009).

The roof over a case is the lower of two: the highest FLOP/s of the device, and its memory's bytes/s times the FLOPs
that the case does with each byte. Both peaks are measured, not read from a data sheet.

The FLOPs are those of a call of the model run eagerly, by torch's formulas. The bytes are the compulsory traffic of a
call, a lower bound that no fusion and no cache avoids (``compulsory_bytes``). So the roof is an upper bound, and a
fraction says how much of it was attained at least. It can exceed 1: where what a call touches stays in the caches,
which are faster than the memory that was measured, and where an algorithm needs fewer operations than its formula
counts (Winograd's convolution).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tracebench.failures import first_line
from tracebench.record import CoverageInfo, Roofline, ThroughputInfo
from tracebench.soundness.loss import run_backward
from tracebench.subject import Subject
from tracebench.throughput.clock import Clock, clock_for

#: Bytes of each of the two buffers of the copy: large against the caches of most processors, and of every GPU.
COPY_BYTES = {"cpu": 2**27}
ACCELERATOR_COPY_BYTES = 2**29
#: Sides of the square matrices that are multiplied, as long as a product takes less than ``LONG_MS``.
SIDES = (256, 512, 1024, 2048, 4096, 8192)
LONG_MS = 10.0
#: How often each is timed; the fastest counts.
TRIES = 3


def roofline(subject: Subject, cover: CoverageInfo | None, info: ThroughputInfo) -> Roofline:
    """Return where eager and the capture stand under the roof of their device; ``note`` says what is not known."""
    flops, why = known_flops(cover)
    notes = [] if why is None else [why]
    moved, measured = None, None
    try:
        moved = compulsory_bytes(subject)
    except Exception as error:
        notes.append(f"bytes n/a: the model raises while they are counted: {type(error).__name__}: {first_line(error)}")
    try:
        measured = peaks(subject.device, getattr(torch, subject.dtype))
    except RuntimeError as error:
        # Out of memory, or a dtype in which the device multiplies no matrices.
        notes.append(f"peaks n/a: {type(error).__name__}: {first_line(error)}")
    found = Roofline(flops, moved, note="; ".join(notes) or None)
    if measured is None:
        return found
    return under_roof(found, *measured, info.eager.median_ms, info.captured.median_ms)


def under_roof(found: Roofline, peak_gflops: float, peak_gb_s: float, eager_ms: float, captured_ms: float) -> Roofline:
    """Return ``found`` with the peaks and, where its FLOPs and bytes are known, with its roof and what is attained."""
    found = replace(found, peak_gflops=peak_gflops, peak_gb_s=peak_gb_s)
    if not found.flops or not found.bytes:
        return found
    intensity = found.flops / found.bytes
    roof = min(peak_gflops, intensity * peak_gb_s)
    eager, captured = (found.flops / (ms * 1e6) for ms in (eager_ms, captured_ms))
    return replace(
        found,
        intensity=intensity,
        roof_gflops=roof,
        eager_gflops=eager,
        captured_gflops=captured,
        eager_fraction=eager / roof,
        captured_fraction=captured / roof,
        bound="memory" if roof < peak_gflops else "compute",
    )


def known_flops(cover: CoverageInfo | None) -> tuple[int | None, str | None]:
    """Return the FLOPs of a call of eager, or None and why they are not known."""
    if cover is None or cover.eager_flops is None:
        return None, "FLOPs are counted by the stage coverage, which did not run"
    if cover.flops_unknown:
        return None, f"torch has no FLOP formula for {', '.join(cover.flops_unknown)}"
    if cover.eager_flops == 0:
        return None, "no op of the model has a FLOP formula in torch"
    return cover.eager_flops, None


def compulsory_bytes(subject: Subject) -> int:
    """Return the bytes that a call of the model has to move between memory and processor, at least.

    These are: each parameter, buffer and input that an op reads, once, and no more of it than the op that reads most of
    it takes (what only views look at, and embedding tables, of which a call looks up a few rows, count nothing); each
    output that is no such tensor, once; in training, each gradient of a parameter, once. Tensors that share memory
    count once.
    """
    model, inputs = subject.fresh_model(), subject.fresh_inputs()
    given = [*model.parameters(), *model.buffers(), *_tensors((inputs.args, dict(inputs.kwargs)))]
    reads = _Reads({_storage(tensor) for tensor in given})
    with subject.grad_mode(), subject.hooks.call_context(0):
        with reads:
            output = model(*inputs.args, **inputs.kwargs)
        written = {
            _storage(tensor): _size(tensor) for tensor in _tensors(output) if _storage(tensor) not in reads.known
        }
        if subject.training:
            run_backward(output)
    gradients = map(_size, _tensors([parameter.grad for parameter in model.parameters()]))
    new = sum(size for storage, size in written.items() if storage not in reads.known)
    return sum(reads.bytes.values()) + new + sum(gradients)


class _Reads(TorchDispatchMode):
    """Notes how much of the memory of the ``known`` storages ops read."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known = known
        self.bytes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func.is_view:
            looked_up = "embedding" in func.name()
            for tensor in _tensors((args[1:] if looked_up else args, kwargs)):
                storage = _storage(tensor)
                if storage in self.known:
                    self.bytes[storage] = max(self.bytes.get(storage, 0), _size(tensor))
        return func(*args, **kwargs)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of ``tree`` that have memory of their own to speak of: dense ones."""
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_nested:
            yield leaf


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; those that an expanded dimension repeats count once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


@functools.cache
def peaks(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Measure the highest GFLOP/s of ``device`` in ``dtype`` and its memory's GB/s (10^9 bytes), once a process.

    FLOP/s are those of the fastest product of square matrices, a multiplication and an addition counting as two; bytes
    are those of a copy, read and written. Takes well below a second.
    """
    clock = clock_for(device)
    with torch.no_grad():
        return _peak_gflops(device, dtype, clock), _peak_gb_s(device, clock)


def _peak_gflops(device: torch.device, dtype: torch.dtype, clock: Clock) -> float:
    best = 0.0
    for side in SIDES:
        left, right, out = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(3))
        ms = _fastest(functools.partial(torch.mm, left, right, out=out), clock)
        best = max(best, 2 * side**3 / (ms * 1e6))
        if ms > LONG_MS:
            break
    return best


def _peak_gb_s(device: torch.device, clock: Clock) -> float:
    size = COPY_BYTES.get(device.type, ACCELERATOR_COPY_BYTES)
    source, target = (torch.ones(size, device=device, dtype=torch.uint8) for _ in range(2))
    return 2 * size / (_fastest(lambda: target.copy_(source), clock) * 1e6)


def _fastest(fn: Callable[[], object], clock: Clock) -> float:
    """Return the milliseconds of the fastest of some calls, after one that does not count."""
    fn()
    return min(clock.time(fn, 1) for _ in range(TRIES))
