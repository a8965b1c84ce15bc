"""An autocast block inside forward is missing from an fx graph.

What happens: one layer is meant to run in bfloat16. The fx graph runs it in float32 and returns another dtype, unless
the caller happens to have autocast on.
Why: fx writes down calls on its proxies, and entering a context manager is none. Dynamo records the block, jit.trace
and a tape of ops record the casts that it caused; the tape holds for the caller's autocast that it was made under, and
raises under another.
What to do instead: capture with torch.compile, which keeps torch.autocast blocks and captures again when the caller's
autocast changes, or cast inputs and weights in the open with Tensor.to.
"""

import contextlib

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "sound", "fx": "unsound", "hook": "restricted"}
ACCELERATOR = torch.accelerator.current_accelerator(check_available=True)
DEVICE = ACCELERATOR.type if ACCELERATOR is not None else "cpu"


class HalfInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(8, 6)
        self.wide = nn.Linear(6, 2)

    def forward(self, x):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            features = self.narrow(x)
        return self.wide(features.float()), features


def make_model():
    return HalfInside().eval()


def example_inputs():
    return (torch.randn(3, 8),)


def other_inputs():
    return [(torch.randn(3, 8),), (torch.randn(3, 8),)]


def call_context(i):
    """From outside, autocast is on for the first of the other inputs alone."""
    return torch.autocast(DEVICE, dtype=torch.bfloat16) if i == 2 else contextlib.nullcontext()
