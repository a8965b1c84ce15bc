"""Captures follow, refuse or silently ignore what is done to the model after capture, and it is told which."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Events, Inputs
from tracebench.record import Probe
from tracebench.soundness.lifecycle import follow
from tracebench.subject import Hooks, Subject, devices

from .subjects import itself, subject

NAMES = ["train_eval_switch", "dtype_move", "device_move", "parameter_replaced", "hook_added"]


def by(front_end: str) -> Callable[[nn.Module, Inputs], Capture]:
    """What a front end makes of it."""

    def capture(model: nn.Module, inputs: Inputs) -> Capture:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make_front_end(front_end).capture(model, inputs, make_executor("replay", for_verdict=True))

    return capture


def dropping(mode: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3)).train(mode)


def followed(given: Subject, capture: Callable[[nn.Module, Inputs], Capture]) -> dict[str, Probe]:
    found = follow(given, capture)
    assert [probe.name for probe in found] == NAMES
    return {probe.name: probe for probe in found}


X = torch.linspace(-1, 1, 20).view(5, 4)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_eager_itself_follows_everything(mode: str) -> None:
    found = followed(subject(dropping(mode == "training"), X, mode=mode), itself)
    moved = found.pop("device_move")
    assert moved.outcome == ("n/a" if devices() == ["cpu"] else "match")
    assert [(probe.outcome, probe.detail) for probe in found.values()] == 4 * [("match", "")]


def test_a_trace_does_not_follow_a_mode_switch() -> None:
    for start in (False, True):
        switch = followed(subject(dropping(start), X), by("jit_trace"))["train_eval_switch"]
        assert switch.outcome == "diverge"
        assert switch.detail.startswith("goes on as before. output value: output: ")


def test_dynamo_follows_a_mode_switch_but_no_later_hook() -> None:
    found = followed(subject(dropping(), X), by("dynamo"))
    assert {name: probe.outcome for name, probe in found.items() if name != "device_move"} == {
        "train_eval_switch": "match",
        "dtype_move": "match",
        "parameter_replaced": "match",
        "hook_added": "diverge",
    }


def test_fx_shares_the_submodules() -> None:
    found = followed(subject(dropping(), X), by("fx"))
    assert {name: probe.outcome for name, probe in found.items() if name != "device_move"} == {
        "train_eval_switch": "match",
        "dtype_move": "match",
        "parameter_replaced": "match",
        "hook_added": "match",
    }


def test_what_a_trace_follows() -> None:
    found = followed(subject(dropping(), X), by("jit_trace"))
    assert found["dtype_move"].outcome == "match"
    assert found["parameter_replaced"].outcome == "match"
    assert found["hook_added"].outcome in ("diverge", "raise")


def test_where_nothing_can_be_seen() -> None:
    plain = followed(subject(nn.ReLU(), torch.tensor([1, -1])), itself)
    assert {probe.outcome for probe in plain.values()} == {"n/a"}
    assert plain["train_eval_switch"].detail.startswith("the change leaves what eager does as it was")
    assert plain["parameter_replaced"].detail == "the model has no floating-point parameters"
    assert plain["hook_added"].detail == "the model has no submodule with parameters"


def test_where_eager_or_the_capture_raises() -> None:
    class OneMode(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("for inference only")
            return super().forward(x)

    torch.manual_seed(0)
    given = subject(OneMode(4, 2).eval(), X)
    switch = followed(given, itself)["train_eval_switch"]
    assert switch.outcome == "n/a"
    assert "eager itself raises ValueError: for inference only" in switch.detail

    def narrow(model: nn.Module, inputs: Inputs) -> Capture:
        def call(x: torch.Tensor) -> Any:
            if x.dtype != torch.float32:
                raise TypeError("captured for float32")
            return model(x)

        return Capture(call=call, module=model, events=Events())

    move = followed(given, narrow)["dtype_move"]
    assert move.outcome == "raise"
    assert "TypeError: captured for float32" in move.detail


def test_a_capture_that_is_wrong_already_is_not_blamed_for_the_change() -> None:
    def wrong(model: nn.Module, inputs: Inputs) -> Capture:
        return Capture(call=lambda x: model(x) + 1, module=model, events=Events())

    found = followed(subject(dropping(), X), wrong)
    del found["device_move"]
    assert {probe.outcome for probe in found.values()} == {"n/a"}
    assert all("differs from eager before the change" in probe.detail for probe in found.values())


def test_the_subject_is_left_as_it_was() -> None:
    resets: list[nn.Module] = []
    given = subject(dropping(), X, hooks=Hooks(reset=resets.append))
    before = copy.deepcopy(given.model.state_dict())
    follow(given, itself)
    assert not given.model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in given.model.state_dict().items())
    assert not given.model[0]._forward_hooks  # type: ignore[index,union-attr]
    assert resets
