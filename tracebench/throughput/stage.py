"""The throughput stage: eager and a capture of the same model, called in turns on the same inputs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tracebench.errors import CallError
from tracebench.frontends.base import Capture, Inputs
from tracebench.record import ThroughputInfo
from tracebench.subject import Subject, seed_everything
from tracebench.throughput import gpu
from tracebench.throughput.clock import clock_for
from tracebench.throughput.measure import break_even_calls, measure


def time_capture(
    subject: Subject, capture: Callable[[nn.Module, Inputs], Capture], *, seconds: float
) -> ThroughputInfo:
    """Time what ``capture`` makes, an unmarked capture, against eager for about ``seconds``.

    Eager and the capture each have a model and inputs of their own. In training a call is the forward pass, the sum
    of its floating-point outputs as loss, and the backward pass.

    Raises:
        CaptureError: the front end refuses this time.
        CallError: eager or the capture raises.
    """
    with subject.grad_mode():
        eager = _bound(subject, subject.fresh_model(), "eager")
        model = subject.fresh_model()
        started = time.perf_counter()
        made = capture(model, subject.fresh_inputs())
        captured = _bound(subject, made.call, "the capture", module=model)
        before_first_call = time.perf_counter()
        captured()
        subject.synchronise()
        first_call = time.perf_counter()
        before = gpu.read(subject.device)
        info = measure(
            eager,
            captured,
            clock=clock_for(subject.device),
            seconds=seconds,
            samples_per_call=subject.batch_size,
            compilations=made.compilations,
            seed=subject.seed,
        )
        after = gpu.read(subject.device)
    return dataclasses.replace(
        info,
        gpu=gpu.state(before, after),
        warnings=(*info.warnings, *gpu.warnings(before, after)),
        first_call_ms=(first_call - before_first_call) * 1e3,
        break_even_calls=break_even_calls(
            first_call - started, info.speedup, info.eager.median_ms, info.captured.median_ms
        ),
    )


def try_calls(subject: Subject, capture: Callable[[nn.Module, Inputs], Capture]) -> None:
    """Call eager and a capture once more than once each, with all in memory that there is when they are timed.

    Raises:
        CaptureError: the front end refuses, after eager was called.
        CallError: eager or the capture raises.
    """
    eager = _bound(subject, subject.fresh_model(), "eager")
    eager()
    model = subject.fresh_model()
    made = capture(model, subject.fresh_inputs())
    captured = _bound(subject, made.call, "the capture", module=model)
    for call in (captured, eager, captured):
        call()
    subject.synchronise()


def _bound(
    subject: Subject, call: Callable[..., Any], who: str, module: nn.Module | None = None
) -> Callable[[], object]:
    """Bind ``call`` to inputs of its own; in training add the backward pass."""
    inputs = subject.fresh_inputs()
    args, kwargs = inputs.args, dict(inputs.kwargs)
    owner = module if module is not None else call
    assert isinstance(owner, nn.Module)
    parameters = [p for p in owner.parameters() if p.requires_grad] if subject.training else []
    seed_everything(subject.seed)

    def forward() -> object:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            raise CallError(f"{who} raises when called repeatedly: {type(error).__name__}: {error}") from error

    def step() -> object:
        try:
            for parameter in parameters:
                parameter.grad = None
            outputs = [t for t in pytree.tree_leaves(call(*args, **kwargs)) if _differentiable(t)]
            if outputs:
                torch.stack([t.sum() for t in outputs]).sum().backward()
        except Exception as error:
            raise CallError(f"{who} raises when trained repeatedly: {type(error).__name__}: {error}") from error
        return None

    return step if subject.training else forward


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
