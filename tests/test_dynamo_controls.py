"""What each control does under Dynamo: graphs, breaks, and ops inside them, on a model whose right answer is known."""

from __future__ import annotations

import contextlib
import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracebench
from tracebench.controls.orders import NO_ORDERS, Orders, bind
from tracebench.controls.vocabulary import CONTROLS, wishes
from tracebench.errors import RequestError
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Inputs

HERE = __name__


def helper(x: torch.Tensor) -> torch.Tensor:
    return inner(x).neg()


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def other(x: torch.Tensor) -> torch.Tensor:
    return x.abs().neg()


class Sub(nn.Module):
    """Two ops of its own, with one of a method's between them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.within(self.linear(x)) * self.scale

    def within(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sub = Sub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        x = self.sub(x)  # call of sub
        x = x.relu()
        x = helper(x)  # call of helper
        return x.exp()


SUB, HELPER = ["linear", "tanh", "mul"], ["cos", "neg"]
PLAIN = [["sin", *SUB, "relu", *HELPER, "exp"]]
#: The ops before, of, and after the piece when it is the submodule, and when it is the function.
AROUND_SUB = (["sin"], SUB, ["relu", *HELPER, "exp"])
AROUND_HELPER = (["sin", *SUB, "relu"], HELPER, ["exp"])
CALLED = {"sub": "call of sub", f"{HERE}:helper": "call of helper"}


@dataclass(frozen=True)
class Seen:
    graphs: list[list[str]]
    breaks: list[str | None]
    right: bool


@contextlib.contextmanager
def under(model: nn.Module, controls: dict[str, Any], *args: Any, **kwargs: Any) -> Iterator[Capture]:
    """Capture ``model`` with ``controls``, which are in force in the context."""
    front_end = make_front_end("dynamo")
    orders = orders_of(model, controls, args or None)
    with front_end.controlled(orders), torch.no_grad():
        yield front_end.capture(model, Inputs(args), make_executor("replay", for_verdict=False), orders=orders)


def orders_of(model: nn.Module, controls: dict[str, Any], args: tuple[Any, ...] | None = None) -> Orders:
    return (
        bind(wishes(controls, "dynamo"), model, None, None if args is None else (args, {})) if controls else NO_ORDERS
    )


def graphs(capture: Capture) -> list[list[str]]:
    found = []
    for graph in capture.events.graphs:
        assert isinstance(graph, torch.fx.GraphModule)
        nodes = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
        names = [str(getattr(node.target, "__name__", node.target)) for node in nodes]
        found.append([name for name in names if name != "getitem"])
    return found


def fresh() -> Model:
    torch.manual_seed(0)
    return Model().eval()


X = torch.linspace(-1, 1, 8).view(2, 4)


def see(controls: dict[str, Any], model: nn.Module | None = None) -> Seen:
    model = model or fresh()
    with torch.no_grad():
        expected = model(X)
    with under(model, controls) as capture:
        found = [capture.call(X.clone()) for _ in range(2)]
        return Seen(
            graphs(capture),
            [broken.location for broken in capture.events.graph_breaks],
            all(torch.allclose(one, expected) for one in found),
        )


def see_plain() -> None:
    assert see({}) == Seen(PLAIN, [], True)


_LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def at(marker: str) -> str:
    """Return how a record names the line that ends with this comment."""
    [line] = [number for number, text in enumerate(_LINES, 1) if text.endswith(f"  # {marker}")]
    return f"{__file__}:{line}"


NONSTRICT, LEAF, REGION = "flat_apply_capture", "invoke_leaf_function", "invoke_subgraph"
#: Control -> what becomes of the ops of the piece and of those around it: graphs as they are expected.
EFFECTS: dict[str, tuple[Any, Any]] = {
    # Its ops are in no graph, nor are those of what it calls.
    "disable": ([["sin"], AROUND_SUB[2]], [AROUND_HELPER[0], ["exp"]]),
    # What it calls is captured, each call by itself; but not a module of torch's, which Dynamo only inlines.
    "disable_only": ([["sin"], ["tanh"], AROUND_SUB[2]], [AROUND_HELPER[0], ["cos"], ["exp"]]),
    "skip_frame": ([["sin"], ["tanh"], AROUND_SUB[2]], [AROUND_HELPER[0], ["cos"], ["exp"]]),
    "graph_break_before": (list(AROUND_SUB), list(AROUND_HELPER)),
    "graph_break_after": (list(AROUND_SUB), list(AROUND_HELPER)),
    "opaque": ([["sin", NONSTRICT, *AROUND_SUB[2]]], [[*AROUND_HELPER[0], "helper", "exp"]]),
    "nonstrict_trace": ([["sin", NONSTRICT, *AROUND_SUB[2]]], [[*AROUND_HELPER[0], NONSTRICT, "exp"]]),
    "leaf_function": ([["sin", LEAF, *AROUND_SUB[2]]], [[*AROUND_HELPER[0], LEAF, "exp"]]),
    "assume_constant_result": ([["sin", *AROUND_SUB[2]]], [[*AROUND_HELPER[0], "exp"]]),
    # Nothing to look into that is not looked into, nor to break.
    "inline": (PLAIN, PLAIN),
    "error_on_graph_break": (PLAIN, PLAIN),
}
BREAKING = ("disable", "disable_only", "skip_frame", "graph_break_before", "graph_break_after")


@pytest.mark.parametrize("piece", list(CALLED))
@pytest.mark.parametrize("control", list(EFFECTS))
def test_what_becomes_of_the_ops(control: str, piece: str) -> None:
    found = see({control: [piece]})
    assert found.graphs == EFFECTS[control][piece != "sub"]
    assert found.right
    assert found.breaks == ([at(CALLED[piece])] if control in BREAKING else [])
    see_plain()


@pytest.mark.parametrize(
    ("control", "cut"),
    [
        ("graph_break_before", ([["sin"], [*SUB, *AROUND_SUB[2]]])),
        ("graph_break_after", [["sin", *SUB], AROUND_SUB[2]]),
    ],
)
def test_a_break_cuts_on_one_side_where_dynamo_nests_breaks(control: str, cut: list[list[str]]) -> None:
    found = see({control: ["sub"], "config": {"nested_graph_breaks": True}})
    assert (found.graphs, found.breaks, found.right) == (cut, [at("call of sub")], True)
    see_plain()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Sub(), Sub()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = helper(part(x))
        return x


@pytest.mark.parametrize(
    ("piece", "graph"),
    [("parts.*", [REGION, *HELPER, REGION, *HELPER]), (f"{HERE}:helper", [*SUB, REGION, *SUB, REGION])],
)
def test_nested_compile_region(piece: str, graph: list[str]) -> None:
    found = see({"nested_compile_region": [piece]}, Twice())
    assert (found.graphs, found.breaks, found.right) == ([graph], [], True)
    assert see({}, Twice()).graphs == [[*SUB, *HELPER, *SUB, *HELPER]]


@pytest.mark.parametrize("piece", list(CALLED))
def test_forbid_in_graph_raises(piece: str) -> None:
    with pytest.raises(AssertionError, match="forbidden callable"):
        see({"forbid_in_graph": [piece]})
    see_plain()


@pytest.mark.parametrize("piece", list(CALLED))
def test_error_on_graph_break_raises_at_a_break_in_it(piece: str) -> None:
    broken = {"graph_break_before": [f"{HERE}:inner", f"{HERE}:Sub.within"]}
    assert len(see(broken).breaks) > 1
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break_before="):
        see({**broken, "error_on_graph_break": [piece]})
    see_plain()


def test_a_break_elsewhere_is_no_error() -> None:
    found = see({"graph_break_before": [f"{HERE}:helper"], "error_on_graph_break": ["sub"]})
    assert found.graphs == list(AROUND_HELPER)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
def test_allow_and_disallow_in_graph() -> None:
    found = see({"allow_in_graph": [f"{HERE}:helper"]})
    assert (found.graphs, found.breaks, found.right) == ([[*AROUND_HELPER[0], "helper", "exp"]], [], True)
    see_plain()
    found = see({"disallow_in_graph": ["torch.sin"]}, Sine())
    assert (found.graphs, found.breaks) == ([["exp"], ["cos"]], [at("sine")])
    assert see({}, Sine()).graphs == [["exp", "sin", "cos"]]


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x.exp())  # sine
        return x.cos()


#: Dynamo skips what it takes for a function of the module random.
_SKIPPED: dict[str, Any] = {"__name__": HERE}
exec(compile("def skipped(x):\n    return x.cos().neg()\n", random.__file__, "exec"), _SKIPPED)
skipped = _SKIPPED["skipped"]


class Skipping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return skipped(x.sin()).exp()


class AroundSkipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sub = Skipping()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.sub(x)
        return y


@pytest.mark.parametrize("piece", ["sub", f"{HERE}:skipped"])
def test_inline_looks_into_what_dynamo_skips(piece: str) -> None:
    assert see({}, AroundSkipping()).graphs == [["sin"], ["exp"]]
    found = see({"inline": [piece]}, AroundSkipping())
    assert (found.graphs, found.breaks) == ([["sin", "cos", "neg", "exp"]], [])
    assert see({}, AroundSkipping()).graphs == [["sin"], ["exp"]]


def test_substitute_in_graph() -> None:
    # Another function that happens to do the same on these inputs is no fault.
    found = see({"substitute_in_graph": {f"{HERE}:helper": f"{HERE}:other"}})
    assert found.graphs == [[*AROUND_HELPER[0], "abs", "neg", "exp"]]
    assert not found.right
    # Twice, for Dynamo refuses a second substitute as long as the first is there.
    assert see({"substitute_in_graph": {f"{HERE}:helper": f"{HERE}:inner"}}).graphs == [
        [*AROUND_HELPER[0], "cos", "exp"]
    ]
    see_plain()


class Rows(nn.Module):
    def forward(self, x: torch.Tensor, *, y: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2 if y is None else x * 2 + y.sum()


def graphs_after(controls: dict[str, Any], sizes: tuple[int, ...], **kwargs: Any) -> list[int]:
    counts = []
    with under(Rows(), controls) as capture:
        for size in sizes:
            capture.call(torch.ones(size, 3), **kwargs)
            counts.append(len(capture.events.graphs))
    return counts


@pytest.mark.parametrize(
    ("control", "counts"),
    [
        ("mark_dynamic", [1, 1, 1]),
        ("maybe_mark_dynamic", [1, 1, 1]),
        ("mark_unbacked", [1, 1, 1]),
        ("mark_static", [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("argument", ["x", "0", 0])
def test_marks_on_inputs(control: str, counts: list[int], argument: str | int) -> None:
    assert graphs_after({control: {argument: [0]}}, (4, 5, 6)) == counts
    # Dynamo's own way: the second size makes it dynamic.
    assert graphs_after({}, (4, 5, 6)) == [1, 2, 2]


def test_an_argument_by_name_alone() -> None:
    sizes = []
    for controls in ({}, {"mark_dynamic": {"y": [0]}}):
        with under(Rows(), controls) as capture:
            for size in (4, 5):
                capture.call(torch.ones(2, 3), y=torch.ones(size))
            sizes.append(len(capture.events.graphs))
    assert sizes == [2, 1]


class Four(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 4 else x * 3


def test_a_size_that_is_marked_but_fixed_is_refused() -> None:
    record = tracebench.run(Four(), (torch.ones(4, 3),), controls={"mark_dynamic": {"x": [0]}}, stages=())
    assert record.verdict == "refused"
    assert record.error is not None
    assert "marked L['x'].size()[0] as dynamic" in record.error.message
    assert tracebench.run(Four(), (torch.ones(4, 3),), stages=()).verdict is None


def stance_counts(word: str) -> list[int | str]:
    counts: list[int | str] = []
    with under(Rows(), {"stance": word}) as capture:
        for size in (4, 4, 5, 6):
            if word == "fail_on_recompile" and size > 4:
                with pytest.raises(RuntimeError, match="stance is 'fail_on_recompile'"):
                    capture.call(torch.ones(size, 3))
                counts.append("raises")
                continue
            capture.call(torch.ones(size, 3))
            counts.append(len(capture.events.graphs))
    return counts


@pytest.mark.parametrize(
    ("word", "counts"),
    [
        ("force_eager", [1, 1, 1, 1]),
        ("eager_on_recompile", [1, 1, 1, 1]),
        ("fail_on_recompile", [1, 1, "raises", "raises"]),
        ("eager_then_compile", [0, 1, 2, 2]),
    ],
)
def test_stances(word: str, counts: list[int | str]) -> None:
    # Twice, for Dynamo counts calls over captures.
    assert stance_counts(word) == stance_counts(word) == counts
    assert graphs_after({}, (4, 4, 5, 6)) == [1, 1, 2, 2]


def test_under_force_eager_no_graph_is_entered() -> None:
    options: dict[str, Any] = {"stages": ("coverage",), "frontend": "dynamo"}
    forced = tracebench.run(Sine(), (X,), controls={"stance": "force_eager"}, **options)
    recompiling = tracebench.run(Sine(), (X,), controls={"stance": "eager_on_recompile"}, **options)
    assert forced.coverage is not None
    assert recompiling.coverage is not None
    if forced.coverage.ops is not None:
        assert (forced.coverage.ops, recompiling.coverage.ops) == (0.0, 1.0)


def test_eager_then_compile_is_covered() -> None:
    found = tracebench.run(Sine(), (X,), controls={"stance": "eager_then_compile"}, stages=("coverage",)).coverage
    assert found is not None
    assert found.ops is None or (found.ops, found.ops_total) == (1.0, 3)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@pytest.mark.parametrize("word", CONTROLS["guard_filter"].choices)
def test_guards_are_left_out(word: str) -> None:
    kept = []
    for controls in ({}, {"guard_filter": word}):
        model = Keeps()
        with under(model, controls) as capture:
            capture.call(X)
            model.scale = 3
            kept.append(torch.equal(capture.call(X), X * 3))
    # Such attributes are those of a module of one's own, and no globals.
    own = word in ("skip_guard_on_globals_unsafe", "skip_guard_on_inbuilt_nn_modules_unsafe")
    assert kept == [True, own]


def test_config_is_in_force_in_the_context_alone() -> None:
    before = torch._dynamo.config.automatic_dynamic_shapes
    controls = {"config": {"automatic_dynamic_shapes": not before}}
    assert graphs_after(controls, (4, 5, 6)) == [1, 2, 3]
    assert torch._dynamo.config.automatic_dynamic_shapes is before
    assert graphs_after({}, (4, 5, 6)) == [1, 2, 2]


@pytest.mark.parametrize(
    ("controls", "said"),
    [
        ({"allow_in_graph": ["sub"]}, "Use opaque or nonstrict_trace"),
        ({"disallow_in_graph": ["sub"]}, "Use disable, graph_break_before"),
        ({"disallow_in_graph": [f"{HERE}:helper"]}, "Use disable, graph_break_before"),
        ({"skip_frame": ["torch.sin"]}, "Use disable"),
        ({"disable": ["textwrap.TextWrapper"]}, "a class that is no nn.Module"),
        ({"substitute_in_graph": {"sub": f"{HERE}:other"}}, "about functions"),
        ({"substitute_in_graph": {f"{HERE}:helper": f"{HERE}:see"}}, "Signature mismatch"),
        ({"substitute_in_graph": {"torch.sin": f"{HERE}:other"}}, "Use a function that Dynamo looks into"),
        ({"substitute_in_graph": {f"{HERE}:helper": "nothing"}}, "no piece 'nothing'"),
        ({"mark_dynamic": {"z": [0]}}, "unknown argument in controls.mark_dynamic 'z'"),
        ({"mark_dynamic": {1: [0]}}, "unknown argument in controls.mark_dynamic '1'"),
        ({"mark_static": {"x": [2]}}, r"no such dimensions there, but (2, 4)"),
        ({"mark_static": {"x": ["a"]}}, "must be a list of dimensions"),
        ({"stance": "aot_eager_then_compile"}, "Use eager_then_compile"),
        ({"config": {"nested_graph_break": True}}, "Did you mean: nested_graph_breaks"),
        ({"config": {"nested_graph_breaks": "yes"}}, "give a bool"),
        ({"opak": ["sub"]}, "unknown control 'opak'"),
    ],
)
def test_what_cannot_be_expressed_is_refused(controls: dict[str, Any], said: str) -> None:
    assert textwrap  # a class of it is named above
    with pytest.raises(RequestError, match=re.escape(said)), under(fresh(), controls, X):
        pass
    see_plain()


@pytest.mark.parametrize(
    ("module", "name", "controls"),
    [
        ("torch._dynamo", "nonstrict_trace", {"nonstrict_trace": [f"{HERE}:helper"]}),
        ("torch._dynamo.decorators", "leaf_function", {"leaf_function": [f"{HERE}:helper"]}),
        ("torch.compiler", "skip_all_guards_unsafe", {"guard_filter": "skip_all_guards_unsafe"}),
    ],
)
def test_what_this_torch_lacks(
    module: str, name: str, controls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(f"{module}.{name}")
    with pytest.raises(RequestError, match=f"has no {module}.{name}, which torch"), under(fresh(), controls):
        pass


COUNTED = [0]


def counting(x: torch.Tensor) -> torch.Tensor:
    COUNTED[0] += 1
    return x * COUNTED[0]


def noise(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().sign()


class Impure(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return counting(x.sin()).exp()


class Depends(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return noise(x).exp()


class Changing(nn.Module):
    """Keeps count in Python, which guards see."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Substituted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper(x)


@pytest.mark.parametrize(
    ("model", "controls"),
    [
        (Impure, {"allow_in_graph": [f"{HERE}:counting"]}),
        (Impure, {"nonstrict_trace": [f"{HERE}:counting"]}),
        (Impure, {"leaf_function": [f"{HERE}:counting"]}),
        (Depends, {"assume_constant_result": [f"{HERE}:noise"]}),
        (Changing, {"guard_filter": "skip_all_guards_unsafe"}),
        (Substituted, {"substitute_in_graph": {f"{HERE}:helper": f"{HERE}:other"}}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_a_control_that_changes_what_is_computed_is_caught(model: type[nn.Module], controls: dict[str, Any]) -> None:
    options: dict[str, Any] = {"stages": ("soundness",), "blame_seconds": 0, "lifecycle_seconds": 0}
    COUNTED[0] = 0
    assert tracebench.run(model(), (X,), controls=controls, **options).verdict == "unsound"
    COUNTED[0] = 0
    assert tracebench.run(model(), (X,), **options).verdict in ("sound", "unsound" if model is Impure else "sound")


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(Sub(), Sub(), Sub())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.parts(x.sin())  # call of parts
        x = helper(x)  # second helper
        return helper(x)


def test_breaks_are_counted_where_the_model_has_them() -> None:
    controls = {"disable": ["parts.1"], "graph_break_after": [f"{HERE}:helper"]}
    record = tracebench.run(Loop(), (X,), controls=controls, stages=("coverage",))
    assert record.capture is not None
    found = {broken.location: broken.count for broken in record.capture.graph_breaks}
    assert set(found) >= {at("call of parts"), at("second helper")}
    assert all(location is not None and location.startswith(__file__) for location in found)
    if record.coverage is not None and record.coverage.ops is not None:
        assert found[at("call of parts")] == found[at("second helper")] == 1
