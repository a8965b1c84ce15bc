"""Hooks registered after the capture run in eager but may be missing from the captured model.

What happens: from the third call on, a forward hook halves the output of the first layer, and from the fourth on a
backward hook triples a gradient. Dynamo and jit.trace go on without them and say nothing; the tape of ops raises.
Why: the hooks present at capture time were unrolled into the graph (there were none). Dynamo does not check for new
ones, to keep calls cheap; a tape does. fx keeps calling the layers as modules, so it runs whatever hooks they have now.
What to do instead: register hooks before the first compiled call, call torch.compiler.reset() after changing them, or
set torch._dynamo.config.skip_nnmodule_hook_guards = False so that Dynamo checks.
"""

import torch
from torch import nn

MODE = "training"
EXPECT = {"dynamo": "unsound", "jit_trace": "unsound", "fx": "sound", "hook": "restricted"}


def make_model():
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))


def example_inputs():
    return (torch.randn(4, 6),)


def other_inputs():
    return [(torch.randn(4, 6),), (torch.randn(4, 6),)]


def between(model, captured, i):
    if i == 2:
        model[0].register_forward_hook(lambda module, args, output: output * 0.5)
    if i == 3:
        model[2].register_full_backward_hook(lambda module, grad_in, grad_out: tuple(g * 3 for g in grad_in))
