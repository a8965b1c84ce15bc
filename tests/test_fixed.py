"""What a capture fixed is told with its line, and nothing that it did not fix: on models whose answer is known."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import tracebench
from tests import records as make
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Events, Inputs
from tracebench.frontends.dynamo_fixed import graph_constants, parse_guards, spelled
from tracebench.frontends.fixed import is_of_sizes, merged
from tracebench.frontends.jit_fixed import is_number
from tracebench.record import SPECIALISATIONS, CaptureInfo, Constant, Record, Specialisation
from tracebench.report import facts
from tracebench.report.columns import COLUMNS
from tracebench.report.text import size
from tracebench.report.webpage import page

FRONT_ENDS = ("jit_trace", "fx", "hook", "dynamo")


def line(mark: str) -> str:
    """Return ``file:line`` of the one line of this file that ends in the comment ``mark``."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    [number] = [number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return f"{__file__}:{number}"


def events(name: str, model: nn.Module, *calls: tuple[Any, ...], **options: Any) -> Events:
    """Capture on the first of ``calls`` and make them all."""
    with torch.no_grad():
        executor = make_executor("replay", for_verdict=True)
        made = make_front_end(name, options).capture(model.eval(), Inputs(calls[0]), executor)
        for args in calls:
            made.call(*args)
    made.events.refresh()
    return made.events


def of_kinds(found: Events, *kinds: str) -> list[tuple[str, str, str | None, str | None, int]]:
    assert all(item.kind in SPECIALISATIONS for item in found.specialised)
    listed = found.specialised
    return [(item.kind, item.what, item.location, item.value, item.count) for item in listed if item.kind in kinds]


class Factory(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(3)  # noise
        ones = torch.ones(2, 3)  # ones
        return x + noise + ones


class Literal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        offset = torch.tensor([1.0, 2.0, 3.0])  # literal
        return x * 2 + offset + 0.5


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(3.0)
        self.register_buffer("kept", torch.ones(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.table  # plain
        return x * self.table + self.kept + self.weight


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


class OfBuffer(nn.Module):
    """What is computed of buffers alone, fx computes while it traces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = self.scale * 2  # doubled
        if self.scale.sum() > 0:  # buffer branch
            x = x + 1
        return x * doubled


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            if x.sum() > 0:  # branch
                x = x + 1
        return x


class Item(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.max().item()  # item


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(int(x.shape[0])):  # rows
            x = x + index
        for row in x:  # turns
            x = x + row
        return x


class Dropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)  # dropped


class Nothing(nn.Module):
    """A bare literal and a parameter: nothing that any capture fixes but sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x) * 2 + 1.5)


X = torch.ones(2, 3)


def told(found: Events) -> list[tuple[str, tuple[int, ...], int | None, str | None]]:
    return [(item.name, item.shape, item.bytes, item.location) for item in found.constants]


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_a_factorys_result_is_a_constant_under_fx_alone(name: str) -> None:
    found = events(name, Factory(), (X,), **({"check_trace": False} if name == "jit_trace" else {}))
    baked = [("_tensor_constant0", (3,), 12, line("noise")), ("_tensor_constant1", (2, 3), 24, line("ones"))]
    assert told(found) == (baked if name == "fx" else [])


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_a_literal_tensor_is_a_constant_and_plain_numbers_are_not(name: str) -> None:
    # Dynamo's graph makes it anew.
    names = {"jit_trace": "constant_0", "fx": "_tensor_constant0", "hook": "_constant_0"}
    expected = [] if name == "dynamo" else [(names[name], (3,), 12, line("literal"))]
    assert told(events(name, Literal(), (X,))) == expected


@pytest.mark.parametrize("name", ["jit_trace", "hook"])
def test_a_number_that_is_assigned_is_no_constant(name: str) -> None:
    class Assigns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.tensor(4.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[0] = 1.0
            x[:, 1] = 2
            x[x > 3] = 0.5
            x[1] = self.value  # assigned
            return x

    assert [found[1:] for found in told(events(name, Assigns(), (X,)))] == [((), 4, line("assigned"))]


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_a_plain_tensor_attribute_is_a_constant_once_and_state_is_not(name: str) -> None:
    # Dynamo takes it as an input of the graph.
    names = {"jit_trace": "inner.table", "fx": "inner.table", "hook": "_constant_0"}
    expected = [] if name == "dynamo" else [(names[name], (3,), 12, line("plain"))]
    assert told(events(name, Holder(), (X,))) == expected


def test_fx_computes_on_buffers_while_it_traces() -> None:
    found = events("fx", OfBuffer(), (X,))
    assert told(found) == [("_tensor_constant0", (3,), 12, line("doubled"))]
    assert of_kinds(found, "branch", "value") == [
        ("branch", "`self.scale.sum() > 0`: a Python boolean", line("buffer branch"), "True", 1)
    ]


@pytest.mark.parametrize(("name", "value"), [("jit_trace", None), ("hook", "True")])
def test_a_branch_is_told_with_its_line_and_how_often(name: str, value: str | None) -> None:
    found = events(name, Branch(), (X,))
    said = ("branch", "`x.sum() > 0`: a Python boolean", line("branch"), value, 3)
    assert of_kinds(found, "branch", "value", "size") == [said]


def test_the_tracers_warnings_are_still_given_with_their_lines() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        events("jit_trace", Branch(), (X,), check_trace=False)
    traced = [item for item in caught if issubclass(item.category, torch.jit.TracerWarning)]
    assert [f"{item.filename}:{item.lineno}" for item in traced] == [line("branch")] * 3
    assert warnings.showwarning is not None
    assert "tracebench" not in inspect.getmodule(warnings.showwarning).__name__  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "what", "value"), [("jit_trace", "number", None), ("hook", "float", "1.0")])
def test_an_item_is_a_value(name: str, what: str, value: str | None) -> None:
    found = events(name, Item(), (X,))
    said = ("value", f"`x.max().item()`: a Python {what}", line("item"), value, 1)
    assert of_kinds(found, "branch", "value", "size") == [said]


def test_a_tensor_that_is_printed_fixes_nothing_in_a_trace() -> None:
    class Prints(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            str(x)
            return x + 1

    assert events("jit_trace", Prints(), (X,), check_trace=False).specialised == []


def test_a_truth_that_is_no_boolean_is_a_branch_all_the_same() -> None:
    class Truth(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum():  # truth
                x = x + 1
            return x

    for name in ("jit_trace", "hook"):
        [said] = of_kinds(events(name, Truth(), (X,)), "branch", "value", "size")
        assert (said[0], said[2]) == ("branch", line("truth"))


def test_the_trace_fixes_sizes_within_and_the_hook_those_of_inputs() -> None:
    found = events("jit_trace", Rows(), (X,))
    assert of_kinds(found, "shape", "branch", "value", "size") == [
        ("size", "`int(x.shape[0])`: a Python integer", line("rows"), None, 1),
        ("size", "`for row in x`: its number of turns", line("turns"), None, 1),
    ]
    found = events("hook", Rows(), (X,))
    assert of_kinds(found, *SPECIALISATIONS) == [("shape", "argument 0", None, "[2, 3]", 1)]


def test_a_size_that_depends_on_values_is_told_by_the_hook() -> None:
    class Selected(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0] * 2  # selected

    found = events("hook", Selected(), (torch.tensor([1.0, -1.0, 2.0]),))
    [said] = of_kinds(found, "size")
    assert said[2:] == (line("selected"), "[2]", 1)


@pytest.mark.parametrize("name", ["jit_trace", "fx"])
def test_a_mode_that_is_an_argument_in_the_graph_is_told(name: str) -> None:
    found = events(name, Dropped(), (X,))
    what = {"jit_trace": "aten::dropout", "fx": "dropout"}[name]
    assert of_kinds(found, *SPECIALISATIONS) == [("training mode", what, line("dropped"), "eval", 1)]


def test_the_hook_tells_the_mode_of_an_op() -> None:
    found = events("hook", nn.BatchNorm1d(3), (X,))
    [said] = of_kinds(found, "training mode")
    assert said[3] == "eval"


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_where_nothing_is_fixed_nothing_is_told(name: str) -> None:
    found = events(name, Nothing(), (X,))
    assert found.constants == []
    kinds = {item.kind for item in found.specialised}
    # Dynamo guards what torch's own module reads, and does not leave sizes open before it has seen two.
    assert kinds <= ({"shape", "attribute"} if name == "dynamo" else {"shape"} if name == "hook" else set())
    assert not [item for item in found.specialised if item.kind == "attribute" and item.location]


def test_dynamo_leaves_a_size_open_that_it_has_seen_change() -> None:
    found = events("dynamo", Nothing(), (X,))
    assert of_kinds(found, "shape") == [("shape", "argument x", None, "[2, 3]", 1)]
    found = events("dynamo", Nothing(), (X,), (torch.ones(5, 3),))
    assert of_kinds(found, "shape") == [("shape", "argument x", None, "[*, 3]", 1)]
    found = events("dynamo", nn.ReLU(), (X,), (torch.ones(5, 3),), (torch.ones(5, 4),))
    assert of_kinds(found, "shape") == []


def test_dynamo_fixes_a_size_that_python_loops_over() -> None:
    class Loop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index in range(int(x.shape[0])):
                x = x + index
            return x

    found = events("dynamo", Loop(), (X,), (torch.ones(4, 3),))
    assert of_kinds(found, "shape") == [("shape", "argument x", None, "[2|4, 3]", 1)]


GAIN = 3


class Attributes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.5

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        if not self.training:  # training
            x = x * self.scale  # scale
        return x * GAIN * times  # gain


def test_dynamo_tells_the_python_values_that_it_guards() -> None:
    found = events("dynamo", Attributes(), (X, 7))
    told = of_kinds(found, "argument", "attribute", "training mode")
    assert sorted(told) == [
        ("argument", "times of forward", line("gain"), "7", 1),
        ("attribute", "GAIN", line("gain"), "3", 1),
        ("attribute", "self.scale", line("scale"), "2.5", 1),
        ("training mode", "modules", None, "eval", 1),
    ]


def test_dynamo_graphs_tensors_are_constants_unless_they_are_state() -> None:
    model = Plain()
    graph = fx.Graph()
    total = graph.placeholder("x")
    for name in ("table", "kept", "weight", "table"):
        total = graph.call_function(torch.add, (total, graph.get_attr(name)))
    next(
        node for node in graph.nodes if node.op == "get_attr"
    ).stack_trace = (
        f'  File "{__file__}", line 7, in forward\n    x\n  File "{torch.__file__}", line 9, in add\n    y\n'
    )
    graph.output(total)
    attributes = {"table": model.table, "kept": model.kept, "weight": model.weight}
    found = graph_constants(fx.GraphModule(attributes, graph), model)
    assert found == [Constant("table", (3,), "float32", f"{__file__}:7", 12)]


def test_guards_are_parsed() -> None:
    text = (
        "+- RootGuardManager\n"
        "| +- GuardManager: source=L['x'], accessed_by=FrameLocalsGuardAccessor(key='x', framelocals_idx=1)\n"
        "| | +- TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CPU, AutogradCPU), torch.float32, "
        "device=None, requires_grad=False, size=[None, 3], stride=[3, 1])  # x = x + 1  # a/b/net.py:12 in forward\n"
        "| | +- EQUALS_MATCH: L['self']._modules['bn'].mode == 'a == b'  # if self.mode:  # a/b/net.py:9 in f (HINT)\n"
        "| | +- NONE_MATCH: G['CHOICE'] is None                           # if CHOICE  # a/b/net.py:10 in f\n"
        "| | +- LENGTH_CHECK: len(L['rest']) == 1\n"
        "| | +- TYPE_MATCH: ___check_type_id(L['self'], 12345)\n"
    )
    found = [(guard.source, guard.value, guard.place, guard.sizes) for guard in parse_guards(text)]
    assert found == [
        ("L['x']", "", ("a/b/net.py", 12), (None, 3)),
        ("L['self']._modules['bn'].mode", "'a == b'", ("a/b/net.py", 9), None),
        ("G['CHOICE']", "None", ("a/b/net.py", 10), None),
        ("len(L['rest'])", "1", None, None),
    ]
    assert [spelled(source) for source, *_ in found] == ["x", "self.bn.mode", "CHOICE", "len(rest)"]
    assert spelled("G['__import_torchvision_dot_ops'].LIMIT") == "torchvision.ops.LIMIT"


@pytest.mark.parametrize(
    ("source", "sizes"),
    [
        ("int(x.shape[0])", True),
        ("int(x.size(0) // 2 + 1)", True),
        ("float(x.shape[-1]) * -2", True),
        ("int(x.sum())", False),
        ("int(x.shape[0] * x.max())", False),
        ("int(n)", False),
        ("3", False),
        ("for row in x", False),
    ],
)
def test_arithmetic_on_sizes_is_read_off_the_expression(source: str, sizes: bool) -> None:
    assert is_of_sizes(source) is sizes


def test_a_number_of_pythons_is_no_tensor() -> None:
    def constants(function: Any) -> list[bool]:
        graph = torch.jit.trace(function, torch.ones(3), check_trace=False).graph
        nodes = [node for node in graph.nodes() if node.kind() == "prim::Constant" and node.hasAttribute("value")]
        return [is_number(node.t("value")) for node in nodes if node.kindOf("value") == "t"]

    count, ratio = torch.tensor(3), torch.tensor(0.5, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit.*")
        assert constants(lambda x: x * 2 - 1.5) == [True, True]
        assert constants(lambda x: x * count - ratio) == [False, False]


def test_equal_entries_are_one_with_a_count() -> None:
    one, other = Specialisation("branch", "x", "a.py:1"), Specialisation("branch", "x", "a.py:2")
    assert merged([one, other, one]) == [Specialisation("branch", "x", "a.py:1", count=2), other]


def test_a_record_says_what_its_capture_fixed() -> None:
    record = tracebench.run(Branch(), (X,), "jit_trace", stages=("soundness",), probes=["use"], blame_seconds=0)
    assert record.capture is not None
    assert record.capture.specialised is not None
    assert [item.location for item in record.capture.specialised] == [line("branch")]
    assert any(warning.startswith("TracerWarning") for warning in record.capture.warnings)
    assert f"fixed: 3 branches at {line('branch')}" in facts.remarks(record)


def captured(constants: tuple[Constant, ...] = (), specialised: tuple[Specialisation, ...] | None = ()) -> Record:
    return make.record(capture=CaptureInfo(1.0, 1, constants=constants, specialised=specialised))


SHAPES = tuple(Specialisation("shape", f"argument {index}", value="[2]") for index in range(2))
BRANCH = Specialisation("branch", "`x > 0`: a Python boolean", "m.py:12", "True")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (captured(), None),
        (captured(specialised=None), None),
        (captured(specialised=SHAPES), None),
        (captured(specialised=(Specialisation("attribute", "self.k", "m.py:3", "2"),)), None),
        (captured(specialised=(*SHAPES, BRANCH)), "fixed: 1 branch at m.py:12, sizes of 2 inputs"),
        (
            captured(
                (Constant("a", (700,), "float32", "m.py:14", 2800), Constant("b", (75,), "float32", "m.py:20", 300))
            ),
            "baked in: 2 constants (3.1 kB; m.py:14, m.py:20)",
        ),
        (
            captured((Constant("a", (-1,), "float32", None, None),), SHAPES),
            "baked in: 1 constant; fixed: sizes of 2 inputs",
        ),
    ],
)
def test_one_remark_says_what_is_fixed_and_none_what_any_capture_fixes(record: Record, said: str | None) -> None:
    assert facts.remarks(record)[:1] == ([] if said is None else [said])


def test_columns_and_page_tell_of_it() -> None:
    record = captured((Constant("table", (2, 3), "float32", "m.py:14", 24),), (*SHAPES, BRANCH))
    assert [COLUMNS[name].get(record) for name in ("constants", "constant_bytes", "specialisations")] == [1, 24, 3]
    assert COLUMNS["specialisations"].get(captured(specialised=None)) is None
    assert COLUMNS["constant_bytes"].get(captured((Constant("a", (2,), "float32"),))) is None
    text = page([record], "t")
    for cell in ("table", "[2, 3]", "6", "24", "m.py:14", "branch", "`x &gt; 0`: a Python boolean", "True", "m.py:12"):
        assert f"<td>{cell}</td>" in text


def test_bytes_are_told_in_round_units() -> None:
    told = [size(count) for count in (0, 999, 1000, 3100, 99_999, 999_999, 25_600_000, 5 * 10**12)]
    assert told == ["0 B", "999 B", "1.0 kB", "3.1 kB", "100 kB", "1.0 MB", "25.6 MB", "5000 GB"]
