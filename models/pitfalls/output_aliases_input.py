"""An output that is sometimes the input itself and sometimes a copy is always the one or the other.

What happens: forward hands back its input where there is nothing to clip. jit.trace always returns a copy: the values
agree, but who writes into the result no longer changes the input. With a positive example it would be the other way
round, and values would be wrong too.
Why: which branch runs depends on values, and the trace keeps one. Whether memory is shared is part of that branch.
What to do instead: return fresh memory in every case (x.clamp(min=0) alone), or choose with torch.where; write results
in place only where the caller asked for it.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class ClipIfNeeded(nn.Module):
    def forward(self, x):
        if bool((x >= 0).all()):
            return x  # nothing to do: saves a copy, and hands out the caller's own memory
        return x.clamp(min=0)


def make_model():
    return ClipIfNeeded()


def example_inputs():
    return (torch.tensor([-1.0, 2.0, -3.0]),)


def other_inputs():
    return [(torch.tensor([4.0, -5.0, 6.0]),), (torch.tensor([1.0, 2.0, 3.0]),)]
