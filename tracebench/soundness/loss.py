"""The backward pass of a call in training: the same loss wherever gradients matter."""

from __future__ import annotations

from typing import Any

import torch

from tracebench.soundness.structure import to_tree, walk


def run_backward(output: Any) -> None:
    """Run the backward pass from a weighted sum of all floating-point outputs that require a gradient.

    The weights are fixed pseudo-random numbers with magnitudes from 0.5 to 1.5 and either sign, so that neither equal
    and opposite errors nor a constant factor in one output cancel.
    """
    generator = torch.Generator().manual_seed(1)
    loss: torch.Tensor | None = None
    for tensor in _differentiable(output):
        dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
        if dense.is_complex():
            dense = torch.view_as_real(dense)
        # In float32 whatever the default dtype: the float64 reference must have the same loss.
        draw = torch.rand(dense.shape, generator=generator, dtype=torch.float32)
        weights = (draw + 0.5) * (torch.randint(0, 2, dense.shape, generator=generator) * 2 - 1)
        wide = dense if dense.dtype == torch.float64 else dense.float()
        term = (wide * weights.to(wide.device, wide.dtype)).sum()
        loss = term if loss is None else loss + term.to(loss.device)
    if loss is not None:
        loss.backward()


def _differentiable(output: Any) -> list[torch.Tensor]:
    """Return the live tensors of ``output`` that a loss can be made of, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for _, leaf in walk(to_tree(output)):
        tensor = leaf.live
        if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex()):
            found.setdefault(id(tensor), tensor)
    return list(found.values())
