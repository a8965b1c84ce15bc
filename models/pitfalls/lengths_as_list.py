"""Lengths read with tolist() split every batch as the example was split.

What happens: Rows are grouped by a tensor of lengths and averaged in groups. A trace splits 3 + 1 for ever, also when
the lengths say 1 + 3: same shapes, wrong averages.
Why: tolist() returns Python ints. It reads memory directly, without an op. The hook takes note of the call
itself, and its tape raises where the numbers are others.
What to do instead: Stay in tensors: torch.segment_reduce(rows, "mean", lengths=lengths). More generally,
torch.repeat_interleave gives each row its group number, and index_add_ adds up by it.
"""

import torch
from torch import nn

# fx cannot loop over the result of split.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class GroupMeans(nn.Module):
    def forward(self, rows, lengths):
        groups = rows.split(lengths.tolist())
        return torch.stack([group.mean(0) for group in groups])


def make_model():
    return GroupMeans()


def example_inputs():
    return torch.arange(8.0).reshape(4, 2), torch.tensor([3, 1])


def other_inputs():
    return [(torch.arange(8.0).reshape(4, 2), torch.tensor([1, 3]))]
