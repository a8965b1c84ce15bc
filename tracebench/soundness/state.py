"""A model's state: read, kept cheaply, and put back.

State is parameters, buffers and plain Python attributes (numbers, text, tensors that are not registered, and
containers of these). What equals the pristine model's is not copied, so a snapshot costs only what changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tracebench.soundness.compare import bitwise_equal, compare
from tracebench.soundness.structure import to_tree, walk

#: Attributes that torch keeps on modules for itself.
_TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"} | {
    "_compiled_call_impl",
    "_is_full_backward_hook",
    "_is_torch_compile",
}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, np.generic)


class _Word:
    """Stands for something that is no value; copies are the same object."""

    def __deepcopy__(self, memo: Any) -> _Word:
        return self


#: An attribute that is not there.
MISSING = _Word()
#: An attribute that changed to something that cannot be copied.
UNKNOWN = _Word()

Place = tuple[str, str]


@dataclass(frozen=True)
class State:
    """What a model keeps, after a call: what changed as copies, the rest by reference to the pristine model."""

    pristine: Mapping[str, torch.Tensor]
    changed: Mapping[str, torch.Tensor]
    names: frozenset[str]
    #: Plain attributes that differ from the pristine model's, as copies; see ``MISSING`` and ``UNKNOWN``.
    attributes: Mapping[Place, Any]
    model: nn.Module

    def get(self, name: str, like: torch.dtype | None = None) -> torch.Tensor:
        """Return the tensor ``name``; one that did not change is cast to ``like``."""
        if name in self.changed:
            return self.changed[name]
        tensor = self.pristine[name]
        return tensor if like is None else tensor.to(like)

    def attribute(self, place: Place) -> Any:
        """Return the attribute at ``place``, or ``MISSING``."""
        return self.attributes[place] if place in self.attributes else _attribute(self.model, place)


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, tied ones under every name, without lazy ones that have no data yet."""
    named: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    named.update(model.named_buffers(remove_duplicate=False))
    return {name: tensor for name, tensor in named.items() if not is_lazy(tensor)}


def live_tensors(model: nn.Module, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state a capture uses: the model's, but for names that the capture's own ``module`` holds too."""
    named = tensors(model)
    if module is not model:
        named.update({name: tensor for name, tensor in tensors(module).items() if name in named})
    return named


def snapshot(model: nn.Module, module: nn.Module, pristine: nn.Module) -> State:
    """Return the present state; ``module`` is the capture's, or ``model`` itself."""
    base = tensors(pristine)
    live = live_tensors(model, module)
    changed = {}
    for name, tensor in live.items():
        before = base.get(name)
        # A float64 copy of the model counts as unchanged where it equals the pristine values.
        cast = before.to(tensor.dtype) if before is not None and before.is_floating_point() else before
        if cast is None or not bitwise_equal(tensor, cast):
            changed[name] = tensor.detach().clone()
    attributes = {
        place: _copied(value) if value is MISSING or _is_plain(value) else UNKNOWN
        for place, value in changed_attributes(model, pristine)
    }
    return State(base, changed, frozenset(live), attributes, pristine)


def restore_pristine(model: nn.Module, module: nn.Module, pristine: nn.Module) -> list[str]:
    """Put tensors and plain attributes of ``model`` and ``module`` back in place; return what had changed."""
    base = tensors(pristine)
    restored = [f"state {name}" for name in _put_back(model, module, base)]
    changes = dict(changed_attributes(model, pristine))
    before = copy.deepcopy({place: _attribute(pristine, place) for place in changes})
    for place, value in before.items():
        _set(model, place, value)
    restored += [f"attribute {place_name(place)}" for place in changes]
    for name, parameter in [*model.named_parameters(), *module.named_parameters()]:
        if parameter.grad is not None:
            parameter.grad = None
            restored.append(f"gradient of {name}")
    return list(dict.fromkeys(restored))


def adopt(model: nn.Module, module: nn.Module, pristine: nn.Module, state: State) -> None:
    """Put ``model`` and ``module`` in the state that a snapshot of another run holds."""
    _put_back(model, module, {name: state.get(name) for name in state.names})
    here = dict(changed_attributes(model, pristine))
    back = {place: _attribute(pristine, place) for place in here if place not in state.attributes}
    for place, value in copy.deepcopy({**back, **state.attributes}).items():
        if value is not UNKNOWN:
            _set(model, place, value)


def changed_attributes(model: nn.Module, pristine: nn.Module) -> Iterator[tuple[Place, Any]]:
    """Yield the plain attributes of ``model`` that differ from those of ``pristine``, with their present values.

    What replaces a plain value counts whatever it is (a tracer may leave a proxy behind); what is not plain in the
    pristine model is left alone, and so is what appears anew unless it is plain.
    """
    before = dict(pristine.named_modules())
    for path, module in model.named_modules():
        if path not in before:
            continue
        old = {key: value for key, value in vars(before[path]).items() if key not in _TORCH_ATTRIBUTES}
        new = {key: value for key, value in vars(module).items() if key not in _TORCH_ATTRIBUTES}
        for key in {**old, **new}:
            value = new.get(key, MISSING)
            if key in old:
                differs = _is_plain(old[key]) and not _alike(old[key], value)
            else:
                differs = not key.startswith("__") and _is_plain(value)
            if differs:
                yield (path, key), value


def _alike(old: Any, new: Any) -> bool:
    if new is MISSING or not _is_plain(new):
        return False
    found = compare(old, new, requires_grad=False)
    return found.equal and found.bitwise is not False


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, torch.Tensor):
        # Not a proxy or a fake: a tensor with data.
        return type(value) in (torch.Tensor, nn.Parameter)
    if isinstance(value, (*_PLAIN, np.ndarray)):
        return True
    if depth > 8:
        return False
    if isinstance(value, dict):
        return all(_is_plain(key, depth + 1) and _is_plain(item, depth + 1) for key, item in value.items())
    return isinstance(value, (list, tuple, set, frozenset)) and all(_is_plain(item, depth + 1) for item in value)


def _copied(value: Any) -> Any:
    """Return a copy of a plain value; tensors in it that belong to a graph of autograd are detached."""
    memo: dict[int, Any] = {}
    for _, leaf in walk(to_tree(value)):
        if not leaf.live.is_leaf:
            memo[id(leaf.live)] = leaf.live.detach().clone()
    return copy.deepcopy(value, memo)


def _put_back(model: nn.Module, module: nn.Module, values: Mapping[str, torch.Tensor]) -> list[str]:
    changed = []
    holders = [model] if module is model else [model, module]
    with torch.no_grad():
        for holder in holders:
            for name, tensor in tensors(holder).items():
                wanted = values.get(name)
                if wanted is None or bitwise_equal(tensor, wanted):
                    continue
                changed.append(name)
                if tensor.shape == wanted.shape and tensor.dtype == wanted.dtype and tensor.device == wanted.device:
                    tensor.copy_(wanted)
                else:
                    tensor.data = wanted.detach().clone()
    return list(dict.fromkeys(changed))


def _attribute(model: nn.Module, place: Place) -> Any:
    return vars(model.get_submodule(place[0])).get(place[1], MISSING)


def _set(model: nn.Module, place: Place, value: Any) -> None:
    """Set one attribute, in place where it is a container or a tensor: hooks and graphs may hold the same object."""
    attributes = vars(model.get_submodule(place[0]))
    present = attributes.get(place[1], MISSING)
    if value is MISSING:
        attributes.pop(place[1], None)
    elif isinstance(value, list) and type(present) is type(value):
        present[:] = value
    elif isinstance(value, (dict, set)) and type(present) is type(value):
        present.clear()
        present.update(value)
    elif (
        isinstance(value, torch.Tensor)
        and isinstance(present, torch.Tensor)
        and (present.shape, present.dtype, present.device) == (value.shape, value.dtype, value.device)
    ):
        with torch.no_grad():
            present.copy_(value)
    else:
        attributes[place[1]] = value


def place_name(place: Place) -> str:
    """Return an attribute's dotted name."""
    return f"{place[0]}.{place[1]}".lstrip(".")
