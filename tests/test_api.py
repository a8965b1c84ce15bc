"""The harness from Python, and what a whole case says about models whose answers are known."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import tracebench
import tracebench.api
from tracebench.errors import RequestError
from tracebench.frontends import FRONT_ENDS

from .conftest import ROOT

FAST: dict[str, Any] = {"throughput_seconds": 0.2, "probes": ["use"]}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.mark.parametrize("frontend", FRONT_ENDS)
def test_a_plain_model_is_right_whole_and_timed(frontend: str) -> None:
    record = tracebench.run(model(), (torch.randn(3, 4),), frontend, **FAST)
    assert (record.status, record.error) == ("done", None)
    assert record.verdict == ("restricted" if frontend == "hook" else "sound")
    assert record.coverage is not None
    assert record.coverage.ops == record.coverage.flops == (0.0 if frontend == "eager" else 1.0)
    assert record.capture is not None
    assert record.capture.graphs == (0 if frontend == "eager" else 1)
    assert record.throughput is not None
    assert record.throughput.speedup.ci_low <= record.throughput.speedup.ratio <= record.throughput.speedup.ci_high
    assert record.throughput.captured.samples_per_s == pytest.approx(3e3 / record.throughput.captured.median_ms)
    assert record.throughput.first_call_ms is not None


@pytest.mark.parametrize("frontend", FRONT_ENDS)
def test_training_compares_gradients_and_times_the_backward_pass(frontend: str) -> None:
    record = tracebench.run(model().train(), (torch.randn(3, 4),), frontend, mode="training", **FAST)
    assert record.status == "done", record.error
    assert record.verdict == ("restricted" if frontend == "hook" else "sound")
    assert record.throughput is not None


@pytest.mark.parametrize("frontend", ["dynamo", "jit_trace", "fx", "hook"])
def test_inductor_is_judged_and_timed_for_every_front_end(frontend: str) -> None:
    record = tracebench.run(model(), (torch.randn(3, 4),), frontend, executor="inductor", **FAST)
    assert record.status == "done", record.error
    assert record.verdict == ("restricted" if frontend == "hook" else "sound"), record.probes
    assert record.throughput is not None


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def test_a_baked_branch_is_unsound_under_jit_trace_alone() -> None:
    found = tracebench.compare_frontends(
        Branch(), (torch.ones(3),), other_inputs=[(-torch.ones(3),)], stages=("soundness",)
    )
    assert {record.case["frontend"]: record.verdict for record in found} == {
        "dynamo": "sound",
        "jit_trace": "unsound",
        "fx": "refused",
        "hook": "restricted",
    }
    [probe] = [probe for probe in found[1].probes or () if probe.outcome == "diverge"]
    assert probe.name == "other0"
    assert probe.max_error == 2.0
    assert found[1].capture is not None
    assert any("TracerWarning" in warning for warning in found[1].capture.warnings)
    table = str(found)
    for part in ("unsound", "refused", "other0", "TraceError"):
        assert part in table


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([nn.ReLU(), Inner()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x - 1)
        return x


@pytest.mark.parametrize(("frontend", "verdict"), [("jit_trace", "unsound"), ("fx", "refused")])
def test_the_blame_names_the_smallest_part(frontend: str, verdict: str) -> None:
    others = [(torch.full((3,), -5.0),)]
    record = tracebench.run(Outer(), (torch.full((3,), 5.0),), frontend, other_inputs=others, **FAST)
    assert record.verdict == verdict
    assert record.blame is not None
    assert (record.blame.path, record.blame.type, record.blame.complete) == ("steps.1", "Inner", True)
    assert record.blame.location is not None
    assert "test_api.py:" in record.blame.location
    assert "the smallest part that shows it: steps.1 (Inner at " in " ".join(
        str(tracebench.api.Records([record])).split()
    )
    off = tracebench.run(Outer(), (torch.full((3,), 5.0),), frontend, other_inputs=others, blame_seconds=0, **FAST)
    assert (off.verdict, off.blame) == (verdict, None)


def test_a_warning_of_the_tracer_that_no_probe_confirms_is_said() -> None:
    record = tracebench.run(
        Branch(), (torch.ones(3),), "jit_trace", other_inputs=[(torch.ones(3),)], stages=("soundness",)
    )
    assert record.verdict == "sound"
    assert any("the tracer warned" in note and "TracerWarning" in note for note in record.notes)


def test_a_trace_does_not_follow_a_mode_switch_and_that_is_no_verdict() -> None:
    torch.manual_seed(0)
    dropping = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    record = tracebench.run(
        dropping, (torch.randn(3, 4),), "jit_trace", stages=("soundness",), probes=["use", "train_eval_switch"]
    )
    assert record.verdict == "sound"
    assert record.lifecycle is not None
    assert {probe.name: probe.outcome for probe in record.lifecycle} == {"train_eval_switch": "diverge"}
    assert "does not follow: train_eval_switch (silently)" in str(tracebench.api.Records([record]))


class Odd(nn.Module):
    def forward(self, x: torch.Tensor) -> object:
        return {1: x, "text": "not a tensor"}


def test_a_refusal_over_an_output_points_to_forward() -> None:
    record = tracebench.run(Odd(), (torch.ones(2),), "jit_trace", **FAST)
    assert record.verdict == "refused"
    assert record.error is not None
    assert record.error.user_location is not None
    assert "test_api.py:" in record.error.user_location


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x if y is None else x * y


def test_a_capture_that_raises_on_its_own_example_is_restricted_and_not_timed() -> None:
    inputs = {"args": (torch.ones(2),), "kwargs": {}}
    record = tracebench.run(Doubled(), inputs, "fx", other_inputs=[inputs], **FAST)
    assert (record.status, record.verdict) == ("done", "restricted")
    assert record.throughput is None
    assert record.coverage is None
    assert any("throughput n/a: the capture raises on the example inputs" in note for note in record.notes)


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 30:
            raise RuntimeError("the cache is full")
        return x + self.calls


def test_a_model_that_cannot_be_called_for_ever_says_so_instead_of_failing() -> None:
    record = tracebench.run(Grows(), (torch.ones(2),), "eager", **FAST)
    assert (record.status, record.verdict) == ("done", "sound")
    assert record.throughput is None
    assert any("throughput n/a: eager raises when called repeatedly" in note for note in record.notes)


def test_recompiles_of_later_calls_are_in_the_record() -> None:
    others = [(torch.ones(rows, 4),) for rows in (1, 2, 5)]
    record = tracebench.run(model(), (torch.ones(3, 4),), other_inputs=others, stages=("soundness",))
    assert record.capture is not None
    assert any("size mismatch" in reason or "size" in reason for reason in record.capture.recompiles)


class Moody(nn.Module):
    """Refuses to be traced from the second time on."""

    traced = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, torch.fx.Proxy):
            Moody.traced += 1
            if Moody.traced > 1:
                raise TypeError("not today")
        return x + 1


def test_a_refusal_that_comes_later_is_a_refusal() -> None:
    record = tracebench.run(Moody(), (torch.ones(2),), "fx", **FAST)
    assert (record.status, record.verdict) == ("done", "refused")
    assert record.error is not None
    assert (record.error.type, record.error.message, record.error.stage) == ("TypeError", "not today", "soundness")
    assert any("refused it the next time" in note for note in record.notes)


def test_the_model_handed_over_is_left_as_it_was() -> None:
    own = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    x = torch.randn(3, 4)
    kept = x.clone()
    tracebench.run(own, (x,), "jit_trace", stages=("soundness",))
    assert torch.equal(x, kept)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())
    assert all(parameter.grad is None for parameter in own.parameters())


def test_stages_that_are_not_asked_for_do_not_run() -> None:
    record = tracebench.run(model(), (torch.randn(3, 4),), "fx", stages=("coverage",))
    assert (record.status, record.verdict, record.probes, record.throughput) == ("done", None, None, None)
    assert record.coverage is not None
    assert set(record.stages) == {"load", "reference", "capture", "coverage"}


def test_running_out_of_memory_is_no_refusal() -> None:
    class Hungry(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.empty(2**50) if torch.jit.is_tracing() else x + 1

    record = tracebench.run(Hungry(), (torch.ones(2),), "jit_trace", stages=())
    assert record.status == "oom"
    assert record.error is not None
    assert record.error.stage == "capture"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"frontend": "nope"}, "unknown front end"),
        ({"speed": 3}, "unknown option 'speed'"),
        ({"mode": "auto"}, "inference, training"),
        ({"device": "cuda:99"}, "no device"),
        ({"dtype": "int8"}, "unknown dtype"),
        ({"example_inputs": torch.ones(3)}, "tuple of positional arguments"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(RequestError, match=part):
        tracebench.run(**{"model": model(), "example_inputs": (torch.randn(3, 4),), **arguments})


def test_importing_the_package_does_not_import_torch() -> None:
    check = "import sys, tracebench; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
