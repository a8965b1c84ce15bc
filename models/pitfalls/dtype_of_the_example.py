"""Casting back to the input's dtype becomes casting to the example's dtype.

What happens: A normalisation computes in float32 and returns the dtype it was given. Traced with float32, it returns
float32 for bfloat16 inputs, too.
Why: x.dtype and x.device are plain Python objects. jit.trace writes them into the graph as constants; fx records the
lookup of x.dtype, since its x is a proxy.
What to do instead: Capture once for each dtype and device that will be used, or use Dynamo, which guards on both. For
jit.trace type_as(x) is no way out: it is recorded as a fixed dtype, too.
"""

import torch
from torch import nn

# The hook's tape is only for inputs of the recorded dtype, and says so.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "sound", "hook": "restricted"}


class Normalise(nn.Module):
    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def make_model():
    return Normalise()


def example_inputs():
    return (torch.randn(2, 4),)


def other_inputs():
    return [(torch.randn(2, 4),), (torch.randn(2, 4, dtype=torch.bfloat16),)]
