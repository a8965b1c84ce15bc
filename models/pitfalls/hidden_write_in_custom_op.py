"""A custom op that writes into its input without saying so may be dropped as useless.

What happens: the op adds to a window of scores in place and returns nothing. Replayed as captured, three front ends
keep it; jit.trace drops it, and so does Inductor when it compiles a graph, and the scores go out unchanged.
Why: an empty mutates_args declares the op pure. A pure op whose result nobody uses is dead code to any pass that cleans
up a graph.
What to do instead: name every argument that the op writes in mutates_args of torch.library.custom_op, and have
torch.library.opcheck compare the schema with what the op does. Better still, return a new tensor.
"""

import torch
from torch import Tensor, nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "sound", "hook": "sound"}


@torch.library.custom_op("tracebench_pitfalls::lift_", mutates_args=())  # should be mutates_args=("scores",)
def lift_(scores: Tensor, by: float) -> None:
    scores.add_(by)


@lift_.register_fake
def _(scores, by):
    return None


class LiftWindow(nn.Module):
    def forward(self, x):
        scores = x * 2
        lift_(scores[:, 1:3], 5.0)
        return scores.softmax(-1)


def make_model():
    return LiftWindow()


def example_inputs():
    return (torch.randn(2, 5),)


def other_inputs():
    return [(torch.randn(2, 5),)]
