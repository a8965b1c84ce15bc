"""A tensor made without dtype follows the default dtype of the moment, but not in every graph.

What happens: forward makes a ramp with torch.linspace. After torch.set_default_dtype(torch.float64) eager returns
float64; the graphs of jit.trace and fx still return float32.
Why: The ramp depends on no input: fx makes it while tracing and keeps it, and TorchScript folds it to a constant at the
first run. Dynamo guards on the default dtype and captures again; the hook's tape checks it and raises.
What to do instead: Say which dtype is meant, dtype=torch.float32, or make the tensor once as a buffer.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "restricted"}


class Ramp(nn.Module):
    def forward(self, x):
        return x + torch.linspace(0.0, 1.0, 4)


def make_model():
    return Ramp()


def example_inputs():
    # Integers, so that the ramp alone decides the dtype of the result.
    return (torch.tensor([1, 2, 3, 4]),)


def other_inputs():
    return [(torch.tensor([4, 3, 2, 1]),)]


def reset(model):
    torch.set_default_dtype(torch.float32)


def between(model, captured, i):
    """Call 2 alone runs with another default."""
    torch.set_default_dtype(torch.float64 if i == 2 else torch.float32)
