"""Features taken from a dict in the order of its keys are wired up in the order of the example.

What happens: A model concatenates the values of a dict. Given the same keys in another order, eager concatenates in
that order; a trace keeps the order of its example.
Why: Python's loop over the dict is over when the graph is made; what is left is one fixed lookup for each key.
What to do instead: Name the keys in forward, in an order of its own: [features[k] for k in sorted(features)] or a list
kept on the module.
"""

import torch
from torch import nn

# fx cannot loop over a proxy. The hook compares the structure of the arguments, order of keys included.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class Joined(nn.Module):
    def forward(self, features):
        return torch.cat([value * 2 for value in features.values()], dim=-1)


def make_model():
    return Joined()


def example_inputs():
    return ({"age": torch.tensor([1.0]), "height": torch.tensor([2.0])},)


def other_inputs():
    return [({"height": torch.tensor([2.0]), "age": torch.tensor([1.0])},)]
