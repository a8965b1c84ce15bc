"""A list that forward appends to is filled while capturing and never again.

What happens: A layer logs the size of each batch it sees in a list on its class. Dynamo goes on logging; jit.trace
and fx do not, and the outputs are right, so nothing tells. The hook refuses.
Why: A graph holds tensor ops. list.append is Python, which ran once, when the graph was made.
What to do instead: Log in the code that calls the model. For a plain count use a buffer (register_buffer) and
self.count.add_(1); fx loses `+=`.
"""

import torch
from torch import nn

# Dynamo replays the append after its graph: it treats side effects on Python objects as part of the frame.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "refused"}


class Logging(nn.Module):
    batches = []

    def forward(self, x):
        self.batches.append(x.shape[0])
        return x.relu()


def make_model():
    return Logging()


def example_inputs():
    return (torch.randn(2, 3),)


def other_inputs():
    return [(torch.randn(2, 3),)]


def observe(model):
    """How much was logged; how many entries, since a tracer may have put its own kind of object there."""
    return len(Logging.batches)


def reset(model):
    Logging.batches.clear()
