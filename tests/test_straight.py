"""A tape's code run without the detours of a module: the same ops, in the same order, on the same tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Inputs
from tracebench.frontends.tape.straight import BINDINGS

_X, _W, _V = torch.ones(2, 4), torch.ones(4, 4), torch.ones(4)
_IMAGE, _KERNEL = torch.ones(2, 4, 5, 5), torch.ones(4, 4, 3, 3)
_ATEN = torch.ops.aten
#: Arguments of each op as they stand on a tape.
_ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    _ATEN._native_multi_head_attention.default: (
        torch.ones(1, 3, 4), torch.ones(1, 3, 4), torch.ones(1, 3, 4), 4, 2, torch.ones(12, 4), torch.ones(12),
        _W, _V, None, False,
    ),
    _ATEN._unsafe_view.default: (_X, [4, 2]),
    _ATEN.add.Tensor: (_X, _X),
    _ATEN.add_.Tensor: (_X, _X),
    _ATEN.addmm.default: (_V, _X, _W),
    _ATEN.bmm.default: (torch.ones(1, 2, 4), torch.ones(1, 4, 2)),
    _ATEN.cat.default: ([_X, _X], 1),
    _ATEN.clone.default: (_X,),
    _ATEN.convolution.default: (_IMAGE, _KERNEL, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    _ATEN.detach.default: (_X,),
    _ATEN.div.Tensor: (_X, _X),
    _ATEN.embedding.default: (_W, torch.tensor([1, 2])),
    _ATEN.empty.memory_format: ([0],),
    _ATEN.expand.default: (_V, [2, 4]),
    _ATEN.gelu.default: (_X,),
    _ATEN.hardswish_.default: (_X,),
    _ATEN.hardtanh_.default: (_X, 0.0, 6.0),
    _ATEN.max_pool2d_with_indices.default: (_IMAGE, [2, 2], [1, 1]),
    _ATEN.mean.dim: (_IMAGE, [-1, -2], True),
    _ATEN.mm.default: (_X, _W),
    _ATEN.mul.Tensor: (_X, _X),
    _ATEN.mul_.Tensor: (_X, _X),
    _ATEN.native_batch_norm.default: (_IMAGE, _V, _V, _V.clone(), _V.clone(), False, 0.1, 1e-5),
    _ATEN.native_group_norm.default: (_IMAGE, _V, _V, 2, 4, 25, 2, 1e-5),
    _ATEN.native_layer_norm.default: (_X, [4], _V, _V, 1e-5),
    _ATEN.permute.default: (_IMAGE, [0, 2, 3, 1]),
    _ATEN.relu.default: (_X,),
    _ATEN.relu_.default: (_X,),
    _ATEN.select.int: (_X, 1, 0),
    _ATEN.sigmoid.default: (_X,),
    _ATEN.sub.Tensor: (_X, _X),
    _ATEN.t.default: (_W,),
    _ATEN.tanh.default: (_X,),
    _ATEN.transpose.int: (_IMAGE, 1, 2),
    _ATEN.unbind.int: (_X, 0),
    _ATEN.unsqueeze.default: (_X, 0),
    _ATEN.view.default: (_X, [4, 2]),
}  # fmt: skip


class _Dispatched(TorchDispatchMode):
    """Notes each op."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", BINDINGS, ids=str)
def test_what_stands_for_an_op_is_that_op_and_computes_the_same(op: Any) -> None:
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in _ARGUMENTS[op]]
    expected = op(*[value.clone() if isinstance(value, torch.Tensor) else value for value in given])
    with _Dispatched() as seen:
        found = BINDINGS[op](*given)
    assert seen.ops == [op]
    if op is _ATEN.empty.memory_format:
        assert found.shape == expected.shape
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.inner(x).mean((-1, -2))
        left, right = self.head(found + 1).unbind(1)
        return left * 2, right + left


def _ops(call: Any, *args: Any) -> list[Any]:
    with _Dispatched() as seen:
        call(*args)
    return seen.ops


@pytest.mark.parametrize("grad", [False, True])
def test_ops_of_a_replay_are_those_of_the_graph_and_of_eager(grad: bool) -> None:
    model, x = _Net().eval(), torch.randn(2, 3, 8, 8)
    with torch.set_grad_enabled(grad):
        captured = make_front_end("hook").capture(model, Inputs((x,)), make_executor("replay", for_verdict=False))
        (graph,) = captured.events.graphs
        assert _ops(captured.call, x) == _ops(graph, x)
        # With gradients on, a graph repeats what autograd does by itself besides.
        assert grad or _ops(captured.call, x) == _ops(model, x)
        torch.testing.assert_close(captured.call(x), model(x), rtol=0, atol=0)


class _Scaled(torch.Tensor):
    """Doubles what is added to it, and sees it only as a function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found * 2 if func is torch.add else found


def test_classes_of_tensors_that_look_at_functions_are_called_as_on_tape() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1.0

    x = torch.ones(2).as_subclass(_Scaled)
    captured = make_front_end("hook").capture(Adds(), Inputs((x,)), make_executor("replay", for_verdict=False))
    assert captured.call(x).tolist() == Adds()(x).tolist()
