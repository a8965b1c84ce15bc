"""Printing from a loop in forward happens while capturing only, or keeps the loop out of the graph.

What happens: eager reports the mean after each layer on every call. jit.trace and fx print during the capture
(fx prints a Proxy) and never again. The hook refuses. Dynamo prints each time, but captures nothing of the loop.
Why: print is Python and no op, so a static graph cannot hold it. Dynamo has to leave the graph to print, and cannot
resume in the middle of a loop, so it skips the whole frame.
What to do instead: return the values and print outside, or add print to
torch._dynamo.config.reorderable_logging_functions, so that Dynamo prints after the graph has run.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "refused"}


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            print("layer", number, "mean", x.mean())
        return x


def make_model():
    return Chatty().eval()


def example_inputs():
    return (torch.randn(2, 4),)


def other_inputs():
    return [(torch.randn(2, 4),)]
