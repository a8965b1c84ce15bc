"""Assigning to a slice of an input writes where the example's size said.

What happens: The last quarter of a signal is blanked in place. A trace made on 8 samples blanks from sample 6 on, also
in a signal of 16: output and the caller's tensor are wrong.
Why: int() of a size is a Python number, hence a constant in the graph.
What to do instead: Compute the bound with operators alone, signal.shape[1] * 3 // 4, which traces can follow. Better,
leave the input as it is and use torch.where with a mask made from torch.arange.
"""

import torch
from torch import nn

# fx has no number to give int(). The hook's tape is only for inputs of the recorded shape.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class FadeOut(nn.Module):
    def forward(self, signal):
        start = int(signal.shape[1] * 0.75)
        signal[:, start:] = 0.0
        return signal.cumsum(1)


def make_model():
    return FadeOut()


def example_inputs():
    return (torch.ones(2, 8),)


def other_inputs():
    return [(torch.ones(2, 16),), (torch.ones(3, 4),)]
