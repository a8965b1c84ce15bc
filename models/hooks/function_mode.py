"""A tracer of torch functions as a hook: a ``TorchFunctionMode`` writes each call down as a node of an ``fx.Graph``.

The graph is at the level that models are written at (``F.conv2d``, ``Tensor.view``), and readable. It holds the
model's own parameters and buffers. Whatever comes back as a Python value (a size, ``item()``, the truth of a tensor)
is not written down: the graph has what the one run made of it.

    python -m tracebench model=resnet18 frontend=hook frontend.hook=models/hooks/function_mode.py
"""

import builtins

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tracebench.hooks import Traced


def custom_trace(model, inputs, kwargs):
    """Run ``model`` once under the mode."""
    leaves, form = pytree.tree_flatten((inputs, kwargs))
    recorder = Recorder(model)
    for place, leaf in enumerate(leaves):
        node = recorder.graph.placeholder(f"argument_{place}")
        if isinstance(leaf, torch.Tensor):
            recorder.nodes[id(leaf)] = node
    with recorder:
        result = model(*inputs, **kwargs)
    outputs, output_form = pytree.tree_flatten(result)
    recorder.graph.output([recorder.node_of(output) for output in outputs])
    graph = fx.GraphModule(recorder.root, recorder.graph)

    def call(*args, **kwargs):
        given, given_form = pytree.tree_flatten((args, kwargs))
        if given_form != form:
            raise TypeError(f"the graph was made for arguments of the form {form}, not {given_form}")
        return pytree.tree_unflatten(graph(*given), output_form)

    return Traced(call, graphs=(graph,))


class Recorder(TorchFunctionMode):
    """Runs each torch function and writes it down; within the handler the mode is off."""

    def __init__(self, model):
        super().__init__()
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.nodes = {}
        self.names = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        self.alive = []  # an id stands for a tensor only as long as it lives

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if tensors or result is None:  # what returns nothing is called for what it changes
            target, more = spelled(function)
            given, named = fx.node.map_aggregate(((*args, *more), kwargs), self.node_of)
            self.keep(result, self.graph.call_function(target, given, named))
        return result

    def keep(self, value, node):
        """Note that ``node`` computes ``value``, and what it holds."""
        self.alive.append(value)
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = node
        elif isinstance(value, (tuple, list)):
            for place, item in enumerate(value):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    self.keep(item, self.graph.call_function(getitem, (node, place)))

    def node_of(self, value):
        """Return what stands for ``value`` in the graph; a tensor that nothing in it made is an attribute of it."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.nodes:
            self.alive.append(value)
            name = f"{self.names.get(id(value), 'constant')}_{len(self.nodes)}".replace(".", "_")
            setattr(self.root, name, value)
            self.nodes[id(value)] = self.graph.get_attr(name)
        return self.nodes[id(value)]


def getitem(value, place):
    """Take a value out of a tuple or list."""
    return value[place]


def spelled(function):
    """Return a function that a graph can name, and further arguments: attributes of tensors are read by ``getattr``."""
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "__get__" and hasattr(owner, "__name__"):
        return builtins.getattr, (owner.__name__,)
    if getattr(function, "__name__", "") in ("__set__", "__delete__"):
        raise NotImplementedError(f"a tensor's attribute {owner.__name__} is assigned, which no node stands for")
    return function, ()
