"""The coverage stage: the share of a steady-state call that runs inside captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.jit._fuser import optimized_execution

from tracebench.coverage.recorder import Tally, record, supports_recording
from tracebench.errors import CallError
from tracebench.frontends.base import Capture, Inputs
from tracebench.record import CoverageInfo, OutsideOp
from tracebench.subject import Subject, seed_everything


def cover(subject: Subject, capture: Callable[[nn.Module, Inputs], Capture]) -> CoverageInfo:
    """Return the coverage of what ``capture`` makes, a marked capture under the replay executor.

    Op coverage = ops dispatched inside graphs / all ops dispatched; FLOP coverage weights ops by torch's formulas.
    Both count the forward pass of the second call on the example inputs: the first may still compile.

    Raises:
        CaptureError: the front end refuses this time.
        CallError: eager or the capture raises.
    """
    if not supports_recording():
        return CoverageInfo(None, None, note="this torch lets no recorder see compiled code")
    eager = _second_call(subject, "eager", lambda model, inputs: model)
    captured = _second_call(subject, "the capture", lambda model, inputs: capture(model, inputs).call)
    return summarise(eager, captured)


def summarise(eager: Tally, captured: Tally) -> CoverageInfo:
    """Turn the tallies of an eager and of a captured call into coverage; a share of nothing is null, not 0 or 1."""
    outside = [OutsideOp(op, where, count) for (op, where), count in captured.outside.most_common()]
    return CoverageInfo(
        ops=_share(captured.ops_in_graph, captured.ops),
        flops=_share(captured.flops_in_graph, captured.flops),
        ops_total=captured.ops,
        ops_in_graph=captured.ops_in_graph,
        flops_total=captured.flops,
        flops_in_graph=captured.flops_in_graph,
        eager_ops=eager.ops,
        eager_flops=eager.flops,
        graphs_per_call=captured.graphs_entered,
        outside=tuple(outside),
        flops_unknown=tuple(sorted(eager.without_formula | captured.without_formula)),
    )


def refused_coverage() -> CoverageInfo:
    """Return the coverage of a model that the front end refused: nothing is in a graph."""
    return CoverageInfo(ops=0.0, flops=0.0, ops_in_graph=0, flops_in_graph=0, graphs_per_call=0)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _second_call(subject: Subject, who: str, prepare: Callable[[nn.Module, Inputs], Callable[..., Any]]) -> Tally:
    model = subject.fresh_model()
    # Without the optimising executor TorchScript dispatches each op; fused groups would be invisible.
    with subject.grad_mode(), optimized_execution(False):
        call = prepare(model, subject.fresh_inputs())

        def bound() -> Callable[[], Any]:
            inputs = subject.fresh_inputs()
            seed_everything(subject.seed)
            return lambda: call(*inputs.args, **inputs.kwargs)

        try:
            bound()()
            return record(bound())
        except Exception as error:
            raise CallError(f"{who} raises while its ops are recorded: {type(error).__name__}: {error}") from error
