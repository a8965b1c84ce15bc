"""The backward pass of a call in training: the same loss wherever gradients matter, verdicts and timings alike."""

from __future__ import annotations

from typing import Any

import torch

from tracebench.soundness.structure import to_tree, walk


class WeightedSum:
    """A weighted sum of all floating-point outputs that require a gradient, as a loss.

    The weights are fixed pseudo-random numbers with magnitudes from 0.5 to 1.5 and either sign, so that neither equal
    and opposite errors nor a constant factor in one output cancel. They are kept while outputs keep their sizes, so
    that calls which are timed do not draw them anew.
    """

    def __init__(self) -> None:
        self._sizes: list[Any] = []
        self._weights: list[torch.Tensor] = []

    def backward(self, output: Any) -> None:
        """Run the backward pass from the loss of ``output``; nothing where no output requires a gradient."""
        tensors = [_dense(tensor) for tensor in _differentiable(output)]
        sizes = [(tensor.shape, tensor.device, tensor.dtype) for tensor in tensors]
        if sizes != self._sizes:
            self._sizes, self._weights = sizes, _weights(tensors)
        loss: torch.Tensor | None = None
        for tensor, weights in zip(tensors, self._weights, strict=True):
            term = (_wide(tensor) * weights).sum()
            loss = term if loss is None else loss + term.to(loss.device)
        if loss is not None:
            loss.backward()


def run_backward(output: Any) -> None:
    """Run the backward pass of one call, from ``WeightedSum``."""
    WeightedSum().backward(output)


def _weights(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return weights for each of ``tensors``, drawn from one seed in their order."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for tensor in tensors:
        # In float32 whatever the default dtype: the float64 reference must have the same loss.
        draw = torch.rand(tensor.shape, generator=generator, dtype=torch.float32)
        weights = (draw + 0.5) * (torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1)
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        found.append(weights.to(tensor.device, wide))
    return found


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return torch.view_as_real(dense) if dense.is_complex() else dense


def _differentiable(output: Any) -> list[torch.Tensor]:
    """Return the live tensors of ``output`` that a loss can be made of, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for _, leaf in walk(to_tree(output)):
        tensor = leaf.live
        if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex()):
            found.setdefault(id(tensor), tensor)
    return list(found.values())
