"""on_guard_failure=retrace: tapes form a tree that gives what eager does, each run of the model recorded once."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.subjects import line_of
from tracebench.controls.orders import NO_ORDERS, bind
from tracebench.controls.vocabulary import wishes
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Inputs
from tracebench.frontends.hook import GuardError

X = torch.arange(6.0).reshape(2, 3) / 6 + 0.1


class Of(nn.Module):
    """A model of one function of itself and its inputs, which counts its runs unseen."""

    def __init__(self, function: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("total", torch.zeros(3))
        for name, value in attributes.items():
            setattr(self, name, value)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def capture(model: nn.Module, *args: Any, on: str = "retrace", executor: str = "replay", **options: Any) -> Capture:
    orders = options.pop("orders", NO_ORDERS)
    front_end = make_front_end("hook", {"on_guard_failure": on, **options})
    return front_end.capture(model, Inputs(args), make_executor(executor, for_verdict=True), orders=orders)


class _Counted:
    """Stands for an object and counts how often its method is called."""

    def __init__(self, of: Any, method: str) -> None:
        self.of, self.method, self.calls = of, method, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += name == self.method
        return getattr(self.of, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.of(*args, **kwargs)


def runs_of(made: Capture) -> Callable[[], int]:
    """Return what tells how often a capture has run its model since: recorded or not."""
    caller: Any = made.call
    caller._recorder, caller._model = _Counted(caller._recorder, "take"), _Counted(caller._model, "")
    return lambda: int(caller._recorder.calls + caller._model.calls)


def branches(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.linear(x)
    if x.sum() > 0:  # branches
        return y.relu()
    return y * 2 + x if x.min() < -5 else y - 1


def test_each_branch_is_recorded_once_and_replayed_from_then_on() -> None:
    model = Of(branches)
    eager = copy.deepcopy(model)
    made = capture(model, X)
    count = runs_of(made)
    inputs = [X, -X, -X - 9, X + 1, -X - 1, X, -X - 8]
    for x in inputs:
        assert torch.equal(made.call(x), eager(x))
    assert count() == 2
    assert len(made.events.recompiles) == made.compilations() == 2
    assert f":{line_of(__file__, 'branches')}: True on tape, False now" in made.events.recompiles[0]
    made.events.refresh()
    assert made.events.tree is not None
    told = [line.strip().split(" at ")[0] for line in made.events.tree]
    assert told == [
        "forward (5 ops)",
        "x.sum() > 0",
        "True: 2 ops, return, 3 calls",
        "False: 3 ops",
        "x.min() < -5",
        "False: 1 op, return, 1 call",
        "True: 2 ops, return, 1 call",
    ]
    # Both answers are followed, so that nothing is fixed.
    assert not [item for item in made.events.specialised if item.kind == "branch"]
    assert len(made.events.graphs) == 5


def late(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Writes an argument, a buffer, running statistics and the random state before and after it asks."""
    model.total.add_(1)
    x.add_(0.5)
    y = F.dropout(model.norm(x), 0.5) * torch.rand(3)
    if x.sum() > 0:
        model.total.mul_(2)
        return y + torch.rand(3)
    x[:1].mul_(3)
    return y * model.total


@pytest.mark.parametrize("on", ["raise", "eager", "retrace"])
def test_nothing_is_applied_twice(on: str) -> None:
    model = Of(late)
    eager = copy.deepcopy(model)
    torch.manual_seed(0)
    eager(X.clone())
    torch.manual_seed(0)
    made = capture(model, X.clone(), on=on)
    for seed, x in enumerate((X, -X - 1, X, -X - 2, -X - 3, X)):
        own, theirs = x.clone(), x.clone()
        before = (model.total.clone(), model.norm.running_mean.clone())
        torch.manual_seed(seed)
        start = torch.get_rng_state()
        if on == "raise" and x.sum() < 0:
            with pytest.raises(GuardError):
                made.call(own)
            assert torch.equal(own, x)
            assert torch.equal(torch.get_rng_state(), start)
            assert torch.equal(model.total, before[0])
            assert torch.equal(model.norm.running_mean, before[1])
            continue
        found, state = made.call(own), torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(found, eager(theirs))
        assert torch.equal(state, torch.get_rng_state())
        assert torch.equal(own, theirs)
        assert all(map(torch.equal, model.state_dict().values(), eager.state_dict().values()))


def without_gradients(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.linear(x)
    with torch.no_grad():
        z = model.linear(y)
        if z.sum() > x.sum():
            z = z * 2
    return y * z if y.sum() > 0 else model.norm(y) - z


def test_gradients_are_eagers_in_every_branch() -> None:
    model = Of(without_gradients)
    eager = copy.deepcopy(model)
    eager(X)
    made = capture(model, X)
    for x in (X, -X, X * 30, -X * 30, X - 9, -X, X):
        results = []
        for one, call in ((model, made.call), (eager, eager)):
            one.zero_grad()
            output = call(x)
            output.sum().backward()
            results.append([output.detach(), *(p.grad for p in one.parameters() if p.grad is not None)])
        assert len(results[0]) == len(results[1])
        assert all(map(torch.equal, *results))
    assert torch.is_grad_enabled()


def test_an_argument_that_got_a_history_loses_it_when_the_model_runs_again() -> None:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        x.add_(model.linear.weight)
        return x * 1 if x.sum() > 0 else x * 2

    for on in ("eager", "retrace"):
        model = Of(function)
        made = capture(model, torch.full((3, 3), 9.0), on=on)
        made.call(torch.full((3, 3), -9.0)).sum().backward()
        assert model.linear.weight.grad is not None
        assert torch.equal(model.linear.weight.grad, torch.full((3, 3), 2.0))


def scaled(model: Any, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * model.gain, 0.5, model.training)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "gain", 3.0),
        lambda model: model.eval(),
        lambda model: torch.set_grad_enabled(False),
        lambda model: model.register_forward_hook(lambda module, args, output: output * 3),
    ],
)
def test_other_grounds_get_a_tape_of_their_own(change: Callable[[Any], Any]) -> None:
    model = Of(scaled, gain=2.0)
    made = capture(model, X)
    count = runs_of(made)
    try:
        for step in (lambda model: None, change, lambda model: None):
            step(model)
            for x in (X, torch.cat([X, X])):
                torch.manual_seed(0)
                found = made.call(x)
                torch.manual_seed(0)
                assert torch.equal(found, model(x))
    finally:
        torch.set_grad_enabled(True)
    # The batch twice as large, and both after the change.
    assert count() == 3
    made.events.refresh()
    shapes = [item for item in made.events.specialised if item.kind == "shape"]
    assert [item.value for item in shapes] == ["[4, 3] | [2, 3]"]


def test_grounds_that_return_find_their_tape_again() -> None:
    model = Of(scaled, gain=2.0)
    made = capture(model, X)
    count = runs_of(made)
    for _ in range(3):
        for mode in (True, False):
            model.train(mode)
            made.call(X)
    assert count() == 1


def loops(model: Any, x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 10:  # loops
        x = x * 2 + 1
    return x


def test_turns_of_a_loop_share_their_beginning() -> None:
    model = Of(loops)
    made = capture(model, X)
    count = runs_of(made)
    for x in (X, X * 9, X * 2, X - 0.4, X * 9, X * 2):
        assert torch.equal(made.call(x), loops(model, x))
    assert count() == len(made.events.recompiles) == 2
    made.events.refresh()
    where = f"x.sum() < 10 at {__file__}:{line_of(__file__, 'loops')}"
    assert made.events.tree == [
        "forward (3 ops)",
        f"  {where}",
        "    True: 5 ops",
        f"      {where}",
        "        False: 0 ops, return, 3 calls",
        "        True: 5 ops",
        f"          {where}: only False so far, 0 ops, return, 0 calls",
        "    False: 0 ops, return, 1 call",
    ]


def guarded(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.norm(x)
    try:
        y = torch.linalg.cholesky(x)
    except torch.linalg.LinAlgError:
        y = x * 0
    return y + model.norm(x)


@pytest.mark.parametrize("first", [1, -1])
def test_an_op_that_fails_for_some_values_is_a_branch(first: int) -> None:
    model, eye = Of(guarded), torch.eye(3)
    eager = copy.deepcopy(model)
    eager(first * eye)
    made = capture(model, first * eye)
    count = runs_of(made)
    for factor in (first, -first, first, -first, 2, -2):
        assert torch.equal(made.call(factor * eye), eager(factor * eye))
        assert torch.equal(model.norm.running_mean, eager.norm.running_mean)
    assert count() == 1


def asserts(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.total.add_(1)
    if x.sum() < 0:
        raise ValueError("negative")
    return x + model.total


def test_what_eager_raises_is_raised() -> None:
    model = Of(asserts)
    made = capture(model, X)
    with pytest.raises(ValueError, match="negative"):
        made.call(-X)
    assert torch.equal(model.total, torch.full((3,), 2.0))
    assert torch.equal(made.call(X), X + 3)


def prints(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.total.add_(1)
    if x.sum() < 0:
        print("negative")  # prints
    return x + model.total


def test_a_branch_that_no_tape_can_hold_is_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    model = Of(prints)
    made = capture(model, X)
    for expected in (2.0, 3.0):
        assert torch.equal(made.call(-X), -X + expected)
    assert torch.equal(made.call(X), X + 4)
    assert capsys.readouterr().out == "negative\n" * 2
    assert len(made.events.recompiles) == 1
    [note] = made.events.notes
    assert f"calls print at {__file__}:{line_of(__file__, 'prints')}" in note
    made.events.refresh()
    assert made.events.tree is not None
    assert "    True: the model itself, 1 call (the forward calls print" in made.events.tree[-1]


def keeps(model: Any, x: torch.Tensor) -> torch.Tensor:
    if x.sum() < 0:
        if model.table is None:
            model.table = torch.arange(3.0)
        return x + model.table
    return x


def test_what_a_branch_makes_once_is_there_at_its_second_run() -> None:
    model = Of(keeps, table=None)
    made = capture(model, X)
    count = runs_of(made)
    for _ in range(4):
        assert torch.equal(made.call(-X), -X + torch.arange(3.0))
    assert count() == 2


def test_a_run_that_goes_on_after_it_was_refused_is_eagers() -> None:
    kept = torch.arange(3.0)

    def function(model: Any, x: torch.Tensor) -> Any:
        if x.sum() < 0:
            y = x * 2
            z = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y))
            z.add_(kept)
            return y.sum(0), z.tolist()
        return x

    model = Of(function)
    with torch.no_grad():
        made = capture(model, X)
        for _ in range(2):
            found = made.call(-X)
            expected = function(model, -X)
            assert torch.equal(found[0], expected[0])
            assert found[1] == expected[1]


def test_beyond_the_limit_the_model_runs() -> None:
    model = Of(lambda m, x: x * int(x[0, 0]))
    made = capture(model, X, retrace_limit=3)
    count = runs_of(made)
    for value in (1.0, 2.0, 3.0, 4.0, 1.0, 3.0, 0.0):
        assert torch.equal(made.call(X + value), (X + value) * int(value))
    assert count() == 2 + 3
    assert len(made.events.recompiles) == 2
    [note] = made.events.notes
    assert "frontend.retrace_limit" in note


def test_two_runs_that_differ_unseen_are_never_mixed() -> None:
    # A flag of torch, which no check looks at.
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3
        return y if x.sum() > 0 else -y

    model = Of(function)
    made = capture(model, X)
    torch.use_deterministic_algorithms(True)
    try:
        for x in (-X, X):
            assert torch.equal(made.call(x), model(x))
    finally:
        torch.use_deterministic_algorithms(False)
    assert any("something unseen" in note for note in made.events.notes)
    assert torch.equal(made.call(X), X * 3)


# Regions.


class Noisy(nn.Module):
    """Python that draws and counts: left as it is, it must run once a call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        return self.norm(x) + torch.rand(3)


class WithRegion(nn.Module):
    def __init__(self, between: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.part = Noisy()
        self.linear = nn.Linear(3, 3)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(self.linear(x) + torch.rand(3))
        y = self.between(self, x, y)
        if y.sum() > x.sum() * 1e6:
            return y + torch.rand(3)
        return self.part(y * 2)


def disabled(model: nn.Module) -> Any:
    return bind(wishes({"disable": ["part"]}, "hook"), model)


@pytest.mark.parametrize("limit", [1, 16])
@pytest.mark.parametrize("gradients", [False, True])
def test_python_left_as_it_is_answers_as_it_did(limit: int, gradients: bool) -> None:
    model = WithRegion(lambda m, x, y: y * 1)
    eager = copy.deepcopy(model)
    x = torch.full((4, 3), 1.0)
    with torch.set_grad_enabled(gradients):
        torch.manual_seed(0)
        eager(x)
        torch.manual_seed(0)
        made = capture(model, x, orders=disabled(model), retrace_limit=limit)
        for seed, one in enumerate((x, -x, x, -x)):
            results = []
            for owner, call in ((model, made.call), (eager, eager)):
                owner.zero_grad()
                torch.manual_seed(seed)
                output = call(one)
                if gradients:
                    output.sum().backward()
                grads = [p.grad.clone() for p in owner.parameters() if p.grad is not None]
                results.append([output.detach(), torch.get_rng_state(), *grads])
            assert all(map(torch.equal, *results))
            assert all(map(torch.equal, model.state_dict().values(), eager.state_dict().values()))
            assert len(model.part.calls) == len(eager.part.calls)
    assert len(made.events.recompiles) == (limit > 1)


def write(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.add_(1)


@pytest.mark.parametrize("function", [write])
def test_python_whose_answer_was_changed_is_too_late(function: Any) -> None:
    model = WithRegion(function)
    x = torch.full((4, 3), 1.0)
    with torch.no_grad():
        made = capture(model, x, orders=disabled(model))
        with pytest.raises(GuardError, match=r"has run already .*part has returned was changed"):
            made.call(-x)


def test_python_that_a_compiler_took_in_is_too_late() -> None:
    model: Any = WithRegion(lambda m, x, y: y * 1)
    model.part.forward = lambda x: x.relu() + 1
    x = torch.ones(4, 3)
    with torch.no_grad():
        made = capture(model, x, executor="inductor", orders=disabled(model))
        torch.manual_seed(0)
        found = made.call(x)
        torch.manual_seed(0)
        torch.testing.assert_close(found, model(x))
        with pytest.raises(GuardError, match="the executor has compiled through it"):
            made.call(torch.full((4, 3), -1e9))


# Any program.


def program(depth: int = 0) -> st.SearchStrategy[Any]:
    plain = st.sampled_from(["linear", "norm", "dropout", "total", "argument", "literal", "mask", "list"])
    if depth == 2:
        return st.lists(plain, max_size=2)
    inner = program(depth + 1)
    forks = st.tuples(st.sampled_from(["x", "y"]), st.sampled_from([-2.0, 0.0, 2.0]), inner, inner)
    return st.lists(st.one_of(plain, forks, st.tuples(st.just("loop"), inner)), max_size=3)


def runs(model: Any, code: list[Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for part in code:
        match part:
            case "linear":
                y = model.linear(y)
            case "norm":
                y = model.norm(y)
            case "dropout":
                y = F.dropout(y, 0.5)
            case "total":
                model.total.add_(y.detach().mean(0))
            case "argument":
                x.add_(0.5)
            case "literal":
                y = y * torch.tensor([1.0, 2.0, 3.0]).mul_(2)
            case "mask":
                y = y + y[y > 0].sum()
            case "list":
                y = y + sum((x[0] > 0).tolist())
            case ("loop", inner):
                turns = 0
                while y.abs().max() > 1 and turns < 2:
                    y, turns = runs(model, inner, x, y) * 0.4, turns + 1
            case (name, limit, then, other):
                asked = x if name == "x" else y
                y = runs(model, then if asked.sum() > limit else other, x, y)
    return y


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(code=program(), seed=st.integers(0, 99))
def test_any_program_is_eager_and_ends_in_tapes_alone(code: list[Any], seed: int) -> None:
    torch.manual_seed(seed)
    model = Of(lambda m, x: runs(m, m.code, x, x), code=code)
    eager = copy.deepcopy(model)
    start = copy.deepcopy(model.state_dict())
    inputs = [torch.randn(4, 3).round(decimals=1) for _ in range(4)]
    with torch.no_grad():
        made = capture(model, inputs[0].clone(), retrace_limit=99)
        count = runs_of(made)
        for turn in range(2):
            before = count()
            for x in random.Random(seed + turn).sample(inputs, 4):
                own, theirs = x.clone(), x.clone()
                for one in (model, eager):
                    one.load_state_dict(start)
                torch.manual_seed(seed)
                found, state = made.call(own), torch.get_rng_state()
                torch.manual_seed(seed)
                torch.testing.assert_close(found, eager(theirs), rtol=0, atol=0, equal_nan=True)
                assert torch.equal(state, torch.get_rng_state())
                assert torch.equal(own, theirs)
                for a, b in zip(model.state_dict().values(), eager.state_dict().values(), strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert count() == before, "all branches were seen in the first turn"
    assert not made.events.notes


# Dynamo looks at .grad of what it is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_segments_are_compiled_too() -> None:
    model = Of(without_gradients)
    eager = copy.deepcopy(model)
    eager(X)
    made = capture(model, X, executor="inductor")
    for x in (X, X * 30, X):
        results = []
        for one, call in ((model, made.call), (eager, eager)):
            one.zero_grad()
            output = call(x)
            output.sum().backward()
            results.append((output.detach(), one.linear.weight.grad, one.norm.running_mean))
        torch.testing.assert_close(*results)
    assert torch.is_grad_enabled()
