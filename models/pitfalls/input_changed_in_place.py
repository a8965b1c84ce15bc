"""An augmented assignment such as `x += 1` changes the caller's tensor in eager, but not under fx.

What happens: Eager shifts the input in place and returns that same tensor. The fx graph leaves the input alone and
returns a new tensor; the values returned are the same, the input afterwards is not.
Why: The proxies of fx know + but not +=, so Python falls back on x = x + 1. Methods such as x.add_(1) are recorded.
What to do instead: Do not change inputs in forward: write x = x + self.shift. If it must be in place, use
x.add_(self.shift).
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "sound", "fx": "unsound", "hook": "sound"}


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))

    def forward(self, x):
        x += self.shift
        return x


def make_model():
    return Shift()


def example_inputs():
    return (torch.zeros(2, 3),)


def other_inputs():
    return [(torch.ones(2, 3),)]
