"""A view that exists only in the example's memory layout is tried in every layout.

What happens: forward looks at the strides, and takes a free view of channels_last images and a copy of others.
jit.trace keeps the view, which raises on contiguous images; a tape of ops raises at its guard on strides.
Why: is_contiguous is answered in Python, and only the branch taken is kept. To fx the answer is a Proxy, which cannot
decide a branch. Dynamo guards the strides and captures again.
What to do instead: use reshape, which views where it can and copies where it must, or bring inputs into one layout
first with Tensor.contiguous(memory_format=torch.channels_last).
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "restricted", "fx": "refused", "hook": "restricted"}


class PixelRows(nn.Module):
    def forward(self, images):
        pixels = images.permute(0, 2, 3, 1)
        if images.is_contiguous(memory_format=torch.channels_last):
            return pixels.view(-1, 3)
        return pixels.reshape(-1, 3)


def make_model():
    return PixelRows()


def example_inputs():
    return (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),)


def other_inputs():
    return [
        (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),),
        (torch.randn(2, 3, 4, 5),),
    ]
