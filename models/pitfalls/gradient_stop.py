"""A torch.no_grad block inside forward is no part of most graphs, so gradients flow through it.

What happens: the teacher's output is a fixed target in eager. After capture by jit.trace or fx the outputs are
the same, but the teacher gets gradients and would be trained along.
Why: no_grad switches a mode of autograd and is no op on a tensor. Dynamo and the hook write the switch into their
graphs.
What to do instead: call detach() on the result. It is an op, and every front end keeps it.
"""

import torch
from torch import nn

MODE = "training"
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "sound"}


class SelfDistillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(4, 3)
        self.teacher = nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x).softmax(-1)
        return -(target * self.student(x).log_softmax(-1)).sum(-1)


def make_model():
    return SelfDistillation()


def example_inputs():
    return (torch.randn(3, 4),)


def other_inputs():
    return [(torch.randn(3, 4),)]
