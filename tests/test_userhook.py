"""Trace hooks of users' own: the contract, what breaks it, and the worked examples."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import tracebench as package
from tracebench.case import Case, ModelSpec, key, labels
from tracebench.errors import RequestError
from tracebench.executors import Inductor, make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Inputs
from tracebench.frontends.userhook import LATE_GRAPHS, NO_GRAPHS, HookError
from tracebench.hooks import GraphBreak, Graphs, Traced
from tracebench.hookspec import HookSpec, own_hook
from tracebench.record import Record
from tracebench.report import facts

from .conftest import ROOT

EXAMPLES = sorted((ROOT / "models" / "hooks").glob("*.py"))
DEFAULTS = {"name": "hook", "hook": None, "on_guard_failure": "raise"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(x)).relu() + 1


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            y = y + 10
        return y.tanh()


def as_it_is(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return model.forward


def symbolic(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return fx.symbolic_trace(model)


def script(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.jit.trace(model, inputs, check_trace=False)


def in_parts(model: nn.Module, inputs: tuple[Any, ...]) -> Traced:
    """Two graphs with Python between them."""
    first, second = fx.symbolic_trace(model.inner), fx.symbolic_trace(nn.Sequential(model.norm, nn.ReLU()))

    def call(x: torch.Tensor) -> torch.Tensor:
        return second(first(x)) + 1

    return Traced(call, (first, second), (GraphBreak("on purpose", "here.py:1"),), ("two halves",))


def growing(model: nn.Module, inputs: tuple[Any, ...]) -> Traced:
    """A graph for each batch size, made when it is first met."""
    known: dict[int, nn.Module] = {}
    graphs = Graphs()

    def call(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] not in known:
            graphs.append(fx.symbolic_trace(model))
            known[x.shape[0]] = graphs[-1]
        return known[x.shape[0]](x)

    return Traced(call, graphs)


def nothing(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    pass


def nothing_told(model: nn.Module, inputs: tuple[Any, ...]) -> Traced:
    return Traced(3)  # type: ignore[arg-type]


def no_graph(model: nn.Module, inputs: tuple[Any, ...]) -> Traced:
    return Traced(model, (model,))


def one_graph(model: nn.Module, inputs: tuple[Any, ...]) -> Traced:
    return Traced(model, symbolic(model, inputs))


def never(model: nn.Module, inputs: tuple[Any, ...]) -> Traced:
    return Traced(model, Graphs())


def late(model: nn.Module, inputs: tuple[Any, ...]) -> Traced:
    graphs: list[nn.Module] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        graphs.append(fx.symbolic_trace(model))
        return graphs[-1](x)

    return Traced(call, graphs)


def failing(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    raise ValueError("not this model")


def fails_when_called(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    def call(*args: Any) -> Any:
        raise ValueError("not today")

    return call


def changing(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    with torch.no_grad():
        model.inner.weight.mul_(2)
    return as_it_is(model, inputs)


def with_kwargs(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    assert sorted(kwargs) == ["y"]
    return fx.symbolic_trace(model)


def only_model(model: nn.Module) -> Any:
    return model


def wants_more(model: nn.Module, inputs: tuple[Any, ...], level: int) -> Any:
    return model


def run(hook: Callable[..., Any], model: nn.Module | None = None, **options: Any) -> Record:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"stages": ("soundness", "coverage"), "blame_seconds": 0, "lifecycle_seconds": 0}
    return package.run(
        (model or Net()).eval(), (torch.randn(3, 4),), "hook", frontend_options={"hook": hook}, **settings | options
    )


def capture(hook: str | Callable[..., Any], model: nn.Module, *args: Any, executor: str = "replay") -> Capture:
    spec = hook if isinstance(hook, str) else f"{hook.__module__}:{hook.__name__}"
    runner = make_executor(executor, for_verdict=True)
    with torch.no_grad():
        return make_front_end("hook", {"hook": spec}).capture(model.eval(), Inputs(args), runner)


def test_a_plain_callable_is_sound_with_coverage_0_and_says_why() -> None:
    record = run(as_it_is)
    assert (record.verdict, record.capture.graphs, record.coverage.ops) == ("sound", 0, 0.0)
    assert NO_GRAPHS in record.notes
    assert record.case["frontend"] == "hook"
    assert record.case["frontend_options"] == {"hook": f"{__name__}:as_it_is"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("hook", [symbolic, script])
def test_a_returned_graph_is_marked_by_itself(hook: Callable[..., Any]) -> None:
    record = run(hook)
    assert (record.verdict, record.capture.graphs, record.coverage.ops) == ("sound", 1, 1.0)
    assert record.coverage.graphs_per_call == 1
    assert NO_GRAPHS not in record.notes


def test_graphs_breaks_and_notes_that_are_told_are_in_the_record() -> None:
    record = run(in_parts)
    assert record.capture.graphs == record.coverage.graphs_per_call == 2
    # The addition is left to Python: linear is two ops, normalisation and relu are one each.
    assert [op.op for op in record.coverage.outside] == ["aten.add.Tensor"]
    assert [(found.reason, found.location) for found in record.capture.graph_breaks] == [("on purpose", "here.py:1")]
    assert "two halves" in record.notes


def test_graphs_that_come_with_the_calls_are_seen_and_counted_as_compilations() -> None:
    record = run(growing)
    assert (record.verdict, record.capture.graphs, record.coverage.ops) == ("sound", 1, 1.0)
    made = capture(growing, Net(), torch.randn(3, 4))
    counts = []
    for size in (3, 3, 5):
        with torch.no_grad():
            made.call(torch.randn(size, 4))
        counts.append(made.events.compilations)
    assert counts == [1, 1, 2]
    assert len(made.events.graphs) == 2


def test_what_is_timed_is_what_the_hook_returned() -> None:
    made = capture(symbolic, Net(), torch.randn(3, 4))
    assert isinstance(made.call, fx.GraphModule)
    assert "forward" not in vars(made.call)


def test_graphs_added_to_a_plain_list_do_not_go_unsaid() -> None:
    record = run(late)
    assert (record.verdict, record.coverage.ops) == ("sound", 0.0)
    assert LATE_GRAPHS in record.notes


class Counting:
    """An executor that counts what it lowers and what of it runs."""

    name = "counting"

    def __init__(self) -> None:
        self.compilations = self.runs = 0

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        self.compilations += 1

        def call(*args: Any) -> Any:
            self.runs += 1
            return module(*args)

        return call


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize(("hook", "graphs"), [(symbolic, 1), (script, 1), (in_parts, 2), (growing, 1)])
def test_graphs_that_are_told_are_lowered_before_they_first_run(hook: Callable[..., Any], graphs: int) -> None:
    model, x, executor = Net().eval(), torch.randn(3, 4), Counting()
    with torch.no_grad():
        front_end = make_front_end("hook", {"hook": f"{__name__}:{hook.__name__}"})
        made = front_end.capture(model, Inputs((x,)), executor, marked=True)
        torch.testing.assert_close(made.call(x), model(x))
    assert executor.compilations == executor.runs == len(made.events.graphs) == graphs


class Compiling(Inductor):
    """Inductor's way of getting at graphs, without its compiler."""

    def lower(self, graph: nn.Module, example_inputs: Any) -> Callable[..., Any]:
        self.compilations += 1
        return graph.forward


@pytest.mark.parametrize("hook", [in_parts, growing])
def test_a_compiler_gets_the_graphs_as_they_were_made(hook: Callable[..., Any]) -> None:
    model, x, executor = Net().eval(), torch.randn(3, 4), Compiling()
    with torch.no_grad():
        front_end = make_front_end("hook", {"hook": f"{__name__}:{hook.__name__}"})
        made = front_end.capture(model, Inputs((x,)), executor)
        for _ in range(2):
            torch.testing.assert_close(made.call(x), model(x))
    assert executor.compilations == len(made.events.graphs)


def test_inductor_refuses_a_callable_without_graphs() -> None:
    with pytest.raises(HookError, match="executor=inductor has nothing to lower"):
        capture(as_it_is, Net(), torch.randn(3, 4), executor="inductor")
    made = capture(never, Net(), torch.randn(3, 4), executor="inductor")
    made.call(torch.randn(3, 4))
    made.events.refresh()
    assert made.events.notes == [NO_GRAPHS]


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (nothing, "returned NoneType, which cannot be called"),
        (nothing_told, "returned a Traced whose call is int"),
        (no_graph, "must hold torch.fx.graph_module.GraphModule or torch.jit._script.ScriptModule, not Net"),
        (one_graph, "must be a list or tuple, not"),
        (failing, "not this model"),
    ],
)
def test_a_hook_that_breaks_the_contract_is_refused_with_its_line(hook: Callable[..., Any], said: str) -> None:
    record = run(hook)
    assert (record.status, record.verdict) == ("done", "refused")
    assert record.error is not None
    assert said in record.error.message
    assert hook.__name__ in (record.error.traceback or "")
    first = hook.__code__.co_firstlineno
    file, _, line = str(record.error.user_location).rpartition(":")
    assert file == __file__
    assert first <= int(line) <= first + 1


def test_a_callable_that_raises_is_no_silent_difference() -> None:
    record = run(fails_when_called)
    assert record.verdict == "restricted"
    assert any("not today" in probe.detail for probe in record.probes or () if probe.outcome == "raise")


def test_a_changed_model_is_put_back_and_told() -> None:
    record = run(changing)
    assert record.verdict == "sound"
    assert any("capturing changed: state inner.weight" in note for note in record.notes)


class TwoArguments(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 2 * y


def test_keyword_arguments_go_to_a_hook_that_takes_them() -> None:
    inputs = {"args": (torch.ones(3),), "kwargs": {"y": torch.ones(3)}}
    options: dict[str, Any] = {"stages": ("soundness",), "blame_seconds": 0, "lifecycle_seconds": 0}
    record = package.run(TwoArguments(), inputs, "hook", frontend_options={"hook": with_kwargs}, **options)
    assert record.verdict == "sound"
    record = package.run(TwoArguments(), inputs, "hook", frontend_options={"hook": symbolic}, **options)
    assert record.verdict == "refused"
    assert record.error is not None
    assert "symbolic(model, inputs, kwargs)" in record.error.message


def test_the_line_of_the_model_is_not_the_hooks(tmp_path: Path) -> None:
    model, hook = tmp_path / "model.py", tmp_path / "hook.py"
    model.write_text("def call(function):\n    return function()\n", encoding="utf-8")
    hook.write_text(
        "from tracebench.hooks import model_line\n\ndef seen():\n    return model_line()\n", encoding="utf-8"
    )
    scope: dict[str, Any] = {}
    for path in (model, hook):
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    assert scope["call"](scope["seen"]) == f"{model}:2"


BAD = {
    "missing.py": "missing.py does not exist",
    "notes.txt:custom_trace": "there is no module 'notes.txt'",
    "two words": "names no hook",
    "./notes.txt": "is not a Python file",
    "broken.py": "broken.py:1 is no Python",
    "good.py:traec": "Did you mean: trace?",
    "good.py": "Valid choices: arity, more, trace.",
    "good.py:arity": "arity(model) takes fewer than the two arguments",
    "good.py:more": "more(model, inputs, level) wants more than (model, inputs): level",
    "no.such.module:trace": "there is no module 'no.such.module'",
    "good.py:2": "names no hook",
    "empty.py": "has no function 'custom_trace', nor any other",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "broken.py").write_text("def custom_trace(model, inputs)\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no Python", encoding="utf-8")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    good = """
        def trace(model, inputs): return model.forward
        def arity(model): return model
        def more(model, inputs, level): return model
    """
    (tmp_path / "good.py").write_text(textwrap.dedent(good), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", BAD)
def test_a_bad_request_says_what_is_wrong(given: str, folder: Path) -> None:
    with pytest.raises(RequestError) as caught:
        own_hook({"hook": given, "on_guard_failure": "raise"}, DEFAULTS, {})
    assert BAD[given] in str(caught.value)
    assert "frontend.hook=" in str(caught.value)


def test_what_only_the_built_in_hook_has_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="on_guard_failure=eager is a key of the built-in hook"):
        own_hook({"hook": "good.py:trace", "on_guard_failure": "eager"}, DEFAULTS, {})
    with pytest.raises(RequestError, match=r"controls\.disable is something that a hook of your own"):
        own_hook({"hook": "good.py:trace", "on_guard_failure": "raise"}, DEFAULTS, {"disable": ["inner"]})
    assert own_hook({"hook": "good.py:trace", "on_guard_failure": "raise"}, DEFAULTS, {}) == {"hook": "good.py:trace"}
    for options in (
        {"frontend_options": {"hook": as_it_is, "on_guard_failure": "eager"}},
        {"controls": {"disable": ["x"]}},
    ):
        with pytest.raises(RequestError, match=r"built-in hook|not told of"):
            package.run(Net(), (torch.ones(2, 4),), "hook", **{"frontend_options": {"hook": as_it_is}} | options)
    with pytest.raises(RequestError, match="top level"):
        run(lambda model, inputs: model)
    assert own_hook({"hook": None, "on_guard_failure": "eager"}, DEFAULTS, {}) == {"on_guard_failure": "eager"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("from functools import partial\ncustom_trace = partial(print)\n", None),
        ("custom_trace = 3\n", "custom_trace is a int, no function"),
        ("custom_trace = lambda model: model\n", "takes fewer than the two arguments"),
        ("from math import *\n", "Valid choices"),
        ("raise OSError('no licence')\n\ndef custom_trace(model, inputs): ...\n", "no licence"),
    ],
)
def test_what_only_importing_shows_is_seen_when_the_case_loads(body: str, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(body, encoding="utf-8")
    HookSpec.parse(str(path)).check()
    if said is None:
        assert make_front_end("hook", {"hook": str(path)}).name == "user hook"
        return
    with pytest.raises(RequestError) as caught:
        make_front_end("hook", {"hook": str(path)})
    assert said in str(caught.value)


def test_a_module_is_found_without_importing_it(folder: Path) -> None:
    (folder / "mypkg").mkdir()
    (folder / "mypkg" / "__init__.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    (folder / "mypkg" / "mod.py").write_text("def trace(model, inputs):\n    return model\n", encoding="utf-8")
    spec = HookSpec.parse("mypkg.mod:trace")
    spec.check()
    assert spec.file() == folder / "mypkg" / "mod.py"
    assert str(spec) == "mypkg.mod:trace"


def case(hook: str | None, model: Path) -> Case:
    return Case(ModelSpec("m", str(model)), "hook", {"hook": hook} if hook else {"on_guard_failure": "raise"})


def test_two_hooks_are_two_cases_and_an_edited_one_is_another(folder: Path) -> None:
    model = folder / "empty.py"
    (folder / "deeper").mkdir()
    (folder / "deeper" / "good.py").write_bytes((folder / "good.py").read_bytes())
    keys = [key(case(hook, model), {}) for hook in ("good.py:trace", "good.py:arity", None)]
    assert len(set(keys)) == 3
    # The folder makes no difference.
    assert key(case("deeper/good.py:trace", model), {}) == keys[0]
    (folder / "good.py").write_text("def trace(model, inputs): return model\n", encoding="utf-8")
    assert key(case("good.py:trace", model), {}) != keys[0]
    assert labels([case("good.py:trace", model), case("good.py:arity", model)]) == [
        "m hook replay hook=good.py:trace",
        "m hook replay hook=good.py:arity",
    ]


def test_reports_tell_hooks_apart_and_mix_no_means() -> None:
    def record(options: dict[str, Any]) -> Record:
        told = {"model": "m", "frontend": "hook", "frontend_options": options}
        return Record("k", "", 0.0, told, "done", "sound")

    records = [record({"hook": hook}) for hook in ("a/one.py", "b/one.py", "a/two.py", "pkg.mod:f")]
    records.append(record({"on_guard_failure": "raise"}))
    naming = facts.names(records)
    shown = [naming.column(found) for found in records]
    assert shown == ["hook(a/one.py)", "hook(b/one.py)", "hook(two)", "hook(pkg.mod:f)", "hook"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_examples_are_right_on_a_simple_model(path: Path, mode: str) -> None:
    torch.manual_seed(0)
    model = Net().train(mode == "training")
    record = package.run(
        model, (torch.randn(3, 4),), "hook", frontend_options={"hook": str(path)}, mode=mode, blame_seconds=0,
        lifecycle_seconds=0, stages=("soundness", "coverage"), probes=["same", "fresh"],
    )  # fmt: skip
    assert (record.verdict, record.error) == ("sound", None)
    assert (record.capture.graphs, record.coverage.ops) == (1, 1.0)
    # make_fx writes down an alias where a tensor is detached.
    assert {op.op for op in record.coverage.extra} <= {"aten.alias"}
    assert record.coverage.ops_missing == 0


@pytest.mark.parametrize(("name", "verdict"), [("make_fx", "refused"), ("function_mode", "unsound"), ("lazy", "sound")])
def test_the_examples_on_a_branch(name: str, verdict: str) -> None:
    path = ROOT / "models" / "hooks" / f"{name}.py"
    record = package.run(
        Branch(), (torch.ones(4),), "hook", other_inputs=[(-torch.ones(4),)], frontend_options={"hook": str(path)},
        blame_seconds=0, lifecycle_seconds=0, stages=("soundness", "coverage"),
    )  # fmt: skip
    assert record.verdict == verdict
    if name == "lazy":
        [found] = record.capture.graph_breaks
        # Outside is only what hands the truth to Python.
        line = Branch.forward.__code__.co_firstlineno + 2
        assert found.location == f"{__file__}:{line}"
        assert found.count == 1
        assert (record.coverage.graphs_per_call, record.coverage.ops) == (2, pytest.approx(5 / 6))


def test_a_sweep_over_hooks_and_a_bad_one(
    tracebench: Callable[..., subprocess.CompletedProcess[str]], model_file: Callable[..., Path], tmp_path: Path
) -> None:
    model = model_file("good")
    common = ["model=file", f"model.path={model}", "frontend=hook", "stages=[soundness]", "name=h"]
    common += ["soundness.lifecycle_seconds=0", "soundness.blame_seconds=0"]
    ran = tracebench("-m", *common, f"frontend.hook={EXAMPLES[0]},{EXAMPLES[2]}")
    assert ran.returncode == 0, ran.stderr
    assert "hook(function_mode)" in ran.stdout
    assert "hook(make_fx)" in ran.stdout
    found = [json.loads(path.read_text()) for path in (tmp_path / "results" / "h" / "records").glob("*.json")]
    assert sorted(record["case"]["frontend_options"]["hook"] for record in found) == sorted(
        map(str, (EXAMPLES[0], EXAMPLES[2]))
    )
    again = tracebench("-m", *common, f"frontend.hook={EXAMPLES[0]},gone.py")
    assert again.returncode == 2
    assert "the hook's file gone.py does not exist" in again.stderr
    assert "[1/" not in again.stdout
