"""A buffer that forward assigns anew, instead of changing it in place, stands still in a graph.

What happens: eager counts its steps and divides by them. jit.trace computes the first step again and again, fx
divides by the 0 from before the first step; the buffer itself never changes. The hook refuses.
Why: assigning an attribute is Python and leaves nothing in the graph. fx moreover ran the addition on the real buffer
while tracing and kept what came out as a constant. Dynamo replays the assignment.
What to do instead: count in place with self.steps.add_(1), which is an op that jit.trace and a tape keep. For fx, pass
the buffer as an input and return the new value.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "refused"}


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps = self.steps + 1
        return x / self.steps


def make_model():
    return Counted()


def example_inputs():
    return (torch.randn(4),)


def other_inputs():
    return [(torch.randn(4),)]
