"""A number read from a module's global, or from a class, stays what it was at capture.

What happens: The gain lives in a settings dictionary and is turned up between calls. Only Dynamo follows;
the hook's tape raises.
Why: For Python it is a number like any other: x * SETTINGS["gain"] is recorded as x * 1.0, without a word on where it
came from. Dynamo and the hook check every global that was read.
What to do instead: Pass it to forward as a tensor, or keep it in a buffer (register_buffer) and change that with
fill_.
"""

import torch
from torch import nn

SETTINGS = {"gain": 1.0}

# Dynamo guards on every global it reads and compiles again when one changes.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "unsound", "hook": "restricted"}


class Amplifier(nn.Module):
    def forward(self, x):
        return torch.sin(x * SETTINGS["gain"])


def make_model():
    return Amplifier()


def example_inputs():
    return (torch.ones(3),)


def other_inputs():
    return [(torch.ones(3),), (torch.full((3,), 0.5),)]


def reset(model):
    SETTINGS["gain"] = 1.0


def between(model, captured, i):
    """Turn the gain up from the third call on."""
    SETTINGS["gain"] = 1.0 if i < 2 else 2.0
