"""An assert on values is checked while capturing and may be gone afterwards.

What happens: The model insists on probabilities. jit.trace's graph takes anything and returns NaN where eager raises;
fx cannot capture the assert.
Why: assert is a branch in Python. It leaves no op behind, so a trace contains only what comes after it.
What to do instead: Validate in the code that calls the model. torch._assert_async(condition, text) is an op, which the
other front ends keep, but jit.trace drops it as dead code.
"""

import torch
from torch import nn

# Dynamo turns the assert into an op that checks. The hook's guard on the value read raises, as eager does.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "sound"}


class LogOdds(nn.Module):
    def forward(self, p):
        assert ((p > 0) & (p < 1)).all(), "probabilities must lie between 0 and 1"
        return torch.log(p) - torch.log(1 - p)


def make_model():
    return LogOdds()


def example_inputs():
    return (torch.tensor([0.1, 0.5, 0.9]),)


def other_inputs():
    return [(torch.tensor([0.2, 0.3, 0.4]),)]


def invalid_inputs():
    return [(torch.tensor([0.2, 1.5, 0.4]),)]
