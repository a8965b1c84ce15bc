"""An attribute that changes on every call makes Dynamo capture on every call, until it gives up.

What happens: forward counts its calls in a Python number and scales by it. Dynamo captures for each new number up to
its limit (8), then runs in eager: right, slow at first and never captured again. fx keeps the first number; jit.trace
refuses, as its own check runs forward again and meets another number, and the hook, as forward writes an attribute.
Why: a Python number on a module is a constant of the graph. Dynamo guards it, so another number needs another graph.
What to do instead: keep what changes in a tensor (register_buffer and an in-place add_) or pass it as an input, or set
torch._dynamo.config.allow_unspec_int_on_nn_module = True. TORCH_LOGS=recompiles names the guard that failed.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "unsound", "hook": "refused"}


class WarmUp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * min(1.0, self.calls / 100)


def make_model():
    return WarmUp().eval()


def example_inputs():
    return (torch.randn(2, 3),)


def other_inputs():
    """Enough calls to run past Dynamo's limit of eight captures of one function."""
    return [(torch.randn(2, 3),) for _ in range(9)]
