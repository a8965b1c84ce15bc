"""The benchmark of the hook's speed, on a tiny model: that it measures what it says, not how much that is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.subjects import subject

_FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "hook_speed.py"


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(_FILE))


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


@pytest.mark.filterwarnings("ignore")
def test_there_is_a_row_for_each_front_end_and_figure(benchmark: dict[str, Any]) -> None:
    tiny = subject(_Tiny().eval(), torch.randn(2, 4))
    with torch.no_grad():
        rows = [*benchmark["_capture_rows"](tiny, 2), *benchmark["_replay_rows"](tiny, 0.0)]
    names = ["hook", "jit_trace", "fx", "dynamo"]
    assert [row.split()[1] for row in rows if row.startswith("capture ") and "first" in row] == ["eager", *names]
    assert [row.split()[1] for row in rows if row.startswith("replay ") and "of eager" in row] == names
    number = r"\d+\.\d+"
    assert any(re.fullmatch(rf"capture hook / jit_trace  {number} \({number} to {number}\)", row) for row in rows)
    assert any(row.startswith("replay hook / dynamo ") for row in rows)
    (guards,) = [row for row in rows if row.startswith("guards ")]
    assert int(guards.split()[1].strip(",")) > 0


def test_guards_are_timed_without_the_ops_of_the_graph(benchmark: dict[str, Any]) -> None:
    calls = []

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return x

    run = benchmark["_Nothing"]().wrap(Counted())
    assert [float(run(torch.tensor(value))) for value in (1.0, 2.0)] == [1.0, 1.0]
    assert len(calls) == 1


def test_a_model_that_is_not_there_is_named(benchmark: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="no model 'resnet5'"):
        benchmark["_subject"]("resnet5", None, None)
