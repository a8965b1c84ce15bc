"""A Python flag that ends forward early is fixed when the graph is made.

What happens: With features_only=True the model returns its features and skips the classifier. jit.trace and the hook,
captured without the flag, raise when it is given; fx cannot capture the `if`.
Why: A graph has one way through and one kind of result, and flags are not among a trace's inputs. fx turns the flag
into a proxy, whose truth it does not know.
What to do instead: Make two modules, features and classifier, and capture both; or make the flag an
attribute that is set before capturing, self.features_only.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "restricted", "fx": "refused", "hook": "restricted"}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(4, 3)
        self.classes = nn.Linear(3, 2)

    def forward(self, x, features_only=False):
        features = self.features(x).relu()
        if features_only:
            return features
        return self.classes(features).softmax(-1)


def make_model():
    return Classifier().eval()


def example_inputs():
    return (torch.randn(2, 4),)


def other_inputs():
    x = torch.randn(2, 4)
    return [(x,), {"args": (x,), "kwargs": {"features_only": True}}]
