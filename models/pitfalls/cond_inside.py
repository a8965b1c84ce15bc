"""A branch written with torch.cond is kept whole by Dynamo and refused by the other tracers.

What happens: Dynamo's graph holds both branches and picks by the value, without a graph break. jit.trace, fx and a tape
of ops raise while capturing.
Why: torch.cond is an operator that takes functions, and each tracer needs a rule for it. Called in eager it compiles
itself, which jit.trace rejects; fx passes a Proxy, where a bool or a tensor must be.
What to do instead: use torch.cond with torch.compile or torch.export only. If both branches are cheap and fail on no
value, compute both and choose with torch.where, which every front end captures.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "refused", "hook": "refused"}


class SignedRoot(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda v: v.abs().sqrt(), lambda v: -v.square(), (x,))


def make_model():
    return SignedRoot()


def example_inputs():
    return (torch.rand(4) + 0.5,)


def other_inputs():
    return [(torch.rand(4) + 0.5,), (-torch.rand(4) - 0.5,)]
