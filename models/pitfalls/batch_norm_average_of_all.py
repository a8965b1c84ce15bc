"""Batch norm with momentum=None weighs each batch by a count that a graph keeps as a constant.

What happens: The running statistics should be the mean over all batches so far. jit.trace notices that two runs give
two graphs and refuses; the hook stops at the second batch.
Why: With momentum=None the factor is 1 / batches seen, computed as a Python float from the num_batches_tracked buffer;
the outputs in training do not depend on it, so only the statistics would go wrong.
What to do instead: Give a momentum such as the default 0.1, or capture in eval mode, where nothing is counted.
"""

import torch
from torch import nn

# fx leaves the batch norm module as one call, so its Python runs each time. Dynamo breaks at float() and runs eagerly.
EXPECT = {"dynamo": "sound", "jit_trace": "refused", "fx": "sound", "hook": "restricted"}


def make_model():
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3, momentum=None), nn.ReLU()).train()


def example_inputs():
    return (torch.randn(4, 2, 8),)


def other_inputs():
    return [(torch.randn(4, 2, 8) * 5,), (torch.randn(4, 2, 8) + 9,)]
