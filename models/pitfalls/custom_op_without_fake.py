"""A custom op without a fake kernel cannot be captured by Dynamo, which has to know shapes first.

What happens: torch.compile raises at the first call and names the missing registration. The other front ends run the
real op and keep it in their graphs.
Why: Dynamo runs forward on fake tensors, which have a shape and no data. Only the op's author can say what shape the
real kernel returns.
What to do instead: register a function that returns an empty tensor of the right shape with register_fake on the op,
and check it with torch.library.opcheck.
"""

import torch
from torch import Tensor, nn

EXPECT = {"dynamo": "refused", "jit_trace": "sound", "fx": "sound", "hook": "sound"}


@torch.library.custom_op("tracebench_pitfalls::running_maximum", mutates_args=())
def running_maximum(x: Tensor) -> Tensor:
    return torch.cummax(x, -1).values


class Envelope(nn.Module):
    def forward(self, x):
        return running_maximum(x.abs()) - x


def make_model():
    return Envelope()


def example_inputs():
    return (torch.randn(2, 6),)


def other_inputs():
    return [(torch.randn(2, 6),)]
