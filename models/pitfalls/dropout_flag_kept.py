"""Functional dropout captured in training mode goes on dropping after model.eval().

What happens: The model is captured in training mode and then switched to eval. jit.trace and fx still drop half
of the values, and the output is random; the hook's tape raises.
Why: F.dropout(training=self.training) reads the flag as a Python bool when the graph is made. eval() on the captured
module changes a flag that no op looks at. Dynamo and the hook check that it is as it was.
What to do instead: Call eval() before capturing, and capture once for each mode. An nn.Dropout module helps fx alone,
since fx leaves modules of torch.nn as calls.
"""

import torch
import torch.nn.functional as F
from torch import nn

# Dynamo guards on self.training and compiles again.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "restricted"}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return F.dropout(self.linear(x), p=0.5, training=self.training)


def make_model():
    return Head().train()


def example_inputs():
    return (torch.randn(3, 6),)


def other_inputs():
    return [(torch.randn(3, 6),)]


def between(model, captured, i):
    """Switch both to eval from the third call on; in eager they are one and the same."""
    if i >= 2:
        model.eval()
        captured.eval()
