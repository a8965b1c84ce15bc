"""A try/except around an op that fails for some values loses its except branch.

What happens: eager factorises a matrix, and falls back to its diagonal where it is not positive definite. Every
capture raises the factorisation's error instead.
Why: a graph holds the ops of the try block, none of which failed during the capture. The exception comes out of the
running graph, long after the Python frame with the except clause was left.
What to do instead: ask for a status in place of an exception (torch.linalg.cholesky_ex) and choose with torch.where or
torch.cond, or keep the try block out of the graph with torch.compiler.disable.
"""

import torch
from torch import nn

# Each of them fails loudly, none returns something wrong.
EXPECT = {"dynamo": "restricted", "jit_trace": "restricted", "fx": "restricted", "hook": "restricted"}


class RobustFactor(nn.Module):
    def forward(self, matrix):
        try:
            return torch.linalg.cholesky(matrix)
        except torch.linalg.LinAlgError:
            return torch.diag(torch.diagonal(matrix).clamp(min=1.0))


def positive_definite():
    root = torch.randn(4, 4)
    return root @ root.T + 4 * torch.eye(4)


def make_model():
    return RobustFactor()


def example_inputs():
    return (positive_definite(),)


def other_inputs():
    return [(positive_definite(),), (-torch.eye(4),)]
