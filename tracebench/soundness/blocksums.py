"""Gradients of big models in a thirty-second of their size, so that those of every call can be kept.

Each block of 64 elements becomes one sum with fixed pseudo-random signs, taken in float64. A wrong element changes
its block's sum by its full error, and float64 adds no rounding that would matter, so one wrong element among 64 is
still found down to the noise of its neighbours (8 times an element's).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_BLOCK = 64


@dataclass(frozen=True, eq=False)
class BlockSums:
    """What is kept of one tensor: its dtype and shape, and one float64 number for each block of elements."""

    sums: torch.Tensor
    dtype: torch.dtype
    shape: torch.Size


def block_sums(tensor: torch.Tensor) -> BlockSums:
    """Condense ``tensor``, which must be dense and floating-point."""
    flat = tensor.detach().reshape(-1)
    signs = torch.randint(0, 2, (_BLOCK,), generator=torch.Generator().manual_seed(64)).to(flat.device) * 2 - 1
    whole = flat.numel() // _BLOCK * _BLOCK
    sums = [
        (piece.double().view(-1, _BLOCK) * signs).sum(1)
        for piece in flat[:whole].split(_BLOCK * 16384)
        if piece.numel()
    ]
    if flat.numel() > whole:
        rest = flat[whole:].double()
        sums.append((rest * signs[: rest.numel()]).sum().reshape(1))
    empty = torch.empty(0, dtype=torch.float64, device=flat.device)
    return BlockSums(torch.cat(sums) if sums else empty, tensor.dtype, tensor.shape)
