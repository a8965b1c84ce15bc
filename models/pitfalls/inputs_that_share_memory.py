"""Two inputs that share memory see each other's in-place changes, which a graph may assume away.

What happens: The first input is doubled in place, then the second is read. Captured on separate tensors, the model is
later given overlapping windows of one buffer, and the same tensor twice. The hook refuses the latter.
Why: A compiler that turns in-place ops into pure ones must know which inputs overlap. As captured, the graphs here keep
the in-place op and are right; lowered by Inductor (executor=inductor) they were silently wrong in torch 2.14.
What to do instead: Do not write into inputs: use a * 2 instead of a.mul_(2), or pass b.clone().
"""

import torch
from torch import nn

# The hook guards on which arguments are one and the same tensor, not on overlap: a replayed in-place op handles that.
EXPECT = {"dynamo": "sound", "jit_trace": "sound", "fx": "sound", "hook": "restricted"}


class DoubleThenSubtract(nn.Module):
    def forward(self, a, b):
        a.mul_(2)
        return b - a


def make_model():
    return DoubleThenSubtract()


def example_inputs():
    return torch.arange(5.0), torch.arange(5.0)


def other_inputs():
    buffer = torch.arange(8.0)
    same = torch.arange(5.0)
    return [(buffer[:5], buffer[3:]), (same, same)]
