"""The hook's tape is never silently wrong: each guard, each refusal with its line, and nothing applied twice."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import random
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves as pytree_leaves

from tests import subjects
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Inputs
from tracebench.frontends.hook import GuardError, UntapeableError
from tracebench.observe import memory

X = torch.arange(6.0).reshape(2, 3) / 6 + 0.1
SETTINGS = {"gain": 1.0, "inner": {"shift": [0.0, 1.0]}}
FACTOR = 2.0
LOG: list[int] = []


def tape(model: nn.Module, *args: Any, on: str = "raise", **kwargs: Any) -> Capture:
    executor = make_executor("replay", for_verdict=True)
    return make_front_end("hook", {"on_guard_failure": on}).capture(model, Inputs(args, kwargs), executor)


def line_of(marker: str) -> int:
    return subjects.line_of(__file__, marker)


class Of(nn.Module):
    """A model of one function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


# Guards: what changes after the capture.


class Settings:
    gain = 1.0


def change_setting(model: Any) -> None:
    SETTINGS["gain"] = 3.0


def change_inner(model: Any) -> None:
    SETTINGS["inner"]["shift"][1] = 5.0  # type: ignore[index]


def change_global(model: Any) -> None:
    globals()["FACTOR"] = 5.0


def change_class(model: Any) -> None:
    Settings.gain = 2.0


def hook_everywhere(model: Any) -> None:
    torch.nn.modules.module.register_module_forward_hook(lambda *args: None)


def double_weight(model: Any) -> None:
    model.linear.weight.data = model.linear.weight.data.double()


def set_default(model: Any) -> None:
    torch.set_default_dtype(torch.float64)


def of_closure(gain: list[float]) -> Callable[..., Any]:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        return x * gain[0]

    return function


GAIN = [1.0]


@pytest.fixture(autouse=True)
def _put_back() -> Any:
    yield
    SETTINGS.update(gain=1.0, inner={"shift": [0.0, 1.0]})
    globals()["FACTOR"] = 2.0
    Settings.gain = 1.0
    GAIN[0] = 1.0
    torch.set_default_dtype(torch.float32)
    torch.nn.modules.module._global_forward_hooks.clear()


CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any], str]] = {
    "attribute": (
        lambda: Of(lambda m, x: x * m.gain, gain=1.0),
        lambda m: setattr(m, "gain", 2.0),
        r"attribute gain: 1\.0 on tape, 2\.0 now; read at .*test_hook\.py:\d+",
    ),
    "type of a number": (
        lambda: Of(lambda m, x: x * m.gain, gain=1),
        lambda m: setattr(m, "gain", 1.0),
        "attribute gain: 1 on tape, 1.0 now",
    ),
    "attribute by a computed name": (
        lambda: Of(lambda m, x: x * getattr(m, "ga" + "in"), gain=1.0),
        lambda m: setattr(m, "gain", 2.0),
        "attribute gain",
    ),
    "attribute of a submodule": (
        lambda: nn.Sequential(nn.LayerNorm(3)),
        lambda m: setattr(m[0], "eps", 0.5),
        "attribute 0.eps: 1e-05 on tape, 0.5 now",
    ),
    "attribute of a helper": (
        lambda: Of(lambda m, x: x * m.config.gain, config=SimpleNamespace(gain=1.0)),
        lambda m: setattr(m.config, "gain", 2.0),
        r"attribute config\['gain'\]: 1.0 on tape, 2.0 now",
    ),
    "attribute that hides the class's": (
        lambda: Classy(),  # noqa: PLW0108
        lambda m: setattr(m, "gain", 2.0),
        "attribute gain: nothing on tape, 2.0 now",
    ),
    "attribute that was not there": (
        lambda: Of(lambda m, x: x * 2 if hasattr(m, "extra") else x),
        lambda m: setattr(m, "extra", 1),
        "attribute extra: nothing on tape, 1 now",
    ),
    "item": (lambda: Of(lambda m, x: x * SETTINGS["gain"]), change_setting, r"global SETTINGS\['gain'\]: 1.0 on"),
    "inner item": (lambda: Of(lambda m, x: x * SETTINGS["inner"]["shift"][1]), change_inner, r"\['shift'\]\[1\]"),  # type: ignore[index]
    "global": (lambda: Of(lambda m, x: x * FACTOR), change_global, "global FACTOR: 2.0 on tape, 5.0 now"),
    "class attribute": (lambda: Of(lambda m, x: x * Settings.gain), change_class, r"gain|Settings"),
    "closure": (lambda: Of(of_closure(GAIN)), lambda m: GAIN.__setitem__(0, 2.0), "1.0 on tape, 2.0 now"),
    "default of a function": (
        lambda: Of(shifted),
        lambda m: setattr(shifted, "__defaults__", (1.0,)),
        "1.0 now",
    ),
    "mode": (lambda: Of(lambda m, x: F.dropout(x, 0.5, m.training)), lambda m: m.eval(), "training: True on tape"),
    "mode of a submodule": (lambda: nn.Sequential(nn.Dropout()), lambda m: m.eval(), "0.training: True"),
    "forward hook": (
        lambda: Of(lambda m, x: m.linear(x)),
        lambda m: m.linear.register_forward_hook(lambda *args: None),
        "linear._forward_hooks",
    ),
    "backward hook": (
        lambda: Of(lambda m, x: m.linear(x)),
        lambda m: m.linear.register_full_backward_hook(lambda *args: None),
        "linear._backward_hooks",
    ),
    "global hook": (lambda: Of(lambda m, x: m.linear(x)), hook_everywhere, "_global_forward_hooks"),
    "parameter replaced": (
        lambda: nn.Sequential(nn.Linear(3, 3)),
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(3, 3))),
        "attribute 0.weight: a Parameter on tape, a Parameter now",
    ),
    "buffer replaced": (
        lambda: nn.Sequential(nn.BatchNorm1d(3)).eval(),
        lambda m: setattr(m[0], "running_mean", torch.ones(3)),
        "attribute 0.running_mean",
    ),
    "submodule replaced": (
        lambda: nn.Sequential(nn.Linear(3, 3)),
        lambda m: m.__setitem__(0, nn.Linear(3, 3)),
        "a Linear on tape, a Linear now",
    ),
    "submodule added": (lambda: nn.Sequential(nn.ReLU()), lambda m: m.append(nn.ReLU()), "attribute _modules"),
    "method replaced": (
        lambda: nn.Sequential(nn.ReLU()),
        lambda m: setattr(m[0], "forward", lambda x: x),
        "attribute 0.forward: nothing on tape",
    ),
    "dtype of a parameter": (lambda: Of(lambda m, x: m.linear(x)), double_weight, "dtype of attribute linear.weight"),
    "requires_grad of a parameter": (
        lambda: Of(lambda m, x: m.linear(x)),
        lambda m: m.linear.weight.requires_grad_(False),
        "requires_grad of attribute linear.weight: True on tape, False now",
    ),
    "default dtype": (lambda: Of(lambda m, x: x + torch.tensor([0.5])), set_default, "default dtype"),
    "numpy array": (
        lambda: Of(lambda m, x: x * float(m.table[0]), table=np.ones(2)),
        lambda m: m.table.fill(2),
        "attribute table",
    ),
}


class Classy(nn.Module):
    gain = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


def shifted(model: Any, x: torch.Tensor, by: float = 0.0) -> torch.Tensor:
    return x + by


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_run_read_is_checked(name: str) -> None:
    make, change, said = CHANGES[name]
    model = make()
    made = tape(model, X)
    torch.manual_seed(0)
    expected = model(X)
    torch.manual_seed(0)
    assert torch.equal(made.call(X), expected)
    try:
        change(model)
        with pytest.raises(GuardError, match=said):
            made.call(X)
        # The same under eager: what the model makes of it now.
        torch.manual_seed(0)
        again = tape(make(), X, on="eager")
        torch.manual_seed(0)
        found = again.call(X)
        assert found.shape == X.shape
    finally:
        shifted.__defaults__ = (0.0,)


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ("dtype of a parameter",)])
def test_eager_runs_the_model_on_a_call_the_tape_does_not_hold_for(name: str) -> None:
    make, change, _ = CHANGES[name]
    model = make()
    made = tape(model, X, on="eager")
    try:
        change(model)
        torch.manual_seed(0)
        found = made.call(X)
        torch.manual_seed(0)
        assert torch.equal(found, model(X))
    finally:
        shifted.__defaults__ = (0.0,)


@pytest.mark.parametrize(
    "name", ["dtype of a parameter", "requires_grad of a parameter", "attribute", "buffer replaced"]
)
def test_what_a_run_read_is_checked_without_torchs_own_guards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "TensorGuards", None)
    test_what_a_run_read_is_checked(name)
    model = Of(lambda m, x: m.linear(x))
    made = tape(model, X)
    model.linear.weight.data = torch.ones(3, 3)
    assert torch.equal(made.call(X), model(X))
    model.linear.weight.data = torch.ones(4, 3)
    with pytest.raises(GuardError, match=r"shape of attribute linear.weight: \[3, 3\] on tape, \[4, 3\] now"):
        made.call(X)


def test_a_literal_that_the_run_changes_is_made_anew() -> None:
    model = Of(lambda m, x: x + torch.tensor([1.0, 2.0, 3.0]).mul_(2))
    made = tape(model, X)
    for _ in range(2):
        assert torch.equal(made.call(X), X + torch.tensor([2.0, 4.0, 6.0]))


def test_a_value_put_in_anew_is_no_change() -> None:
    model = Of(lambda m, x: x * m.gains[0] * SETTINGS["gain"], gains=[2.5])
    made = tape(model, X)
    model.gains = [float("2.5")]
    SETTINGS["gain"] = float("1.0")
    assert torch.equal(made.call(X), X * 2.5)
    model.gains[0] = 3.0
    with pytest.raises(GuardError, match="gains"):
        made.call(X)


def test_what_was_not_read_may_change() -> None:
    model = Of(lambda m, x: m.linear(x), note="a")
    made = tape(model, X)
    model.note = "b"
    with torch.no_grad():
        model.linear.weight.fill_(2.0)
    assert torch.equal(made.call(X), model(X))


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (torch.no_grad, "grad mode: True on tape, False now"),
        (torch.inference_mode, "grad mode|inference mode"),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "autocast on cpu: False on tape, True now"),
        (lambda: torch.device("meta"), "function modes"),
    ],
)
def test_settings_of_the_thread_are_checked(context: Callable[[], Any], said: str) -> None:
    made = tape(nn.Linear(3, 3), X)
    with context(), pytest.raises(GuardError, match=said):
        made.call(X)


def test_arguments_that_share_memory_are_told_from_those_that_do_not() -> None:
    def function(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * y

    made = tape(Of(function), torch.zeros(2), torch.zeros(2))
    base = torch.zeros(4)
    with pytest.raises(GuardError, match="share memory"):
        made.call(base[:2], base[1:3])
    assert torch.equal(base, torch.zeros(4))


# Guards within the tape: values that became Python.


def listed(model: Any, x: torch.Tensor, sizes: torch.Tensor) -> Any:
    return [part.sum() for part in x.split(sizes.tolist())]  # tolist


def test_a_list_of_values_is_checked_with_its_line() -> None:
    made = tape(Of(listed), X, torch.tensor([1, 1]))
    assert made.call(X, torch.tensor([1, 1]))[0] == X[0].sum()
    with pytest.raises(GuardError, match=rf"test_hook\.py:{line_of('tolist')}: \[1, 1\] on tape, \[2, 0\] now"):
        made.call(X, torch.tensor([2, 0]))


def test_what_c_code_reads_is_checked() -> None:
    made = tape(Of(lambda m, x, at: x.tensor_split(at)[0].sum()), X, torch.tensor([1]))
    with pytest.raises(GuardError, match=r"\[1\] on tape, \[2\] now"):
        made.call(X, torch.tensor([2]))


def root(model: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.linalg.cholesky(x)  # root
    except torch.linalg.LinAlgError:
        return x * 0


def test_an_op_that_failed_must_fail_again() -> None:
    made = tape(Of(root), -torch.eye(2))
    assert torch.equal(made.call(-2 * torch.eye(2)), torch.zeros(2, 2))
    with pytest.raises(GuardError, match=rf"LinAlgError at .*:{line_of('root')} on tape, no error now"):
        made.call(torch.eye(2))
    assert torch.equal(tape(Of(root), -torch.eye(2), on="eager").call(torch.eye(2)), torch.eye(2))


def test_a_bool_that_an_op_returns_is_checked() -> None:
    made = tape(Of(lambda m, x, y: x if torch.equal(x, y) else y), X, X.clone())
    with pytest.raises(GuardError, match="True on tape, False now"):
        made.call(X, X + 1)


class Counting(nn.Module):
    """Writes an argument, a buffer and the random state, then asks for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        view = x[:1]
        view.add_(1)
        noise = torch.rand(3)
        y = self.norm(x) + noise
        return y if x.sum() > 0 else y * 2


def test_a_guard_that_fails_late_leaves_nothing_changed() -> None:
    torch.manual_seed(0)
    model = Counting()
    made = tape(model, X.clone())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, randomness = -X - 5, torch.get_rng_state()
    with pytest.raises(GuardError, match="True on tape, False now"):
        made.call(x)
    assert torch.equal(x, -X - 5)
    assert torch.equal(randomness, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_eager_applies_nothing_twice() -> None:
    models = []
    outputs = []
    for taped in (True, False):
        torch.manual_seed(0)
        model = Counting()
        call = tape(model, X.clone(), on="eager").call if taped else model
        if not taped:
            model(X.clone())  # as capturing did
        torch.manual_seed(1)
        given = [X.clone(), -X - 5, X + 1, -X]
        outputs.append([call(x) for x in given] + given + [torch.get_rng_state()])
        models.append(model)
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["count"] == 5


def test_only_what_is_written_before_the_last_guard_is_kept_for_taking_back() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    caller: Any = tape(model, X).call
    [root] = caller.tapes.roots
    assert root.undo.state == root.undo.arguments == root.undo.random == ()
    assert len(root.undo_all.state) == 3


# Refusals, each with its line.


def prints(model: Any, x: torch.Tensor) -> torch.Tensor:
    print("x")  # prints
    return x


def asks_clock(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + time.perf_counter()  # asks_clock


def draws(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * random.uniform(0, 1)  # draws


def draws_numpy(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())  # draws_numpy


def counts(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.calls += 1  # counts
    return x


def advances(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + next(model.ticks)  # advances


def logs(model: Any, x: torch.Tensor) -> torch.Tensor:
    LOG.append(len(x))  # logs
    return x


def sets_global(model: Any, x: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1  # sets_global
    return x


CALLS = 0


class Tally:
    total = 0


def sets_class(model: Any, x: torch.Tensor) -> torch.Tensor:
    Tally.total += 1  # sets_class
    return x


def keeps_tensor(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.last = x * 2 if model.last is None else model.last + x  # keeps_tensor
    return x


def keeps_set(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.last = {x * 2}  # keeps_set
    return x


def numpy_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sort(x.detach().numpy()))  # numpy_of


def pointer(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    ctypes.memset(y.data_ptr(), 0, 4)  # pointer
    return y


def storage_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + len(x.untyped_storage())  # storage_of


def dlpack(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.detach()))  # dlpack


def draws_anew(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + random.Random().random()  # draws_anew


def writes_past(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.__dict__["kept"] = x * 2  # writes_past
    return x


def seeds(model: Any, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)  # seeds
    return x + torch.rand(3)


def hooks_gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.linear(x)
    y.register_hook(lambda gradient: gradient * 2)  # hooks_gradient
    return y


def runs_backward(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.linear(x).sum().backward()  # runs_backward
    return x


def reads_gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x if model.linear.weight.grad is None else x * 2  # reads_gradient


def assigns_data(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.linear.weight.data = torch.ones(3, 3)  # assigns_data
    return model.linear(x)


def changes_argument(model: Any, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    return x * options.pop("gain")


@functools.lru_cache(maxsize=1)
def cached(size: int) -> torch.Tensor:
    return torch.rand(size)  # cached_rows


def cached_rows(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + cached(3)


REFUSED: dict[Any, str] = {
    prints: "calls print",
    asks_clock: "asks the clock",
    draws: "random numbers",
    draws_numpy: "draws numpy's random numbers",
    counts: "changes attribute calls",
    advances: "changes attribute ticks",
    logs: "changes global LOG",
    sets_global: "changes global CALLS",
    sets_class: r"changes (global Tally|class attribute Tally\.total)",
    keeps_tensor: "changes attribute last",
    keeps_set: "changes attribute last",
    numpy_of: "memory out of torch",
    pointer: "memory out of torch",
    storage_of: "memory out of torch",
    dlpack: "memory out of torch",
    draws_anew: "random numbers",
    writes_past: "changes attribute __dict__",
    seeds: "sets a random generator",
    hooks_gradient: "has gradients watched",
    runs_backward: "computes gradients",
    reads_gradient: "reads a gradient",
    assigns_data: "assigns a tensor's data",
    cached_rows: "cache keeps tensors",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_cannot_be_repeated_is_refused_with_its_line(function: Callable[..., Any]) -> None:
    cached.cache_clear()
    model = Of(function, calls=0, ticks=itertools.count(), last=None)
    with pytest.raises(UntapeableError, match=rf"{REFUSED[function]}.*test_hook\.py:{line_of(function.__name__)}\b"):
        tape(model, X)


def chooses(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))  # chooses


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_operators_that_run_functions_are_refused_in_words() -> None:
    with pytest.raises(
        UntapeableError, match=rf"operator cond, .*test_hook\.py:{line_of('chooses')}; .*write it in Python"
    ):
        tape(Of(chooses), X)


def test_changed_containers_of_arguments_are_refused() -> None:
    with pytest.raises(UntapeableError, match="arguments' containers"):
        tape(Of(changes_argument), X, {"gain": 2.0})


def test_the_interpreter_is_left_as_it_was() -> None:
    before = sys.gettrace(), sys.getprofile(), nn.Module.__setattr__, torch.Tensor.requires_grad_, __import__
    for function in (prints, shifted):
        with contextlib.suppress(UntapeableError):
            tape(Of(function), X)
    after = sys.gettrace(), sys.getprofile(), nn.Module.__setattr__, torch.Tensor.requires_grad_, __import__
    assert before == after
    assert not {"__getattribute__"} & set(vars(nn.Module))
    assert not {"tolist", "data", "grad", "requires_grad"} & set(vars(torch.Tensor))


# What a tape holds well.


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.by = by
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return -ctx.by * gradients[0], None


APPLY = Reverse.apply


def reverses(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.linear(Reverse.apply(model.linear(x), 0.5))


def reverses_early(model: Any, x: torch.Tensor) -> torch.Tensor:
    return APPLY(model.linear(x), 0.5)  # reverses_early


def stops(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        target = model.linear(x)
    return model.linear(target) * target


def data(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.linear(x)
    return y * y.data + y.detach()


def casts(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model.linear(x)
        with torch.autocast("cpu", enabled=False):
            z = model.linear(y.float())
    return z * y


@pytest.mark.parametrize("function", [reverses, stops, data, casts], ids=lambda function: function.__name__)
def test_gradients_are_eagers(function: Callable[..., Any]) -> None:
    model = Of(function)
    made = tape(model, X)
    gradients = []
    for call in (model, made.call):
        model.zero_grad()
        call(X + 1).sum().backward()
        assert model.linear.weight.grad is not None
        gradients.append(model.linear.weight.grad.clone())
    assert torch.equal(*gradients)
    assert torch.is_grad_enabled()


def test_a_function_applied_by_a_name_taken_earlier_is_refused() -> None:
    with pytest.raises(UntapeableError, match=rf"taken earlier at .*:{line_of('reverses_early')}"):
        tape(Of(reverses_early), X)


def test_an_ambient_autocast_does_not_cast_twice() -> None:
    model = Of(casts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = tape(model, X)
        assert torch.equal(made.call(X), model(X))


def test_a_generator_that_the_model_holds_is_drawn_from() -> None:
    generator = torch.Generator()
    model = Of(lambda m, x: x + torch.rand(3, generator=m.source), source=generator)
    made = tape(model, X)
    generator.manual_seed(4)
    found = made.call(X)
    generator.manual_seed(4)
    assert torch.equal(found, model(X))


def test_what_the_first_call_keeps_is_there_for_the_tape() -> None:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        if model.table is None:
            model.table = torch.arange(3.0)
            model.shape = x.shape
        return x + model.table

    model = Of(function, table=None, shape=None)
    made = tape(model, X)
    assert torch.equal(made.call(X), X + torch.arange(3.0))
    model.table = None
    with pytest.raises(GuardError, match="attribute table"):
        made.call(X)


def test_writing_the_same_again_is_no_effect() -> None:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.rows = list(model.rows)
        model.shape = x.shape
        return x * len(model.rows)

    model = Of(function, rows=[1, 2], shape=None)
    made = tape(model, X)
    assert torch.equal(made.call(X), X * 2)
    assert model.shape == X.shape


def test_what_is_assigned_unread_is_assigned_anew() -> None:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.last = model.linear(x)
        model.rows = x.shape[0]
        return model.last * 2

    model = Of(function, last=None, rows=0)
    made = tape(model, X)
    model.last, model.rows = None, 7
    found = made.call(X + 1)
    assert model.rows == 2
    assert torch.equal(model.last, model.linear(X + 1))
    assert torch.equal(model.last * 2, found)


def test_containers_that_are_assigned_unread_are_made_anew() -> None:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.pyramid = [model.linear(x)]
        for _ in range(2):
            model.pyramid.append(model.pyramid[-1] * 2)
        model.sizes = {"rows": x.shape[0], "sums": (model.pyramid[0].sum(), None)}
        return sum(model.pyramid)

    model = Of(function, pyramid=[], sizes=None)
    made = tape(model, X)
    model.pyramid, model.sizes = [], None
    found = made.call(X + 1)
    kept, sizes = model.pyramid, model.sizes
    assert torch.equal(found, model(X + 1))
    assert kept is not model.pyramid
    assert all(map(torch.equal, kept, model.pyramid))
    assert len(kept) == 3
    assert (sizes["rows"], sizes["sums"][1]) == (2, None)
    assert torch.equal(sizes["sums"][0], model.sizes["sums"][0])


def test_an_argument_that_is_kept_is_kept_at_each_call() -> None:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        if model.table is None:
            model.table = torch.ones(3)  # so that the run is recorded twice
        model.last = x
        return x + model.table

    model = Of(function, table=None, last=None)
    made = tape(model, X)
    other = X + 1
    made.call(other)
    assert model.last is other


@pytest.mark.parametrize("where", ["result", "argument", "twice"])
def test_a_container_that_others_hold_is_refused(where: str) -> None:
    def function(model: Any, x: torch.Tensor, given: list[Any]) -> Any:
        made = [x + 1]
        model.kept = given if where == "argument" else made
        if where == "twice":
            model.last = made
        return made if where == "result" else x * 2

    with pytest.raises(UntapeableError, match=r"changes attribute (kept|last)"):
        tape(Of(function, kept=None, last=None), X, [X])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_torch_computes_at_each_call() -> None:
    model = nn.utils.weight_norm(nn.Linear(3, 3))
    made = tape(model, X)
    with torch.no_grad():
        model.weight_g.mul_(2)
    found = made.call(X)
    assert torch.equal(found, model(X))


def test_modules_made_in_the_forward_are_no_state() -> None:
    model = Of(lambda m, x: nn.Softmax(dim=-1)(nn.LeakyReLU(0.5)(m.linear(x))))
    assert torch.equal(tape(model, X).call(X), model(X))


def test_only_user_code_is_held_to_its_prints_and_clocks() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.LSTM(3, 4))
    assert tape(model, X).events.guards


def test_guards_are_counted_and_grow_with_what_is_read() -> None:
    small, large = (tape(nn.Sequential(*(nn.Linear(3, 3) for _ in range(n))), X).events.guards for n in (1, 20))
    assert small is not None
    assert large is not None
    assert 20 < small < 150
    per_module = (large - small) / 19
    assert 15 < per_module < 50


def _zoo() -> dict[str, Callable[[], tuple[nn.Module, Any]]]:
    vision = pytest.importorskip("torchvision").models
    image = torch.rand(1, 3, 64, 64)
    return {
        "resnet18": lambda: (vision.resnet18(), image),
        "mobilenet_v3_small": lambda: (vision.mobilenet_v3_small(), image),
        "swin_t": lambda: (vision.swin_t(), image),
        "vit_b_16": lambda: (vision.vit_b_16(image_size=64), image),
        "fasterrcnn": lambda: (
            vision.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
                weights=None, weights_backbone=None, min_size=64, max_size=64
            ),
            [image[0]],
        ),
        "encoder": lambda: (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            torch.rand(2, 5, 8),
        ),
    }


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "swin_t", "vit_b_16", "fasterrcnn", "encoder"])
def test_models_that_a_tape_holds_are_not_refused(name: str) -> None:
    torch.manual_seed(0)
    model, given = _zoo()[name]()
    model.eval()
    with torch.no_grad():
        made = tape(model, given)
        expected, found = model(given), made.call(given)
    pairs = zip(pytree_leaves(expected), pytree_leaves(found), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def makes_garbage(model: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        cycle: list[Any] = []
        cycle.append(cycle)
    return x * 2


def test_what_runs_as_garbage_is_collected_is_not_the_forwards() -> None:
    def looks_at_the_clock(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    before = gc.get_threshold()
    gc.callbacks.append(looks_at_the_clock)
    gc.set_threshold(5)
    try:
        capture = tape(Of(makes_garbage), torch.ones(2))
        assert gc.isenabled()
        assert torch.equal(capture.call(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(looks_at_the_clock)
