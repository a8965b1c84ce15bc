"""A nested tensor made inside forward is more than jit.trace and fx can hold.

What happens: rows of different lengths are packed into a nested tensor, go through a layer and come out padded.
jit.trace and fx raise while capturing.
Why: a jagged nested tensor is a Python subclass of Tensor around values and offsets. TorchScript has no such type, and
its constructor refuses an fx Proxy. Dynamo looks through the subclass, a tape of ops replays it as it is.
What to do instead: capture with torch.compile, or stay dense: run the layer on the packed values, or on padded rows
with a mask.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "refused", "hook": "sound"}


class RaggedRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, values, offsets):
        ragged = torch.nested.nested_tensor_from_jagged(values, offsets)
        return torch.nested.to_padded_tensor(torch.relu(self.layer(ragged)), 0.0)


def make_model():
    return RaggedRows().eval()


def example_inputs():
    return torch.randn(7, 3), torch.tensor([0, 4, 7])


def other_inputs():
    return [
        (torch.randn(7, 3), torch.tensor([0, 3, 7])),
        (torch.randn(7, 3), torch.tensor([0, 1, 7])),
    ]
