"""A forward with *args is captured for the number of arguments of the example.

What happens: A model adds up as many tensors as it is given. jit.trace and the hook keep two and raise when given
three; fx cannot capture it.
Why: The loop over the arguments runs while the graph is made. For fx all of *terms is one proxy of unknown length,
which cannot be looped over.
What to do instead: Take one stacked tensor and reduce it, torch.stack(terms).sum(0) in the caller or here, or capture
one module for each number of arguments.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "restricted", "fx": "refused", "hook": "restricted"}


class AddAll(nn.Module):
    def forward(self, *terms):
        total = torch.zeros_like(terms[0])
        for term in terms:
            total = total + term
        return total


def make_model():
    return AddAll()


def example_inputs():
    return torch.randn(3), torch.randn(3)


def other_inputs():
    return [(torch.randn(3), torch.randn(3)), (torch.randn(3), torch.randn(3), torch.randn(3))]
