"""Inputs that nobody gave us: fresh values of the same shapes, and other batch sizes."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tracebench.frontends.base import Inputs
from tracebench.soundness.structure import to_tree, walk


class CannotBatch(Exception):
    """These inputs have no batch dimension that could be changed; the message says why."""


def fresh_values(inputs: Inputs, seed: int, scale: float = 1.0) -> Inputs:
    """Return a copy of ``inputs``, aliasing kept, whose tensors hold new values of the same kind.

    Floats of both signs: normal with the tensor's own standard deviation and the negated mean, so that branches on a
    mean or a sum go the other way. Floats of one sign: uniform over the tensor's own range (a constant c: 0 to 2c;
    all zero: standard normal). Integers: uniform over the tensor's own range (a constant c > 0: 0 to c). Booleans:
    coin flips. Random numbers come from a generator of their own. ``scale`` multiplies floats of both signs; others may
    mean something (a pixel, a probability, a mask) that ends where the example's range does.
    """
    generator = torch.Generator().manual_seed(seed)
    made = copy.deepcopy(inputs)
    with torch.no_grad():
        for tensor in _tensors(made):
            target = _own_memory(tensor)
            if target.numel() and not target.is_meta:
                target.copy_(_draw(target, generator, scale))
    return made


def has_both_signs(inputs: Inputs) -> bool:
    """Return whether a floating-point tensor of ``inputs`` has values on both sides of zero."""
    return any(tensor.is_floating_point() and _both_signs(tensor) for tensor in _tensors(inputs))


def same_values(a: Inputs, b: Inputs) -> bool:
    """Return whether the tensors of two inputs are equal, in number, shape and value."""
    first, second = _tensors(a), _tensors(b)
    return len(first) == len(second) and all(
        x.shape == y.shape and x.dtype == y.dtype and (x.is_meta or torch.equal(x, y))
        for x, y in zip(first, second, strict=True)
    )


def with_batch(inputs: Inputs, size: int, seed: int) -> Inputs:
    """Return inputs like ``inputs`` with ``size`` samples, the first ones repeated as need be, and fresh values.

    Samples are the rows of tensors, or the entries of lists at the top level; all must agree in number.

    Raises:
        CannotBatch: they do not.
    """
    present = common_batch(inputs)
    done: dict[int, Any] = {}

    def resize(value: Any) -> Any:
        if id(value) not in done:
            done[id(value)] = _resized(value, present, size)
        return done[id(value)]

    args = tuple(resize(value) for value in inputs.args)
    kwargs = {key: resize(value) for key, value in inputs.kwargs.items()}
    return fresh_values(Inputs(args, kwargs), seed)


def common_batch(inputs: Inputs) -> int:
    """Return the number of samples that all tensors and top-level lists of ``inputs`` agree on.

    Raises:
        CannotBatch: there is no such number.
    """
    sizes: dict[str, int] = {}

    def look(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_nested:
                raise CannotBatch(f"{name} is not a dense tensor")
            if value.dim() == 0:
                raise CannotBatch(f"{name} has no dimensions")
            sizes[name] = value.shape[0]
        elif isinstance(value, list) and any(list(walk(to_tree(item))) for item in value):
            sizes[name] = len(value)
        elif isinstance(value, (dict, tuple)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                look(item, f"{name}[{key!r}]")

    for i, value in enumerate(inputs.args):
        look(value, f"args[{i}]")
    for key, value in inputs.kwargs.items():
        look(value, f"kwargs[{key!r}]")
    if not sizes:
        raise CannotBatch("the inputs hold no tensors")
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{name}: {size}" for name, size in list(sizes.items())[:4])
        raise CannotBatch(f"the inputs do not share a leading dimension ({said})")
    if not (size := next(iter(sizes.values()))):
        raise CannotBatch("the example holds no samples")
    return size


def _tensors(inputs: Inputs) -> list[torch.Tensor]:
    return [leaf.value for _, leaf in walk(to_tree(inputs))]


def _resized(value: Any, present: int, size: int) -> Any:
    if isinstance(value, torch.Tensor):
        data = value.detach()
        rows = torch.cat([data] * (size // present) + [data[: size % present]])
        return rows.requires_grad_(value.requires_grad)
    if isinstance(value, list) and len(value) == present and any(list(walk(to_tree(item))) for item in value):
        kept = value[: min(size, present)]
        return kept + [copy.deepcopy(value[i % present]) for i in range(present, size)]
    if isinstance(value, dict):
        return type(value)((key, _resized(item, present, size)) for key, item in value.items())
    if isinstance(value, tuple):
        items = [_resized(item, present, size) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of ``tensor`` in which no element lies on another (an expanded dimension shrinks to one)."""
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout is not torch.strided:
        return tensor.values()
    index = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor[index] if index else tensor


def _both_signs(tensor: torch.Tensor) -> bool:
    if tensor.is_meta or not tensor.numel():
        return False
    values = _own_memory(tensor).detach()
    values = values[torch.isfinite(values)]
    return bool((values > 0).any()) and bool((values < 0).any())


def _draw(like: torch.Tensor, generator: torch.Generator, scale: float) -> torch.Tensor:
    """Return new values for ``like``, on the CPU, in float64 or an integer type."""
    shape = like.shape
    if like.dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if like.is_complex():
        return torch.randn(shape, generator=generator, dtype=torch.complex128)
    if not like.is_floating_point():
        low, high = int(like.min()), int(like.max())
        if low == high and low > 0:
            low = 0
        return torch.randint(low, high + 1, shape, generator=generator)
    values = like.detach().cpu().double()
    values = values[torch.isfinite(values)]
    low_, high_ = (float(values.min()), float(values.max())) if values.numel() else (0.0, 0.0)
    if low_ == high_ == 0.0:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    if low_ < 0 < high_:
        spread = float(values.std()) if values.numel() > 1 else abs(high_)
        made = torch.randn(shape, generator=generator, dtype=torch.float64) * spread - float(values.mean())
        return made * scale
    if low_ == high_:
        low_, high_ = min(0.0, 2 * low_), max(0.0, 2 * high_)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high_ - low_) + low_
