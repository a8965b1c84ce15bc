"""A key-value cache with a Python position writes to one and the same slot for ever.

What happens: each call adds a token's key to a buffer and attends to all keys so far. fx writes every
token to the first slot and never looks past it; jit.trace and the hook refuse; Dynamo captures again for every
position.
Why: a position that slices is a constant of the graph. jit.trace finds out only because its own check runs forward
again, one position further on; the hook sees the attribute written.
What to do instead: keep the position in a tensor, write with index_copy_ into the whole buffer and hide what is not
written yet with masked_fill. Then all but fx, which runs ops on buffers while tracing, are right.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "unsound", "hook": "refused"}


class CachedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(4, 4, bias=False)
        self.register_buffer("keys", torch.zeros(12, 4))
        self.position = 0

    def forward(self, token):
        self.keys[self.position] = self.key(token)
        self.position += 1
        past = self.keys[: self.position]
        return torch.softmax(past @ token, 0) @ past


def make_model():
    return CachedAttention().eval().requires_grad_(False)


def example_inputs():
    return (torch.randn(4),)


def other_inputs():
    return [(torch.randn(4),) for _ in range(3)]


def observe(model):
    return model.position
