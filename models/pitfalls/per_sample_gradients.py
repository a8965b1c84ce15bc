"""Function transforms inside forward, such as vmap of grad, stop jit.trace and fx.

What happens: the model returns the norm of the score's gradient for each sample. jit.trace and fx raise while
capturing.
Why: torch.func runs the function on wrapped tensors. jit.trace asks these for memory that they do not have, and vmap
does not take an fx Proxy for a tensor. Dynamo knows the transforms; a tape sees the plain ops that they turn into.
What to do instead: capture with torch.compile, or apply vmap and grad outside, to the captured model
(torch.func.functional_call).
"""

import torch
from torch import nn
from torch.func import grad, vmap

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "refused", "hook": "sound"}


class Saliency(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def score(self, sample):
        return torch.tanh(self.layer(sample)).sum()

    def forward(self, x):
        return vmap(grad(self.score))(x).norm(dim=-1)


def make_model():
    return Saliency().eval()


def example_inputs():
    return (torch.randn(3, 5),)


def other_inputs():
    return [(torch.randn(3, 5),)]
