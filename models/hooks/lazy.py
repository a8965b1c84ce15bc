"""A lazy recorder as a hook: at each call the model's Python runs on tensors that have a shape but no values.

Each torch function is written down in place of being run. Where Python wants a value (``if x.sum() > 0``, ``item()``,
``print(x)``), and at the end of the call, what has been written down becomes a graph and is run: a graph break, with
the model's line. A graph that was made before is used again. Branches stay alive, since Python decides at each call;
the price is that Python, and the writing down, run at each call.

Not for models that use autocast (it raises), have a ``backward`` of their own, or keep tensors in containers.

    python -m tracebench model=resnet18 frontend=hook frontend.hook=models/hooks/lazy.py
"""

import builtins

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from tracebench.hooks import GraphBreak, Graphs, Traced, model_line

#: Answers that do not depend on values.
PLAIN = (bool, int, float, type(None), torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)


def custom_trace(model, inputs, kwargs):
    """Capture nothing yet: graphs and graph breaks are added while the model is called."""
    made = Made()

    def call(*args, **kwargs):
        session = Session(made)
        with session:
            result = model(*args, **kwargs)
        session.flush()
        for module in model.modules():  # what the model keeps must have values, too
            for kept in (vars(module), module._buffers):
                kept.update({name: session.real(value) for name, value in kept.items()})
        return pytree.tree_map(session.returned, result)

    return Traced(call, made.graphs, made.breaks)


class Made:
    """All graphs made so far, by their text, and where they had to end."""

    def __init__(self):
        self.graphs, self.breaks, self.known = Graphs(), [], {}

    def get(self, graph):
        """Return the module of ``graph``, a known one if there is one of the same text."""
        text = str(graph)
        if text not in self.known:
            self.known[text] = fx.GraphModule(torch.nn.Module(), graph)
            self.graphs.append(self.known[text])
        return self.known[text]

    def broken(self, reason):
        """Note a graph break at the line that the model is at."""
        line = model_line()
        if all(found.location != line for found in self.breaks):
            self.breaks.append(GraphBreak(reason, line))


class Session(TorchFunctionMode):
    """One call: writes torch functions down, and runs them in one go when a value is needed."""

    def __init__(self, made):
        super().__init__()
        self.made = made
        self.fakes = FakeTensorMode()
        self.values = WeakIdKeyDictionary()  # fake tensor -> the real one, where it is known
        self.fake_of = WeakIdKeyDictionary()  # real tensor -> its fake
        self.begin()

    def begin(self):
        """Begin a graph."""
        self.graph, self.inputs, self.ops = fx.Graph(), [], 0
        self.nodes = WeakIdKeyDictionary()  # fake tensor -> its node; those that nobody holds any more drop out
        self.grad = torch.is_grad_enabled()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise NotImplementedError("this recorder does not follow autocast")
        if function is torch.Tensor.data_ptr:  # of a fake it is 0, not an error
            return self.now(function, args, kwargs or {})
        given = fx.node.map_aggregate((args, kwargs or {}), self.fake)
        grad = torch.is_grad_enabled()
        try:
            with self.fakes:
                result = function(*given[0], **given[1])
        except Exception:
            # It cannot do without values, or eager raises as well: it does so now.
            torch._C._set_grad_enabled(grad)
            return self.now(function, args, kwargs or {})
        leaves = pytree.tree_leaves(result)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves) or result is None:
            target, more = spelled(function)
            arguments = fx.node.map_aggregate(((*given[0], *more), given[1]), self.node_of)
            self.keep(result, self.graph.call_function(target, *arguments))
            self.ops += 1
        elif not all(isinstance(leaf, PLAIN) for leaf in leaves):
            return self.now(function, args, kwargs or {})
        return result

    def now(self, function, args, kwargs):
        """Run what was written down, then ``function`` itself."""
        self.made.broken(f"{getattr(function, '__name__', function)} needs values")
        self.flush()
        args, kwargs = fx.node.map_aggregate((args, kwargs), self.real)
        return pytree.tree_map(self.fake, function(*args, **kwargs))

    def flush(self):
        """Run the graph as it stands and begin another."""
        if self.ops:
            wanted = [fake for fake in self.nodes if fake not in self.values]
            self.graph.output([self.nodes[fake] for fake in wanted])
            after = torch.is_grad_enabled()
            torch.set_grad_enabled(self.grad)
            values = self.made.get(self.graph)(*self.inputs)
            torch.set_grad_enabled(after)
            self.values.update(zip(wanted, values, strict=True))
        self.begin()

    def fake(self, value):
        """Return the fake of a real tensor; anything else is returned as it is."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        if value not in self.fake_of:
            self.fake_of[value] = fake = self.fakes.from_tensor(value)
            self.values[fake] = value
        return self.fake_of[value]

    def real(self, value):
        """Return the real tensor that a fake one stands for, once it has been run."""
        return self.values[value] if isinstance(value, FakeTensor) else value

    def returned(self, value):
        """Return what the call returns for ``value``; an object of a class of the model's may hold fake tensors."""
        if not isinstance(value, (torch.Tensor, str, *PLAIN)):
            raise TypeError(f"this recorder does not look into an output of type {type(value).__name__}")
        return self.real(value)

    def node_of(self, value):
        """Return what stands for ``value`` in the graph; what is known already becomes an input of it."""
        if not isinstance(value, torch.Tensor):
            return value
        if value not in self.nodes:
            self.nodes[value] = self.graph.placeholder(f"input_{len(self.inputs)}")
            self.inputs.append(self.values[value])
        return self.nodes[value]

    def keep(self, value, node):
        """Note that ``node`` computes ``value``, and what it holds."""
        if isinstance(value, torch.Tensor):
            self.nodes[value] = node
        elif isinstance(value, (tuple, list)):
            for place, item in enumerate(value):
                self.keep(item, self.graph.call_function(getitem, (node, place)))


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
