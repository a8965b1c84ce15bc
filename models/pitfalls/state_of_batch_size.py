"""A start state made for `len(x)` samples keeps the batch size of the example.

What happens: A small recurrent network traced with 3 samples answers a batch of 1 with 3 rows, silently, because the
kept state broadcasts. A batch of 5 at least raises.
Why: len() always returns a Python int, so the trace sees zeros(3, 4), not zeros(batch, 4).
What to do instead: Make the state from the tensor, x.new_zeros(x.shape[0], 4), which every front end records; keep
len() and int() away from sizes.
"""

import torch
from torch import nn

# The hook's tape is only for inputs of the recorded shape, and says so.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(2, 4)
        self.onward = nn.Linear(4, 4)

    def forward(self, x):
        state = torch.zeros(len(x), 4)
        for step in range(3):
            state = torch.tanh(self.inward(x[:, step]) + self.onward(state))
        return state


def make_model():
    return Recurrent().eval()


def example_inputs():
    return (torch.randn(3, 3, 2),)


def other_inputs():
    return [(torch.randn(1, 3, 2),), (torch.randn(5, 3, 2),)]
