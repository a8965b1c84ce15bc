"""A Python `if` on a tensor's value keeps the branch that the example took.

What happens: A limiter scales inputs down only if they are too long. Traced on a short example, it never scales again;
fx cannot trace it at all.
Why: `if` needs a plain True or False, so Python decides while the graph is made, and only the ops of the branch taken
are recorded.
What to do instead: Compute both sides and choose with torch.where. torch.cond keeps a true branch in the graph, but of
these front ends only Dynamo takes it.
"""

import torch
from torch import nn

# The hook notes the value that `if` read and refuses when another one turns up.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class Limiter(nn.Module):
    def forward(self, x):
        if x.norm() > 3.0:
            x = x * (3.0 / x.norm())
        return x.tanh()


def make_model():
    return Limiter()


def example_inputs():
    return (torch.full((4,), 0.5),)


def other_inputs():
    return [(torch.full((4,), 0.25),), (torch.full((4,), 9.0),)]
