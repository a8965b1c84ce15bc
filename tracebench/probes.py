"""The names of the probes and of what is compared on each: what ``soundness.probes`` and ``.aspects`` choose from.

Imports no torch: the command line checks its words against these tables, and the help page prints them.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Probes of the declared use, which make the verdict.
USE = {
    "same": "the example: first, again, and last; always made, for some front ends capture on the first call",
    "fresh": "other values of the same shapes, where the model's file gives no other_inputs",
    "batch": "other batch sizes, one and none among them, where the file gives no other_inputs",
    "shape": "other sizes that the file declares (SHAPES)",
    "other": "the file's other_inputs",
    "invalid": "the file's invalid_inputs, on which eager raises",
    "random": "the distribution of random numbers, where the executor draws other ones than eager by design",
}
#: Changes made to the model after capture, reported beside the verdict.
LIFECYCLE = {
    "train_eval_switch": "train() or eval() after capture",
    "dtype_move": "the model moved to another dtype",
    "device_move": "the model moved to another device",
    "parameter_replaced": "a parameter assigned anew",
    "hook_added": "a forward hook registered",
}
#: Words that stand for several probes.
GROUPS = {"use": tuple(USE), "lifecycle": tuple(LIFECYCLE)}
PROBES = (*GROUPS, *USE, *LIFECYCLE)

#: Everything that is compared of a call, in the order in which it is reported.
ASPECTS = {
    "output": "structure, dtype, device, shape, requires_grad and values of what a call returns",
    "input_mutation": "the inputs after the call",
    "state": "parameters and buffers after the call",
    "attribute": "plain Python attributes of the modules after the call",
    "alias": "memory shared between outputs, inputs and state",
    "observe": "what the file's observe() returns",
    "printed": "standard output",
    "random_state": "where the call leaves the generators of torch, Python and numpy",
    "global": "plain values of the model file's module and classes",
    "grad": "in training, gradients of parameters and inputs",
}


def chosen(words: Iterable[str]) -> frozenset[str]:
    """Return the names of single probes that ``words`` stand for; ``same`` is always among them."""
    return frozenset({"same"}.union(*(GROUPS.get(word, (word,)) for word in words)))
