"""Layers skipped by Python's random module are skipped, or kept, for good in a graph.

What happens: In training each layer is left out with a chance of one half. fx holds the layers of the one run it
saw; jit.trace runs the model twice, gets two different graphs and refuses; the hook sees the draw and refuses.
Why: random.random() returns a Python number. It is no op, so that no graph of ops draws it again.
What to do instead: Run every layer and draw its factor with torch, x + x.new_empty(len, 1).bernoulli_(0.5) * layer(x)
with len = x.shape[0], or use torchvision.ops.StochasticDepth.
"""

import random

import torch
from torch import nn

# jit.trace's refusal hangs on its runs drawing different layers; with six layers they are alike in 1 of 64 cases,
# and the seed is fixed.
EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "unsound", "hook": "refused"}


class SkippingStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.5:
                x = x + layer(x)
        return x.tanh()


def make_model():
    return SkippingStack().train()


def example_inputs():
    return (torch.randn(2, 4),)


def other_inputs():
    return [(torch.randn(2, 4),) for _ in range(3)]
