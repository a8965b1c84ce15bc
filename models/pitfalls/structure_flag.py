"""A Python flag that decides what forward returns is fixed by the capture, or cannot be captured.

What happens: with pooled=True the model returns one tensor, else a pair. fx refuses; what jit.trace and
the tape captured has no flag any more and raises when it is given. Dynamo captures once for each value.
Why: a flag is no tensor. fx makes a Proxy of it, which cannot decide a branch; jit.trace and the tape record the
one way that the example went.
What to do instead: write one method or small module for each structure and capture each, or fix the flag while tracing
(torch.fx.symbolic_trace(model, concrete_args={"pooled": True})).
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "restricted", "fx": "refused", "hook": "restricted"}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, pooled=False):
        features = torch.relu(self.layer(x))
        if pooled:
            return features.mean(0)
        return features, features.norm(dim=-1)


def make_model():
    return Encoder().eval()


def example_inputs():
    return (torch.randn(5, 4),)


def other_inputs():
    return [(torch.randn(5, 4),), {"args": (torch.randn(5, 4),), "kwargs": {"pooled": True}}]
