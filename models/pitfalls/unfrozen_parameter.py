"""A layer that is unfrozen after the capture goes on without gradients.

What happens: while the backbone is frozen, forward detaches its output to save work. From the third call on it is
trainable, but the capture of jit.trace still detaches, and it never learns; the hook's tape raises.
Why: requires_grad was read by Python while capturing, and detach is in the graph. Dynamo guards it (torch 2.11 may
miss the change), and so does the hook; in fx the answer is a Proxy, which cannot decide a branch.
What to do instead: capture again after freezing or unfreezing, or leave the detach out: autograd skips frozen
parameters by itself.
"""

import torch
from torch import nn

MODE = "training"
# Torch 2.11 skips the guards of parameters while the dicts that hold them are the same objects
# (torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags), and misses the change; 2.14 does not.
EXPECT = {"dynamo": ("sound", "unsound"), "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class FineTuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.backbone.requires_grad_(False)

    def forward(self, x):
        features = torch.tanh(self.backbone(x))
        if not self.backbone.weight.requires_grad:
            features = features.detach()  # while frozen, save the backward pass
        return self.head(features)


def make_model():
    return FineTuned()


def example_inputs():
    return (torch.randn(3, 4),)


def other_inputs():
    return [(torch.randn(3, 4),), (torch.randn(3, 4),)]


def between(model, captured, i):
    if i == 2:
        model.backbone.requires_grad_(True)
