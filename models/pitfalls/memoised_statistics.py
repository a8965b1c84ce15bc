"""A result kept in an attribute by the first call is computed anew by every call of a graph.

What happens: eager scales all inputs by the deviation of its first batch. fx scales each batch by its own;
jit.trace refuses, as its own check already finds the deviation kept; the hook tapes a run that finds it kept, and its
tape holds for that one deviation alone, so it raises in a model that has none yet.
Why: while capturing, the attribute was still empty, so the graph holds the branch that fills it and nothing that reads
or writes the attribute. Dynamo guards whether it is None and captures again once it is filled.
What to do instead: separate the two. One method computes the statistics into a registered buffer and is called before
the capture; forward only reads the buffer.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "unsound", "hook": "restricted"}


class ScaleByFirstBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.deviation = None

    def forward(self, x):
        if self.deviation is None:
            self.deviation = x.std(0)
        return x / self.deviation


def make_model():
    return ScaleByFirstBatch()


def example_inputs():
    return (torch.randn(6, 3),)


def other_inputs():
    return [(torch.randn(6, 3) * 10,)]
