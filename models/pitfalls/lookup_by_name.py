"""A lookup in a dict by a name computed from a tensor keeps the example's entry.

What happens: a router picks the name of a head. jit.trace sends every input through the example's head; a tape of ops
raises when the router would pick another; Dynamo breaks the graph to look.
Why: a dict is indexed by Python values, so item() takes the index out of the graph, and everything that depends on it
is constant from there on.
What to do instead: compute all heads and pick with a tensor: torch.stack(results).index_select(0, index.view(1)), or
leave the routing in eager and capture the heads one by one.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}
NAMES = ("text", "image", "audio")


class RouteByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, len(NAMES), bias=False)
        # Scores are the first entries of the input, so that inputs can choose.
        self.router.weight.data = torch.eye(len(NAMES), 4)
        self.heads = nn.ModuleDict({name: nn.Linear(4, 2) for name in NAMES})

    def forward(self, x):
        name = NAMES[self.router(x).argmax().item()]
        return self.heads[name](x)


def make_model():
    return RouteByName().eval()


def example_inputs():
    return (torch.tensor([3.0, 0.0, 0.0, 1.0]),)


def other_inputs():
    return [(torch.tensor([2.0, 1.0, 0.0, 4.0]),), (torch.tensor([0.0, 1.0, 5.0, 2.0]),)]
