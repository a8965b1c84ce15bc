"""A loop that runs until the values are good enough is unrolled as often as the example needed.

What happens: Newton's method for a square root stops when the error is small. A trace keeps the number of steps of its
example, which is too few for harder inputs: no error, just worse roots.
Why: The loop's condition is evaluated by Python while the graph is made; the graph holds the steps one after the
other, without a loop.
What to do instead: Run a fixed number of steps that is enough for every input, and let torch.where keep the values that
are done. Or capture one step and leave the loop to the caller.
"""

import torch
from torch import nn

# Dynamo breaks the graph at the condition, and Python goes on looping between the pieces.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class SquareRoot(nn.Module):
    def forward(self, x):
        root = torch.ones_like(x)
        while ((root * root - x).abs() > 0.01 * x).any():
            root = (root + x / root) / 2
        return root


def make_model():
    return SquareRoot()


def example_inputs():
    return (torch.tensor([1.5, 2.0, 3.0]),)


def other_inputs():
    # More steps, then fewer, than the example takes.
    return [(torch.tensor([1.5, 2.0, 900.0]),), (torch.ones(3),)]
