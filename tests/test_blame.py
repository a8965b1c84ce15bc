"""The submodule at fault is found by name, and only by what it does on its own inputs."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tracebench.errors import CaptureError
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Events, Inputs
from tracebench.record import Blame
from tracebench.soundness import judge
from tracebench.soundness.blame import _record, find_blame
from tracebench.soundness.stage import CaptureFn
from tracebench.subject import Hooks, Subject

from .subjects import subject


def both_ways(model: nn.Module, x: torch.Tensor, **options: Any) -> Subject:
    """Other inputs are the example negated, so that a branch on the sign in an odd model goes both ways."""
    return subject(model, x, other_inputs=(Inputs((-x,)),), declares_inputs=True, **options)


def capturer(name: str, **options: Any) -> CaptureFn:
    """The capture of a front end as the soundness stage makes it."""
    front_end = make_front_end(name, options)

    def capture(model: nn.Module, inputs: Inputs) -> Capture:
        try:
            return front_end.capture(model, inputs, make_executor("replay", for_verdict=True))
        except Exception as error:
            raise CaptureError(f"{type(error).__name__}: {error}") from error

    return capture


def blame_on(name: str, tested: Subject, verdict: str, seconds: float = 60) -> Blame:
    capture = capturer(name)
    if verdict == "unsound":
        # What the tests are about holds of the whole model to begin with.
        with warnings.catch_warnings(record=True):
            assert judge(tested, capture).verdict == "unsound"
    return find_blame(tested, capture, verdict, "as told", lazy=name == "dynamo", seconds=seconds)


def line_of(module: type[nn.Module]) -> str:
    return f"{Path(__file__)}:{inspect.getsourcelines(module.forward)[1]}"


class Branch(nn.Module):
    """The fault: which way it goes depends on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before = nn.BatchNorm1d(4)
        self.inner = inner
        self.after = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.inner(self.before(x)))


class Three(nn.Module):
    """Three levels; the first block is right. What reaches the branch is odd in the input."""

    def __init__(self) -> None:
        super().__init__()
        self.right = Block(nn.Tanh())
        self.wrong = Block(nn.Sequential(nn.Identity(), Branch()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wrong(self.right(x))


class Between(nn.Module):
    """The fault is in its own forward, between two children that are right."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if y.sum() > 0:
            y = y * 2
        return self.second(y)


class Listed(nn.Module):
    """A list, which is not called itself, and a child that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = Branch()
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False), Branch()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Twice(nn.Module):
    """Calls one child twice, first with more rows, then by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(torch.cat([x, x])) + self.child(x=x, by=3.0).sum()


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return x * by if x.sum() > 0 else x


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_inner_module_is_named_with_class_and_line(mode: str) -> None:
    found = blame_on("jit_trace", both_ways(Three().eval(), torch.randn(3, 4), mode=mode), "unsound")
    assert (found.path, found.type, found.location) == ("wrong.inner.1", "Branch", line_of(Branch))
    assert (found.verdict, found.complete, found.note) == ("unsound", True, "")
    assert "output" in found.detail


def test_a_refusal_is_followed_past_layers_that_are_refused_only_by_themselves() -> None:
    # fx cannot look into a BatchNorm1d, which it need not do inside a model.
    found = blame_on("fx", both_ways(Three().eval(), torch.randn(3, 4)), "refused")
    assert (found.path, found.type, found.location) == ("wrong.inner.1", "Branch", line_of(Branch))
    assert found.detail.startswith("TraceError: symbolically traced variables")
    assert found.complete


def test_a_lazy_front_end_refuses_at_the_first_call() -> None:
    capture = capturer("dynamo", fullgraph=True)
    found = find_blame(both_ways(Three().eval(), torch.randn(3, 4)), capture, "refused", "", lazy=True, seconds=60)
    assert (found.path, found.type) == ("wrong.inner.1", "Branch")


@pytest.mark.parametrize(("name", "verdict"), [("jit_trace", "unsound"), ("fx", "refused")])
def test_a_fault_between_the_children_is_the_whole_models(name: str, verdict: str) -> None:
    found = blame_on(name, both_ways(Between().eval(), torch.randn(3, 4)), verdict)
    assert found == Blame("", "Between", line_of(Between), verdict, "as told")


def test_a_fault_that_only_other_inputs_show() -> None:
    positive, negative = torch.ones(2, 4), -3 * torch.ones(2, 4)
    model = nn.Sequential(nn.Identity(), Branch())
    found = blame_on(
        "jit_trace", subject(model, positive, other_inputs=(Inputs((negative,)),), declares_inputs=True), "unsound"
    )
    assert found.path == "1"


def test_a_fault_that_only_invalid_inputs_show() -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.min() < 0:
                raise ValueError("negative")
            return x + 1

    tested = subject(
        nn.Sequential(nn.Identity(), Checked()),
        torch.ones(2, 4),
        invalid_inputs=(Inputs((-torch.ones(2, 4),)),),
        declares_inputs=True,
    )
    found = blame_on("jit_trace", tested, "unsound")
    assert (found.path, found.type) == ("1", "Checked")
    assert "ValueError" in found.detail


def test_lists_are_looked_through_and_what_is_never_called_is_skipped() -> None:
    assert blame_on("jit_trace", both_ways(Listed(), torch.randn(3, 4)), "unsound").path == "layers.1"

    model = Between().eval()
    model.unused = Branch()
    found = blame_on("jit_trace", both_ways(model, torch.randn(3, 4)), "unsound")
    assert found.path == ""
    assert found.complete
    assert found.note == "submodules that could not be judged by themselves: unused (never called)"


def test_torchscript_inside_the_model_is_skipped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(4, 4))
    recorded = _record(subject(nn.Sequential(scripted, Branch()), torch.randn(3, 4)), "")
    assert list(recorded.subjects) == ["1"]
    assert recorded.skipped == {"0": "TorchScript takes no hooks"}


def test_a_module_called_twice_is_judged_on_its_first_inputs() -> None:
    tested = subject(Twice(), torch.rand(2, 4), other_inputs=(Inputs((-torch.rand(3, 4),)),), declares_inputs=True)
    child = _record(tested, "").subjects["child"]
    assert torch.equal(child.example.args[0], torch.cat([tested.example.args[0]] * 2))
    assert [inputs.args[0].shape[0] for inputs in child.other_inputs] == [6]
    assert not child.model._forward_pre_hooks
    assert blame_on("jit_trace", tested, "unsound").path == "child"


def test_keyword_arguments_are_recorded() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Scaled()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(x=x)

    assert blame_on("jit_trace", subject(Named(), torch.randn(2, 4)), "unsound").path == "child"


def test_inputs_are_as_they_were_at_the_call_with_what_they_share() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.child = Child()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.lin(x)
            return self.child(y, y[0])

    class Child(nn.Module):
        def forward(self, y: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return y.mul_(2) + row

    model, x = InPlace(), torch.randn(2, 4)
    child = _record(subject(model, x, mode="training"), "").subjects["child"]
    y, row = child.fresh_inputs().args
    assert torch.equal(y, model.lin(x))
    assert y.requires_grad
    assert y.is_leaf
    assert row.data_ptr() == y.data_ptr()


@pytest.mark.parametrize("verdict", ["unsound", "refused"])
def test_what_cannot_be_copied_or_run_alone_is_skipped_and_told(verdict: str) -> None:
    class Locked:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __deepcopy__(self, memo: Any) -> Locked:
            raise TypeError("no copies")

    class Uncopied(nn.Module):
        def forward(self, held: Locked) -> torch.Tensor:
            return held.x + 1

    class Needy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ready = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                raise RuntimeError("not ready")
            return x

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.uncopied = Uncopied()
            self.needy = Needy()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.needy.ready = True
            y = self.needy(self.uncopied(Locked(x)))
            return y * 2 if y.sum() > 0 else y

    found = blame_on("jit_trace" if verdict == "unsound" else "fx", both_ways(Root(), torch.full((3, 4), 2.0)), verdict)
    assert (found.path, found.complete) == ("", True)
    assert "uncopied (its inputs cannot be copied)" in found.note
    assert "needy (" in found.note


@pytest.mark.parametrize(("name", "verdict"), [("jit_trace", "unsound"), ("fx", "refused")])
def test_no_time_gives_the_whole_model_and_says_so(name: str, verdict: str) -> None:
    found = blame_on(name, both_ways(Three().eval(), torch.randn(3, 4)), verdict, seconds=0)
    assert (found.path, found.type, found.detail, found.complete) == ("", "Three", "as told", False)
    assert found.note == "the time limit ended the search at the whole model: none of its submodules was judged"


def test_time_used_up_on_the_way_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("tracebench.soundness.blame.time.monotonic", lambda: next(clock))
    found = blame_on("jit_trace", both_ways(Three().eval(), torch.randn(3, 4)), "unsound", seconds=6)
    assert (found.path, found.complete) == ("wrong", False)
    assert found.note == (
        "the time limit ended the search at wrong: 1 of its 3 submodules were judged, and show no such fault"
    )


@pytest.mark.parametrize(("name", "verdict"), [("jit_trace", "unsound"), ("fx", "refused")])
def test_the_subject_is_left_as_it_was(name: str, verdict: str) -> None:
    resets: list[nn.Module] = []
    model = Three().eval()
    tested = both_ways(model, torch.randn(3, 4), mode="training", hooks=Hooks(reset=resets.append))
    before, example = copy.deepcopy(model.state_dict()), tested.fresh_inputs()
    assert blame_on(name, tested, verdict).path == "wrong.inner.1"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(example.args[0], tested.example.args[0])
    assert not any(
        module._forward_pre_hooks or module._forward_hooks for module in (*model.modules(), *resets[-1].modules())
    )
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_unsound_and_refused_have_a_blame() -> None:
    def capture(model: nn.Module, inputs: Inputs) -> Capture:
        return Capture(call=model, module=model, events=Events())

    with pytest.raises(ValueError, match="unsound and refused"):
        find_blame(subject(Branch(), torch.ones(2)), capture, "sound", "", lazy=False, seconds=1)


def test_a_capture_function_may_raise_anything() -> None:
    def refusing(message: Callable[[nn.Module], str]) -> CaptureFn:
        def capture(model: nn.Module, inputs: Inputs) -> Capture:
            if any(isinstance(module, Branch) for module in model.modules()):
                raise NotImplementedError(message(model))
            return Capture(call=model, module=model, events=Events())

        return capture

    tested = both_ways(Three().eval(), torch.randn(3, 4))
    found = find_blame(tested, refusing(lambda model: "no branches"), "refused", "", lazy=False, seconds=60)
    assert (found.path, found.detail) == ("wrong.inner.1", "NotImplementedError: no branches")
