"""Tapes in a file: another process, which knows nothing of the model, replays them with their checks."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tracebench.controls.orders import NO_ORDERS, Orders, bind
from tracebench.controls.vocabulary import wishes
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Inputs
from tracebench.frontends.hook import GuardError
from tracebench.frontends.tape import artifact

X = torch.arange(12.0).reshape(4, 3) / 6 + 0.1


class Model(nn.Module):
    gain = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, options: dict[str, float]) -> dict[str, Any]:
        x.add_(options["by"])
        y = F.dropout(self.norm(self.linear(x)), 0.5) * self.gain
        with torch.no_grad():
            z = y * torch.tensor([1.0, 2.0, 3.0])
        if x.sum() > 0:
            return {"y": y, "size": len(y[y > 0]), "kept": None}
        try:
            y = y + torch.linalg.cholesky(x[:3])
        except torch.linalg.LinAlgError:
            self.last = z
        return {"y": (y, z.to(torch.float64)), "list": (x[0] > 0).tolist()}


def captured(model: nn.Module, *args: Any, orders: Orders = NO_ORDERS) -> Capture:
    front_end = make_front_end("hook", {"on_guard_failure": "retrace"})
    return front_end.capture(model, Inputs(args), make_executor("replay", for_verdict=True), orders=orders)


_ELSEWHERE = """
import sys, torch
from pathlib import Path
from tracebench.frontends.tape import artifact
loaded = artifact.load(Path(sys.argv[1]))
results = []
for seed, x in enumerate(torch.load(sys.argv[2])):
    torch.manual_seed(seed)
    output = loaded(x, {"by": 0.5})
    y = output["y"] if "size" in output else output["y"][0]
    y.sum().backward()
    results.append((output, x, loaded.tensors["linear.weight"].grad, loaded.tensors["norm.running_mean"].clone()))
    loaded.tensors["linear.weight"].grad = None
assert "tests" not in str(sys.modules.keys()), "the model's code is here"
torch.save(results, sys.argv[2])
"""


def test_another_process_replays_all_branches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    made = captured(model, X.clone(), {"by": 0.5})
    inputs = [X, -X - 1, X * 2, -X - 1]
    for seed, x in enumerate(inputs):
        torch.manual_seed(seed)
        made.call(x.clone(), {"by": 0.5})
    assert made.save is not None
    made.save(tmp_path / "tapes.pt")
    torch.save([x.clone() for x in inputs], tmp_path / "io.pt")
    command = [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "tapes.pt"), str(tmp_path / "io.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    eager = copy.deepcopy(model)
    for seed, (x, found) in enumerate(zip(inputs, torch.load(tmp_path / "io.pt"), strict=True)):
        own = x.clone()
        torch.manual_seed(seed)
        eager.zero_grad()
        expected = eager(own, {"by": 0.5})
        (expected["y"] if "size" in expected else expected["y"][0]).sum().backward()
        state = (own, eager.linear.weight.grad, eager.norm.running_mean)
        torch.testing.assert_close(found, (expected, *state), rtol=0, atol=0)


def test_loaded_tapes_check_what_they_can(tmp_path: Path) -> None:
    model = Model()
    made = captured(model, X.clone(), {"by": 0.5})
    assert made.save is not None
    made.save(tmp_path / "tapes.pt")
    loaded = artifact.load(tmp_path / "tapes.pt")
    before = loaded.tensors["norm.running_mean"].clone()
    x = -X - 1
    with pytest.raises(GuardError, match="True on tape, False now"):
        loaded(x, {"by": 0.5})
    assert torch.equal(x, -X - 1)
    assert torch.equal(loaded.tensors["norm.running_mean"], before)
    with pytest.raises(GuardError, match=r"argument 0: shape \[4, 3\] on tape, \[2, 3\] now"):
        loaded(X[:2].clone(), {"by": 0.5})
    with pytest.raises(GuardError, match="argument 1"):
        loaded(X.clone(), {"by": 0.25})
    with pytest.raises(GuardError, match="grad mode"), torch.no_grad():
        loaded(X.clone(), {"by": 0.5})
    assert loaded.notes[0].startswith("not checked: ")


class Pair(NamedTuple):
    first: torch.Tensor


class Returns(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self.part = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        self.last = self.part(x)
        return self.kind(x + 1)


def test_what_no_file_can_hold_is_said() -> None:
    model = Returns(torch.relu)
    made = captured(model, X, orders=bind(wishes({"disable": ["part"]}, "hook"), model))
    assert made.save is None
    assert [note for note in made.events.notes if "cannot be saved" in note] == [
        "the artifact cannot be saved: regions left to Python: part"
    ]
    generator = torch.Generator()
    made = captured(Returns(lambda x: x + torch.rand(3, generator=generator)), X)
    assert made.save is None
    assert made.events.notes == ["the artifact cannot be saved: no file holds a Generator"]


def test_attributes_that_are_not_assigned_are_named(tmp_path: Path) -> None:
    made = captured(Returns(torch.relu), X)
    assert made.save is not None
    made.save(tmp_path / "tapes.pt")
    assert "not assigned: attributes last" in artifact.load(tmp_path / "tapes.pt").notes


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    torch.save({"a": X}, tmp_path / "other.pt")
    with pytest.raises(GuardError, match="holds no tapes"):
        artifact.load(tmp_path / "other.pt")
