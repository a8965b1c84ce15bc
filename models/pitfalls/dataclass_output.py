"""An output of a class of one's own is more than a graph of tensors can return.

What happens: The model returns a dataclass. jit.trace refuses it, and so does the hook, which would otherwise return
the example's tensors for ever.
Why: Tracers look for tensors inside tuples, lists and dicts. A dataclass is an opaque object to them, unless they know
how to take it apart, as fx does, or build it in Python after the graph, as Dynamo does.
What to do instead: Return a tuple or dict of tensors, and build the dataclass in the caller. A NamedTuple comes out of
jit.trace as a plain tuple.
"""

import dataclasses

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "sound", "hook": "refused"}


@dataclasses.dataclass
class Prediction:
    mean: torch.Tensor
    spread: torch.Tensor


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        y = self.head(x)
        return Prediction(mean=y[:, 0], spread=y[:, 1].exp())


def make_model():
    return Gaussian().eval()


def example_inputs():
    return (torch.randn(4, 3),)


def other_inputs():
    return [(torch.randn(4, 3),)]
