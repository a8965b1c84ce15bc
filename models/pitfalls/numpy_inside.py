"""What numpy computes inside forward is a constant to everyone who watches torch.

What happens: A layer sorts with numpy and goes on with torch. The trace returns the example's sorted values for every
input; the hook refuses.
Why: x.numpy() hands the memory to another library. What comes back through torch.from_numpy is a new tensor of unknown
origin, so it is kept as it is.
What to do instead: Use torch.sort and the like. Where it must be numpy, make the function an operator with
torch.library.custom_op, which all of them record.
"""

import numpy as np
import torch
from torch import nn

# Dynamo translates numpy calls to torch. fx hands numpy a proxy, which numpy cannot read.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "refused"}


class SortedDifference(nn.Module):
    def forward(self, x):
        ranked = torch.from_numpy(np.sort(x.numpy()))
        return x - ranked


def make_model():
    return SortedDifference()


def example_inputs():
    return (torch.tensor([3.0, 1.0, 2.0]),)


def other_inputs():
    return [(torch.tensor([9.0, 7.0, 8.0]),)]
