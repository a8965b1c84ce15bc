"""torch's ``make_fx`` as a trace hook: the ATen ops of one run become an ``fx.Graph``.

Parameters and buffers are lifted: they are inputs of the graph, looked up in the model at each call, so that what is
trained, moved or replaced later takes part. What Python decided in the one run stays decided: a branch on a value, a
number taken out of a tensor, a size.

    python -m tracebench model=resnet18 frontend=hook frontend.hook=models/hooks/make_fx.py
"""

import copy

import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tracebench.hooks import Traced


def custom_trace(model, inputs, kwargs):
    """Run a copy of ``model`` once, so that what the run changes is not changed in the model itself."""
    names = [name for name, _ in _state(model)]
    leaves, form = pytree.tree_flatten((inputs, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    traced, output_form = copy.deepcopy(model), None

    def run(*tensors):
        nonlocal output_form
        state = dict(zip(names, tensors, strict=False))
        given = list(leaves)
        for place, tensor in zip(places, tensors[len(names) :], strict=True):
            given[place] = tensor
        args, kwargs = pytree.tree_unflatten(given, form)
        flat, output_form = pytree.tree_flatten(functional_call(traced, state, args, kwargs))
        return flat

    graph = make_fx(run)(*(tensor for _, tensor in _state(traced)), *(leaves[place] for place in places))

    def call(*args, **kwargs):
        given, given_form = pytree.tree_flatten((args, kwargs))
        if given_form != form:
            raise TypeError(f"the graph was made for arguments of the form {form}, not {given_form}")
        for place, (before, now) in enumerate(zip(leaves, given, strict=True)):
            if place not in places and before != now:
                raise ValueError(f"argument {place} was {before!r} when the graph was made, and is {now!r}")
        state = [tensor for _, tensor in _state(model)]
        return pytree.tree_unflatten(graph(*state, *(given[place] for place in places)), output_form)

    return Traced(call, graphs=(graph,))


def _state(model):
    return [*model.named_parameters(), *model.named_buffers()]
