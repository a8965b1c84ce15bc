"""One run of the planned calls, and everything that can be observed of each call, as copies.

A run starts from its own deep copy of the model with global state reset; every call gets its own copy of its inputs
and its own seed. What one run changes, the next never sees.
"""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tracebench.failures import first_line
from tracebench.frontends.base import Inputs
from tracebench.soundness.aliasing import Shared, aliasing
from tracebench.soundness.blocksums import BlockSums, block_sums
from tracebench.soundness.calls import Call
from tracebench.soundness.globals import Globals
from tracebench.soundness.loss import run_backward
from tracebench.soundness.state import State, live_tensors, snapshot
from tracebench.soundness.structure import Tree, to_tree, walk
from tracebench.subject import Subject, seed_everything
from tracebench.userlocation import user_location

#: Bytes that the gradients kept of one run may take; beyond, all are kept as block sums.
GRADIENT_BUDGET = 1 << 30


@dataclass(frozen=True)
class Failure:
    """An exception that a call, or a hook of the model file, ended in."""

    type: str
    message: str
    location: str | None

    def __str__(self) -> str:
        first = first_line(self.message)
        where = f" (at {self.location})" if self.location else ""
        return f"{self.type}: {first}"[:300] + where


@dataclass(frozen=True)
class Snapshot:
    """What one call did. Holds nothing that a later call could change."""

    state: State
    failure: Failure | None = None
    output: Tree | None = None
    inputs: Tree | None = None
    #: What the model file's ``observe`` returned, or how it failed; None without that hook.
    observed: Tree | Failure | None = None
    printed: str = ""
    #: Gradients of parameters and inputs by name, None where there is none; empty outside training.
    gradients: Mapping[str, torch.Tensor | BlockSums | None] = field(default_factory=dict)
    alias: frozenset[Shared] = frozenset()
    #: Where the call left each random number generator, by name.
    randomness: Mapping[str, Hashable] = field(default_factory=dict)
    #: Module-level values of the model's file after the call; empty where they are not watched.
    globals: Mapping[str, Any] = field(default_factory=dict)
    #: How long the call took.
    seconds: float = 0.0


@dataclass(frozen=True)
class Target:
    """What is run: ``call``, with the source ``model`` it stands for and the ``module`` whose state it uses."""

    call: Callable[..., Any]
    model: nn.Module
    module: nn.Module

    @classmethod
    def eager(cls, model: nn.Module) -> Target:
        """Return the target that is the model itself."""
        return cls(model, model, model)


def run(
    subject: Subject,
    calls: Sequence[Call],
    target: Target,
    *,
    prepare: Callable[[Inputs], Inputs] = lambda inputs: inputs,
    watched: Globals | None = None,
) -> Iterator[Snapshot]:
    """Make the calls one by one, yielding after each what it did.

    ``prepare`` changes each call's copy of its inputs. Between two calls whoever iterates may put the target's state
    right. ``watched`` globals are read after each call. An exception of a call is in its snapshot; only what is no
    ``Exception`` (an interrupt) passes through.
    """
    earlier: list[Any] = []
    last_output: Any = None
    condense = _gradient_bytes(subject) * len(calls) > GRADIENT_BUDGET
    for i, call in enumerate(calls):
        inputs = prepare(call_inputs(subject, call.inputs))
        seen = _call(subject, target, inputs, i, earlier, last_output, condense)
        # Held until the next call is over, so that memory is not handed out again and aliasing with it is seen.
        last_output = seen.live
        yield seen.snapshot if watched is None else replace(seen.snapshot, globals=watched.read())


def call_inputs(subject: Subject, inputs: Inputs) -> Inputs:
    """Return a copy of ``inputs`` for one call.

    In training a model without trainable parameters is differentiated with respect to its floating-point inputs, or
    there would be nothing to compare; else inputs require gradients only where the author says so.
    """
    copied = subject.fresh_inputs(inputs)
    if subject.training and not any(parameter.requires_grad for parameter in subject.model.parameters()):
        for _, leaf in walk(to_tree(copied)):
            if leaf.live.is_floating_point() and leaf.live.is_leaf:
                leaf.live.requires_grad_(True)
    return copied


def generators(device: torch.device) -> dict[str, Hashable]:
    """Return where the generators of torch (of the CPU and of ``device``), of Python and of numpy stand."""
    name, keys, *rest = np.random.get_state(legacy=True)
    found: dict[str, Hashable] = {
        "torch": bytes(torch.get_rng_state().numpy()),
        "random": random.getstate(),
        "numpy": (name, bytes(np.asarray(keys)), *rest),
    }
    if device.type not in ("cpu", "meta"):
        state = torch.get_device_module(device).get_rng_state(device)
        found[f"torch {device.type}"] = bytes(state.cpu().numpy())
    return found


@dataclass(frozen=True)
class _Seen:
    snapshot: Snapshot
    live: Any


def _call(
    subject: Subject, target: Target, inputs: Inputs, i: int, earlier: list[Any], last_output: Any, condense: bool
) -> _Seen:
    hooks, model, module = subject.hooks, target.model, target.module
    _clear_gradients(model, module)
    printed = io.StringIO()
    output: Any = None
    try:
        if hooks.between is not None:
            hooks.between(model, module, i)
        seed_everything(subject.seed + i)
        with hooks.call_context(i), subject.grad_mode(), contextlib.redirect_stdout(printed):
            started = time.perf_counter()
            output = target.call(*inputs.args, **inputs.kwargs)
            seconds = time.perf_counter() - started
            shown = output if hooks.canonical is None else hooks.canonical(i, output, earlier)
            kept = to_tree(shown, own=True)
            if subject.training:
                run_backward(output)
        randomness = generators(subject.device)
    except Exception as error:
        failure = Failure(type(error).__name__, str(error), user_location(error))
        return _Seen(Snapshot(snapshot(model, module, subject.model), failure, printed=printed.getvalue()), None)
    if hooks.canonical is not None:
        earlier.append(output)
    live = live_tensors(model, module)
    shared = aliasing({"output": output, "input": inputs, "state": live, "earlier output": last_output})
    gradients = _gradients(live, inputs, condense) if subject.training else {}
    seen = Snapshot(
        state=snapshot(model, module, subject.model),
        output=kept,
        inputs=to_tree(inputs, own=True),
        observed=None if hooks.observe is None else _observe(hooks.observe, model, module),
        printed=printed.getvalue(),
        gradients=gradients,
        alias=shared,
        randomness=randomness,
        seconds=seconds,
    )
    _clear_gradients(model, module)
    # Detached: their memory is held, not their graph.
    return _Seen(seen, [leaf.value for _, leaf in walk(to_tree(output))])


def _observe(observe: Callable[[nn.Module], Any], model: nn.Module, module: nn.Module) -> Tree | Failure:
    for target in (module, model):
        try:
            return to_tree(observe(target), own=True)
        except AttributeError as error:
            # A capture's module need not have the attribute that the model file looks at; the model does.
            failure = Failure(type(error).__name__, str(error), user_location(error))
        except Exception as error:
            return Failure(type(error).__name__, str(error), user_location(error))
    return failure


def _gradients(
    live: Mapping[str, torch.Tensor], inputs: Inputs, condense: bool
) -> dict[str, torch.Tensor | BlockSums | None]:
    found: dict[str, torch.Tensor | BlockSums | None] = {}
    seen: set[int] = set()
    for name, tensor in live.items():
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = _kept(tensor.grad, condense)
    for path, leaf in walk(to_tree(inputs), "input"):
        if leaf.requires_grad and leaf.live.is_leaf:
            found[path] = _kept(leaf.live.grad, condense=False)
    return found


def _kept(gradient: torch.Tensor | None, condense: bool) -> torch.Tensor | BlockSums | None:
    if gradient is None:
        return None
    if condense and gradient.layout is torch.strided and gradient.is_floating_point():
        return block_sums(gradient)
    return gradient.detach().clone()


def _gradient_bytes(subject: Subject) -> int:
    if not subject.training:
        return 0
    return sum(p.numel() * p.element_size() for p in subject.model.parameters() if p.requires_grad)


def _clear_gradients(model: nn.Module, module: nn.Module) -> None:
    for holder in (model, module):
        for parameter in holder.parameters():
            parameter.grad = None
