"""A submodule chosen by an attribute stays the one that was chosen at capture time.

What happens: the third and fourth call select other adapters. jit.trace and fx go on with the first one and say
nothing; Dynamo captures once for each adapter; the hook's tape raises.
Why: the attribute is read by Python while capturing and only the layer found goes into the graph. Dynamo and the
hook guard the attribute.
What to do instead: capture once for each adapter and pick among the captures, or stack the adapters' weights and pick
with a tensor index (Tensor.index_select).
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "restricted"}


class Adapters(nn.Module):
    def __init__(self):
        super().__init__()
        self.adapters = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.active = 0

    def forward(self, x):
        return x + self.adapters[self.active](x)


def make_model():
    return Adapters().eval()


def example_inputs():
    return (torch.randn(2, 4),)


def other_inputs():
    return [(torch.randn(2, 4),), (torch.randn(2, 4),)]


def between(model, captured, i):
    model.active = {2: 1, 3: 2}.get(i, 0)
