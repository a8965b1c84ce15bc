"""Code that asks whether it is being captured, and does less then, is captured doing less.

What happens: A layer keeps the largest value seen in a buffer, except while compiling or tracing. Under Dynamo and
jit.trace the buffer then stands still for good; outputs are right.
Why: torch.compiler.is_compiling() and torch.jit.is_tracing() are True when the graph is made, and the graph is all that
runs later. fx and the hook answer False and record everything.
What to do instead: Do the same work in both worlds: a plain buffer update is fine in a graph. What Dynamo cannot
capture goes into a function under torch.compiler.disable, which breaks the graph but runs.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "unsound", "jit_trace": "unsound", "fx": "sound", "hook": "sound"}


class PeakMeter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.zeros(()))

    def forward(self, x):
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
            self.peak.copy_(torch.maximum(self.peak, x.abs().amax()))
        return x.relu()


def make_model():
    return PeakMeter()


def example_inputs():
    return (torch.tensor([1.0, -2.0]),)


def other_inputs():
    return [(torch.tensor([5.0, 0.0]),)]
