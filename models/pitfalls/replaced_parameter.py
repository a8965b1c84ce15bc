"""A parameter replaced by a new object after the capture leaves the graph with the old one.

What happens: before the third call the scale is assigned anew. jit.trace and fx go on with the scale they were
captured with; the hook's tape raises.
Why: these captures hold the tensor itself, not the attribute's name in your model. Dynamo reads the attribute on every
call, and the hook checks that it is the same tensor.
What to do instead: change parameters in place, with load_state_dict or under torch.no_grad with copy_, so that model
and capture keep sharing them; or capture again.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "restricted"}


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.layer(x) * self.scale


def make_model():
    return Scaled().eval()


def example_inputs():
    return (torch.randn(2, 4),)


def other_inputs():
    return [(torch.randn(2, 4),), (torch.randn(2, 4),)]


def between(model, captured, i):
    if i == 2:
        model.scale = nn.Parameter(torch.full_like(model.scale, 3.0))
