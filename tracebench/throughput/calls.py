"""The call that is timed: a model bound to input sets that it goes round, in training with backward and optimizer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tracebench.errors import CallError, RequestError, unknown_choice
from tracebench.frontends.base import Inputs
from tracebench.running.limits import available_bytes
from tracebench.soundness.loss import WeightedSum
from tracebench.subject import Subject

#: No more input sets than this: small inputs are a small part of what a call touches.
MAX_SETS = 64
#: All sets of one side together are this many times the last-level cache where count and memory allow ...
CACHE_TIMES = 2
#: ... and take no more than this share of the memory that is free.
MEMORY_SHARE = 0.05

#: Optimizers whose step can be part of a call in training. The learning rate is 0: a step reads and writes what it
#: always does, but values stay, so that the last call does the work of the first and no loss runs away.
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.0),
    "none": None,
}


class BoundCall:
    """One side's call without arguments: the next input set each time.

    In training a call is the forward pass, the backward pass from ``loss`` and, with ``optimizer``, its step.

    Args:
        who: for errors: ``eager`` or ``the capture``.
        call: has the signature of ``module``, whose parameters and buffers it uses.
        sets: used as they are: copies that belong to this side alone.
        training: whether a call goes beyond the forward pass.

    Raises:
        CallError: on a call, if the model raises.
    """

    def __init__(
        self,
        who: str,
        call: Callable[..., Any],
        module: nn.Module,
        sets: Sequence[Inputs],
        *,
        training: bool = False,
        loss: WeightedSum | None = None,
        optimizer: str = "none",
    ) -> None:
        self.module = module
        self._who = who
        self._call = call
        self._training = training
        self._loss = loss or WeightedSum()
        self._parameters = [p for p in module.parameters() if p.requires_grad] if training else []
        make = optimizer_for(optimizer) if training and self._parameters else None
        self.optimizer = make(self._parameters) if make is not None else None
        self.use(sets)

    def use(self, sets: Sequence[Inputs]) -> None:
        """Go round ``sets`` from now on."""
        self._sets = [(tuple(inputs.args), dict(inputs.kwargs)) for inputs in sets]
        # Gradients of inputs would add up from call to call.
        leaves = [_tensors(inputs) for inputs in sets]
        self._leaves = [[t for t in tensors if t.is_leaf and t.requires_grad] for tensors in leaves]
        self._next = 0

    def rewind(self, number: int) -> None:
        """Have the next call use set ``number``, counted round."""
        self._next = number % len(self._sets)

    def __call__(self) -> object:
        """Make one call."""
        index = self._next
        self._next = (index + 1) % len(self._sets)
        args, kwargs = self._sets[index]
        try:
            if not self._training:
                return self._call(*args, **kwargs)
            for tensor in (*self._parameters, *self._leaves[index]):
                tensor.grad = None
            self._loss.backward(self._call(*args, **kwargs))
            if self.optimizer is not None:
                self.optimizer.step()
        except Exception as error:
            doing = "trained" if self._training else "called"
            raise CallError(f"{self._who} raises when {doing} repeatedly: {type(error).__name__}: {error}") from error
        return None

    def release(self) -> None:
        """Release the gradients, as the next call would do first."""
        for tensor in (*self._parameters, *(tensor for leaves in self._leaves for tensor in leaves)):
            tensor.grad = None

    def resident(self) -> list[torch.Tensor]:
        """Return what stays from call to call: parameters, buffers, optimizer state and one input set."""
        found = [*self.module.parameters(), *self.module.buffers()]
        if self.optimizer is not None:
            found += [t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        return found + _tensors(Inputs(*self._sets[0]))


def optimizer_for(name: str) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None:
    """Return what makes the optimizer ``name``, None for ``none``.

    Raises:
        RequestError: no such optimizer.
    """
    if name not in OPTIMIZERS:
        raise unknown_choice("throughput.optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]


@dataclass(frozen=True)
class InputSets:
    """Input sets to go round; ``values`` is ``fresh`` or ``copies``, ``note`` says why there are no more or better."""

    sets: tuple[Inputs, ...]
    values: str
    note: str = ""

    @property
    def mb(self) -> float:
        """Size of all sets in 10**6 bytes."""
        return sum(storage_bytes(_tensors(inputs)) for inputs in self.sets) / 1e6

    def copied(self, subject: Subject) -> list[Inputs]:
        """Return copies for one side."""
        return [subject.fresh_inputs(inputs) for inputs in self.sets]


def input_sets(subject: Subject) -> InputSets:
    """Return the example and more sets like it, with values of their own where the model's file draws them.

    A model that declares ``other_inputs`` looks at values, so its sets are copies of the example: the same work in
    other memory. So are those of a model whose inputs differ in size from draw to draw.
    """
    device = subject.device
    count, note = _count(storage_bytes(_tensors(subject.example)), last_level_cache(device), free_bytes(device))
    copies = InputSets((subject.example,) * count, "copies", note)
    if subject.redraw is None:
        return copies_because(copies, "the inputs were given as values")
    if subject.declares_inputs:
        return copies_because(copies, "the model declares other_inputs, so its work may depend on values")
    try:
        drawn = [subject.redraw(subject.seed + 1000 + index) for index in range(1, count)]
    except RequestError as error:
        return copies_because(copies, f"example_inputs() raises for another seed: {error}")
    if any(_signature(inputs) != _signature(subject.example) for inputs in drawn):
        return copies_because(copies, "example_inputs() draws other sizes for another seed")
    if drawn and all(map(_equal, _tensors(drawn[0]), _tensors(subject.example))):
        return copies_because(copies, "example_inputs() draws the same values for another seed")
    return InputSets((subject.example, *drawn), "fresh", note)


def copies_because(sets: InputSets, why: str) -> InputSets:
    """Return as many copies of the first set, with the reason noted."""
    count = len(sets.sets)
    note = "; ".join(filter(None, (f"copies of the example, for {why}" if count > 1 else "", sets.note)))
    return InputSets((sets.sets[0],) * count, "copies", note)


def _count(one: int, cache: int | None, free: int | None) -> tuple[int, str]:
    """Return how many sets of ``one`` bytes to make, and why no more where they do not exceed the cache."""
    if one == 0:
        return 1, "the inputs hold no tensors with data"
    allowed = MAX_SETS if free is None else max(1, min(MAX_SETS, int(free * MEMORY_SHARE / one)))
    wanted = MAX_SETS if cache is None else max(2, math.ceil(CACHE_TIMES * cache / one))
    if cache is None:
        return min(wanted, allowed), "the size of the last cache is not known"
    if min(wanted, allowed) * one > cache:
        return min(wanted, allowed), ""
    limit = f"{MAX_SETS} sets" if allowed == MAX_SETS else f"{MEMORY_SHARE:.0%} of the free memory"
    return allowed, f"together smaller than the last cache: no more than {limit}"


def last_level_cache(device: torch.device) -> int | None:
    """Return the bytes of the last cache before the device's main memory; None where the system does not tell."""
    if device.type != "cpu":
        module = getattr(torch, device.type, None)
        properties = getattr(module, "get_device_properties", None)
        found = getattr(properties(device), "L2_cache_size", None) if properties is not None else None
        return int(found) if found else None
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG]?)", path.read_text(encoding="ascii").strip())
        if found:
            sizes.append(int(found[1]) * {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}[found[2]])
    return max(sizes) or None


def free_bytes(device: torch.device) -> int | None:
    """Return the memory of ``device`` that can still be had; None where the system does not tell."""
    if device.type == "cpu":
        return available_bytes()
    known = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return None if known is None else int(known(device)[0])


def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes behind ``tensors``, memory that several share counted once; what has no storage counts 0."""
    found: dict[Any, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # Sparse and other forms of tensor have none of their own.
            continue
        found[(tensor.device, storage.data_ptr())] = 0 if tensor.is_meta else storage.nbytes()
    return sum(found.values())


def _tensors(inputs: Inputs) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((tuple(inputs.args), dict(inputs.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _signature(inputs: Inputs) -> Any:
    leaves, spec = pytree.tree_flatten((tuple(inputs.args), dict(inputs.kwargs)))
    told = [
        (leaf.shape, leaf.dtype, leaf.layout, leaf.requires_grad) if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in leaves
    ]
    return spec, told


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.is_meta or (one.layout is torch.strided and not one.is_nested and torch.equal(one, other))
