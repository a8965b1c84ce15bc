"""Random numbers whose size depends on no input are drawn once by fx and then reused.

What happens: A model adds fresh noise to its features on each call. The fx graph adds the same noise every time.
Why: fx records calls that involve a proxy of an input. torch.randn(5) involves none, so it runs while tracing, and its
result is kept as a constant.
What to do instead: Draw the noise after the input, with torch.randn_like(x) or x.new_empty(5).normal_(), so that the
call takes part in the graph.
"""

import torch
from torch import nn

# The other three record the op itself, not its result.
EXPECT = {"dynamo": "sound", "jit_trace": "sound", "fx": "unsound", "hook": "sound"}


class NoisyFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.spread = nn.Parameter(torch.full((5,), 0.5))

    def forward(self, x):
        return x + self.spread * torch.randn(5)


def make_model():
    return NoisyFeatures()


def example_inputs():
    return (torch.zeros(2, 5),)


def other_inputs():
    return [(torch.ones(2, 5),), (torch.zeros(2, 5),)]
