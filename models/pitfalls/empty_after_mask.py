"""A Python test for the empty case is lost with the branch that the example did not take.

What happens: forward averages the positive entries and returns 0 if there are none. jit.trace keeps the average alone,
which is NaN for an input without positive entries.
Why: how many entries pass a mask depends on values. numel() makes it a Python number, and a trace holds one run's
answer. A tape of ops guards the size, so it raises at any other count; Dynamo breaks the graph there.
What to do instead: avoid the size that depends on values: (x * mask).sum() / mask.sum().clamp(min=1).
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class MeanOfPositive(nn.Module):
    def forward(self, x):
        kept = x[x > 0]
        if kept.numel() == 0:
            return x.new_zeros(())
        return kept.mean()


def make_model():
    return MeanOfPositive()


def example_inputs():
    return (torch.tensor([1.0, -2.0, 3.0, 0.5]),)


def other_inputs():
    """As many positive entries elsewhere, fewer, none."""
    return [
        (torch.tensor([-1.0, 2.0, 3.0, 4.0]),),
        (torch.tensor([-1.0, 2.0, -3.0, -4.0]),),
        (torch.tensor([-1.0, -2.0, -3.0, -4.0]),),
    ]
