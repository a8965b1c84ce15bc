"""An output that depends on a counter or clock outside the tensors stands still after the capture.

What happens: every call adds a running number. fx adds the first one for ever; jit.trace refuses, as its
own check draws another number, and the hook, as the run moves the iterator on; Dynamo runs the counter along.
Why: next() on an iterator is Python. A graph keeps the number it returned once, and nothing in the inputs tells that it
would be another one now.
What to do instead: keep the counter in a tensor (register_buffer, counted up with add_; fx needs it as an input), or
read clocks and counters outside and pass the number in as a tensor.
"""

import itertools

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "unsound", "hook": "refused"}


class Stamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.ticks = itertools.count(1)

    def forward(self, x):
        return x.sin() + next(self.ticks)


def make_model():
    return Stamped()


def example_inputs():
    return (torch.randn(4),)


def other_inputs():
    return [(torch.randn(4),)]
