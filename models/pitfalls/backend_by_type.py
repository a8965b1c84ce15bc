"""A helper that asks for the type of its argument takes a tracer's stand-in for something else.

What happens: the helper centres tensors and leaves plain numbers as they are. While fx traces it is handed a Proxy,
which is no tensor, so the graph leaves out the centring, silently.
Why: isinstance looks at the object in hand, and fx runs forward on stand-ins. Dynamo answers as for the real tensor;
jit.trace and a tape of ops run on real tensors.
What to do instead: test for the special case (isinstance(value, (int, float))) so that everything else takes the
tensor's way, or mark the helper with torch.fx.wrap, which keeps it as one call in the graph.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "sound", "fx": "unsound", "hook": "sound"}


def centred(value):
    if isinstance(value, torch.Tensor):
        return value - value.mean(-1, keepdim=True)
    return value  # a number is its own mean, and stands for an offset here


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(centred(x)) + centred(0.5)


def make_model():
    return Centre().eval()


def example_inputs():
    return (torch.randn(3, 4),)


def other_inputs():
    return [(torch.randn(3, 4) + 5,)]
