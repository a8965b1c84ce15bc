"""A loop over a list that grows while it is read takes as many steps as the example needed.

What happens: a sequence is cut in halves until every piece is short. jit.trace keeps the example's number of cuts, and
returns the means of wrong pieces for a longer or a shorter sequence.
Why: a trace holds the steps that one run took. The generator and its test of the length are Python and leave nothing
behind. A tape of ops guards the input's shape, so it raises.
What to do instead: make pieces of a fixed size with Tensor.unflatten or Tensor.unfold, or capture with torch.compile,
which follows the generator and captures again for another length.
"""

import torch
from torch import nn

EXPECT = {"dynamo": "sound", "jit_trace": "unsound", "fx": "refused", "hook": "restricted"}
LONGEST = 4


def short_pieces(sequence):
    pieces = [sequence]
    for piece in pieces:
        if piece.shape[0] > LONGEST:
            pieces.extend(piece.chunk(2))
        else:
            yield piece


class PieceMeans(nn.Module):
    def forward(self, sequence):
        return torch.stack([piece.mean(0) for piece in short_pieces(sequence)])


def make_model():
    return PieceMeans()


def example_inputs():
    return (torch.randn(8, 3),)


def other_inputs():
    return [(torch.randn(16, 3),), (torch.randn(4, 3),)]
