"""A sparse matrix built inside forward splits Dynamo's graph and cannot be traced by fx.

What happens: edges become a sparse adjacency matrix, which is multiplied with the features of the nodes. Dynamo is
right but runs the sparse part in eager; fx raises a TypeError.
Why: torch.sparse_coo_tensor makes a tensor from data and does not let an fx Proxy take over: it tries to read it as an
array. Dynamo takes no sparse tensors into its graphs.
What to do instead: stay dense and gather and scatter:
torch.zeros_like(features).index_add(0, edges[0], features[edges[1]]), or pass the sparse matrix in as an input.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "sound", "fx": "refused", "hook": "sound"}
NODES = 5


class SumOverNeighbours(nn.Module):
    def forward(self, edges, features):
        ones = torch.ones(edges.shape[1], dtype=features.dtype, device=features.device)
        adjacency = torch.sparse_coo_tensor(edges, ones, (NODES, NODES)).coalesce()
        return torch.sparse.mm(adjacency, features), adjacency


def make_model():
    return SumOverNeighbours()


def example_inputs():
    return torch.tensor([[0, 1, 2, 4], [1, 2, 3, 0]]), torch.randn(NODES, 3)


def other_inputs():
    """The second has an edge twice, so that the sparse matrix has fewer entries than there are edges."""
    return [
        (torch.tensor([[3, 1, 0, 2], [0, 4, 3, 1]]), torch.randn(NODES, 3)),
        (torch.tensor([[3, 3, 0, 2], [0, 0, 3, 1]]), torch.randn(NODES, 3)),
    ]
