"""An optional argument is either always there or never: a graph has one signature.

What happens: Scores are weighted if weights are given. Captured with weights, the graph raises without them, and the
other way round; Dynamo makes a graph for each.
Why: `weights is None` is decided once. Under fx the argument is a proxy, never None, so fx always takes the weighted
path, whatever the example says.
What to do instead: Give the argument a neutral value, such as torch.ones, instead of None, or capture one module for
each form.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "restricted", "fx": "restricted", "hook": "restricted"}


class Score(nn.Module):
    def forward(self, x, weights=None):
        if weights is not None:
            x = x * weights
        return x.sum(-1)


def make_model():
    return Score()


def example_inputs():
    return {"args": (torch.randn(2, 3),), "kwargs": {"weights": torch.rand(3)}}


def other_inputs():
    return [
        {"args": (torch.randn(2, 3),), "kwargs": {"weights": torch.rand(3)}},
        {"args": (torch.randn(2, 3),), "kwargs": {}},
    ]
