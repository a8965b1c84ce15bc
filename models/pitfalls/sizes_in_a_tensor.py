"""torch.tensor([...]) of sizes puts the example's sizes into the graph as a constant.

What happens: Points are divided by the width and height of their image. A trace divides the points of every image by
the size of its example image.
Why: torch.tensor copies plain numbers out of the list and remembers nothing of where they came from, so jit.trace
registers the result as a constant.
What to do instead: Use the sizes in ops on tensors, torch.stack([points[:, 0] / width, points[:, 1] / height], 1); then
jit.trace and fx record where they come from.
"""

import torch
from torch import nn

# fx cannot even make the tensor: its sizes are proxies. The hook's tape is only for inputs of the recorded shape.
EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}


class RelativePoints(nn.Module):
    def forward(self, image, points):
        size = torch.tensor([image.shape[-1], image.shape[-2]])
        return points / size


def make_model():
    return RelativePoints()


def example_inputs():
    return torch.zeros(3, 4, 8), torch.tensor([[8.0, 4.0], [2.0, 1.0]])


def other_inputs():
    return [(torch.zeros(3, 16, 16), torch.tensor([[8.0, 4.0], [2.0, 1.0]]))]
