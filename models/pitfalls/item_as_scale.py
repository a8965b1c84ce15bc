"""A number taken out of a tensor with item() stays the number of the example.

What happens: Inputs are divided by their largest value, so that results lie within -1 and 1. A trace divides every
input by the example's largest value.
Why: item() returns a Python float, and a float has no history. fx does not run it but records the call, and is right;
the hook compares the number on each call and raises.
What to do instead: Leave out item(): x / x.abs().max() does the same with a tensor of one element.
"""

import torch
from torch import nn

# Dynamo breaks the graph at item() and goes on in Python.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "sound", "hook": "restricted"}


class ToUnitRange(nn.Module):
    def forward(self, x):
        largest = x.abs().max().item()
        return x / largest


def make_model():
    return ToUnitRange()


def example_inputs():
    return (torch.tensor([1.0, -2.0, 4.0]),)


def other_inputs():
    return [(torch.tensor([5.0, 10.0, -20.0]),)]
