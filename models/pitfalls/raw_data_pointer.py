"""Foreign code that writes through data_ptr() is invisible to a static graph.

What happens: a stand-in for a C library fills a fresh tensor through its address. jit.trace keeps the fresh zeros and
loses what was filled in; fx has no address to give and refuses, as does the hook; Dynamo leaves the graph for the call.
Why: captures see ops on tensors. An address is a Python number, and what happens behind it is no op.
What to do instead: wrap the library call with torch.library.custom_op and give it a register_fake, so that every front
end sees one op with tensors going in and out.
"""

import ctypes

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "refused"}
COUNT = 6


def library_copy(target, source):
    """Stands for a function of a C library that takes addresses and a number of bytes."""
    # Made pointers explicitly, so that what is no address is refused here and does not reach the C code.
    to, start = ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(source.data_ptr())
    ctypes.memmove(to, start, source.element_size() * COUNT)


class NativeStep(nn.Module):
    def forward(self, x):
        source = (x * 3).cpu().contiguous()
        target = torch.zeros_like(source)
        library_copy(target, source)
        return target + 1


def make_model():
    return NativeStep()


def example_inputs():
    return (torch.randn(COUNT),)


def other_inputs():
    return [(torch.randn(COUNT),)]
