"""A custom autograd.Function whose backward is not the derivative of its forward loses its backward.

What happens: a gradient reversal layer passes values through and flips the sign of the gradient. In an fx graph
the outputs are right, but the gradients below the layer point the other way.
Why: fx looks inside Function.apply and keeps the ops of forward alone, so autograd derives a gradient from those.
Dynamo captures forward and backward; jit.trace and the hook keep the Function as one call into Python.
What to do instead: capture training with torch.compile, or say it in ordinary ops with detach:
(1 + s) * x.detach() - s * x has the value x and the gradient -s.
"""

import torch
from torch import nn

MODE = "training"
EXPECT = {"dynamo": "sound", "jit_trace": "sound", "fx": "unsound", "hook": "sound"}


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


class DomainClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(5, 4)
        self.domain = nn.Linear(4, 2)

    def forward(self, x):
        features = torch.tanh(self.features(x))
        return self.domain(ReverseGradient.apply(features, 0.5))


def make_model():
    return DomainClassifier()


def example_inputs():
    return (torch.randn(3, 5),)


def other_inputs():
    return [(torch.randn(3, 5),)]
