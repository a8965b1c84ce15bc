"""A math function of an element count bakes the example's count into the graph.

What happens: An entropy is divided by log(n), so that it lies between 0 and 1. A trace keeps log(n) of its example and
returns values above 1 for longer inputs.
Why: While jit.trace runs, p.numel() is a tensor in disguise, and the trace follows plain arithmetic on it. math.log
accepts numbers only, so the size becomes one, and the thread is lost.
What to do instead: Keep arithmetic on sizes free of math and int, or count with tensors:
torch.log(torch.ones_like(p).sum()).
"""

import math

import torch
from torch import nn

# fx records calls of the math module as they are. The hook's tape is only for inputs of the recorded shape.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "sound", "hook": "restricted"}


class Evenness(nn.Module):
    def forward(self, scores):
        p = scores.softmax(-1)
        return -(p * p.log()).sum() / math.log(p.numel())


def make_model():
    return Evenness()


def example_inputs():
    return (torch.randn(4),)


def other_inputs():
    return [(torch.randn(4),), (torch.randn(50),)]
