"""Front ends capture what they are known to capture, and say what they must say."""

from __future__ import annotations

import logging.config

import pytest
import torch
from torch import nn

from tracebench.errors import RequestError
from tracebench.executors import make_executor
from tracebench.frontends import FRONT_ENDS, make_front_end
from tracebench.frontends.base import Capture, Inputs, describe_constant
from tracebench.frontends.dynamo import parse_graph_break
from tracebench.frontends.hook import GuardError, UntapeableError

CAPTURING = [name for name in FRONT_ENDS if name != "eager"]


def capture(name: str, model: nn.Module, *args: object, executor: str = "replay", **options: object) -> Capture:
    with torch.no_grad():
        return make_front_end(name, options).capture(model, Inputs(args), make_executor(executor, for_verdict=True))


def tape(model: nn.Module, *args: object) -> Capture:
    """Return the hook's capture in the grad mode of the caller, which a tape holds for."""
    return make_front_end("hook", {}).capture(model, Inputs(args), make_executor("replay", for_verdict=True))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        return {"features": y, "scores": self.head(y)}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_replay_equals_eager_to_the_bit(name: str, net: Net) -> None:
    x = torch.randn(2, 3, 6, 6)
    options = {"strict": False} if name == "jit_trace" else {}
    made = capture(name, net, torch.randn(2, 3, 6, 6), **options)
    with torch.no_grad():
        expected, found = net(x), made.call(x)
    assert list(found) == list(expected)
    for key in expected:
        assert torch.equal(found[key], expected[key])


@pytest.mark.parametrize("name", CAPTURING)
def test_one_graph_of_all_ops(name: str, net: Net) -> None:
    options = {"strict": False} if name == "jit_trace" else {}
    made = capture(name, net, torch.randn(2, 3, 6, 6), **options)
    with torch.no_grad():
        made.call(torch.randn(2, 3, 6, 6))
    assert len(made.events.graph_nodes) == 1
    assert made.events.graph_nodes[0] >= 5
    assert made.events.graph_breaks == []


def test_eager_captures_nothing(net: Net) -> None:
    made = capture("eager", net, torch.randn(2, 3, 6, 6))
    assert made.call is net
    assert made.events.graph_nodes == []


def test_jit_refuses_a_dict_output_in_strict_mode(net: Net) -> None:
    with pytest.raises(RuntimeError, match="strict"):
        capture("jit_trace", net, torch.randn(2, 3, 6, 6))


@pytest.mark.parametrize("name", CAPTURING)
def test_buffers_and_parameters_are_the_models_own(name: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    made = capture(name, model, torch.randn(4, 3), **({"check_trace": False} if name == "jit_trace" else {}))
    before = model[1].running_mean.clone()
    with torch.no_grad():
        made.call(torch.randn(4, 3) + 5)
        assert not torch.equal(model[1].running_mean, before)
        x = torch.randn(4, 3)
        first = made.call(x)
        model[0].weight.zero_()
        assert not torch.equal(made.call(x), first)


def test_unknown_front_end_names_close_matches() -> None:
    with pytest.raises(RequestError, match="dynamo") as caught:
        make_front_end("dinamo")
    assert "Did you mean: dynamo?" in str(caught.value)


class BreakAt(nn.Module):
    """Breaks the graph at a chosen place, by a call that Dynamo cannot take."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.place == "start":
            torch._dynamo.graph_break()
        x = x + 1
        if self.place == "middle":
            torch._dynamo.graph_break()
        x = x * 2
        if self.place == "end":
            torch._dynamo.graph_break()
        return x


@pytest.mark.parametrize(("place", "graphs"), [("start", 1), ("middle", 2), ("end", 1), ("nowhere", 1)])
def test_dynamo_reports_each_break_with_its_line(place: str, graphs: int) -> None:
    made = capture("dynamo", BreakAt(place), torch.randn(3))
    made.call(torch.randn(3))
    assert len(made.events.graph_nodes) == graphs
    locations = [found.location for found in made.events.graph_breaks]
    assert len(locations) == (0 if place == "nowhere" else 1)
    assert all(location is not None and "test_frontends.py:" in location for location in locations)


def test_dynamo_reports_breaks_also_after_logging_was_set_up_anew() -> None:
    capture("dynamo", BreakAt("middle"), torch.randn(3)).call(torch.randn(3))
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    made = capture("dynamo", BreakAt("middle"), torch.randn(3))
    made.call(torch.randn(3))
    assert len(made.events.graph_breaks) == 1


class BranchInLoop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + 1
            if x.sum() > 100:
                break
        return x


def test_dynamo_reports_a_break_that_leaves_no_graph() -> None:
    made = capture("dynamo", BranchInLoop(), torch.randn(3))
    made.call(torch.randn(3))
    assert made.events.graph_nodes == []
    [found] = made.events.graph_breaks
    assert "Data-dependent branching" in found.reason
    assert found.location is not None
    assert "test_frontends.py:" in found.location


def test_dynamo_counts_recompiles_with_their_guard() -> None:
    made = capture("dynamo", nn.Linear(3, 3), torch.randn(2, 3))
    made.call(torch.randn(2, 3))
    assert made.compilations() == 0, "only the stage adds the executor's"
    assert made.events.compilations == 1
    made.call(torch.randn(5, 3))
    made.events.refresh()
    assert made.events.compilations == 2
    [reason] = made.events.recompiles
    assert "size mismatch at index 0. expected 2, actual 5" in reason
    assert made.events.guards is not None
    assert made.events.guards > 0


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor


def test_dynamo_names_the_guard_that_failed_each_time() -> None:
    made = capture("dynamo", Scaled(), torch.ones(2), 1, dynamic=False)
    for factor in (1, 2, 3):
        made.call(torch.ones(2), factor)
    made.events.refresh()
    assert [reason.split(": ")[1].split(" ")[:3] for reason in made.events.recompiles] == [
        ["factor", "==", "1"],
        ["factor", "==", "2"],
    ]


class Relu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_an_op_that_is_disallowed_at_the_start_is_one_break() -> None:
    torch._dynamo.disallow_in_graph(torch.relu)
    try:
        made = capture("dynamo", Relu(), torch.ones(2))
        made.call(torch.ones(2))
    finally:
        torch._dynamo.allow_in_graph(torch.relu)
    assert len(made.events.graph_breaks) == 1
    assert len(made.events.graph_nodes) == 1


def test_dynamo_captures_do_not_mix_their_events() -> None:
    first = capture("dynamo", BreakAt("middle"), torch.randn(3))
    first.call(torch.randn(3))
    second = capture("dynamo", BreakAt("nowhere"), torch.randn(3))
    second.call(torch.randn(3))
    assert len(first.events.graph_breaks) == 1
    assert second.events.graph_breaks == []


def test_dynamo_fullgraph_refuses_at_the_first_call() -> None:
    made = capture("dynamo", BreakAt("middle"), torch.randn(3), fullgraph=True)
    with pytest.raises(Exception, match="graph_break"):
        made.call(torch.randn(3))


def test_graph_break_messages_are_parsed() -> None:
    message = (
        "Graph break in user code at /home/me/net.py:12\nGraph Break Reason: Encountered graph break when attempting "
        "to trace CALL: a function call, e.g. f(x, y):\n\nCall to `torch._dynamo.graph_break()`\n  Explanation: ...\n"
        "  Hint: Remove the call.\n"
        "For more details about this graph break, please visit: https://site/gb/gb0025.html\n"
        "graph break in loop\n  Developer debug context: frame skipped: forward (/home/me/net.py line 7)\n"
    )
    found = parse_graph_break(message)
    assert found is not None
    assert (found.location, found.reason) == ("/home/me/net.py:12", "Call to `torch._dynamo.graph_break()`")
    assert (found.count, found.reports) == (None, 1)
    assert found.hints == ("Remove the call.",)
    assert found.links == ("https://site/gb/gb0025.html",)
    assert found.skipped == "forward /home/me/net.py:7"
    assert parse_graph_break("something else") is None


class Value(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def test_hook_raises_where_a_value_took_another_branch() -> None:
    made = tape(Value(), torch.ones(3))
    assert torch.equal(made.call(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(GuardError, match=r"test_frontends\.py:\d+: True on tape, False now"):
        made.call(-torch.ones(3))


class Selected(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum() * 1.0


def test_hook_raises_where_a_size_depends_on_values() -> None:
    made = tape(Selected(), torch.tensor([1.0, -1.0]))
    assert made.call(torch.tensor([3.0, -1.0])) == 3
    with pytest.raises(GuardError, match="a size depends on values"):
        made.call(torch.tensor([3.0, 1.0]))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (torch.randn(3, 4), r"shape \[2, 4\] on tape, \[3, 4\] now"),
        (torch.randn(2, 4).double(), "dtype torch.float32 on tape, torch.float64 now"),
        (torch.randn(4, 2).t(), r"stride \[4, 1\] on tape, \[1, 2\] now"),
        (torch.randn(2, 4, requires_grad=True), "requires_grad False on tape, True now"),
        (3, "argument 0"),
    ],
)
def test_hook_raises_on_another_signature(other: object, said: str) -> None:
    made = tape(nn.Linear(4, 4), torch.randn(2, 4))
    with pytest.raises(GuardError, match=said):
        made.call(other)


class Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(1) + y


def test_hook_raises_when_arguments_are_the_same_tensor_only_now() -> None:
    made = tape(Add(), torch.zeros(2), torch.zeros(2))
    assert torch.equal(made.call(torch.ones(2), torch.ones(2)), torch.full((2,), 3.0))
    same = torch.ones(2)
    with pytest.raises(GuardError, match="same tensor"):
        made.call(same, same)


class Literal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        offset = torch.tensor([1.0, 2.0])
        offset += x
        return offset


def test_hook_replays_a_literal_anew_and_reports_it() -> None:
    made = tape(Literal(), torch.zeros(2))
    for _ in range(2):
        assert torch.equal(made.call(torch.ones(2)), torch.tensor([2.0, 3.0]))
    [constant] = made.events.constants
    assert constant.shape == (2,)
    assert constant.location is not None
    assert "test_frontends.py:" in constant.location


def test_a_ragged_constant_is_described() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert describe_constant("c", ragged).shape == (2, -1)
    assert describe_constant("c", torch.ones(2, 3)).shape == (2, 3)


class Odd(nn.Module):
    def forward(self, x: torch.Tensor) -> object:
        return {x}


def test_hook_refuses_an_output_it_would_bake() -> None:
    with pytest.raises(UntapeableError, match="type set"):
        tape(Odd(), torch.zeros(2))


def test_hook_tapes_random_ops_as_ops() -> None:
    made = tape(nn.Dropout(0.5).train(), torch.ones(64))
    torch.manual_seed(1)
    found = made.call(torch.ones(64))
    torch.manual_seed(1)
    assert torch.equal(found, nn.Dropout(0.5).train()(torch.ones(64)))


class Split(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        first, second = x.chunk(2)
        first.mul_(2)
        return [second, x.sum(), first]


def test_hook_keeps_views_and_input_mutation() -> None:
    x, y = torch.arange(4.0), torch.arange(4.0)
    made = tape(Split(), torch.ones(4))
    found, expected = made.call(x), Split()(y)
    assert torch.equal(x, y)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert found[2].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


class Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return x * scale


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_keyword_inputs(name: str) -> None:
    inputs = Inputs((torch.ones(2),), {"scale": torch.full((2,), 3.0)})
    if name == "jit_trace":
        # torch.jit.trace knows no keyword-only parameters.
        with pytest.raises(NameError, match="scale"):
            make_front_end(name).capture(Keywords(), inputs, make_executor("replay", for_verdict=True))
        return
    made = make_front_end(name).capture(Keywords(), inputs, make_executor("replay", for_verdict=True))
    if name == "fx":
        # Symbolic tracing turns a keyword-only parameter into a positional one.
        assert torch.equal(made.call(torch.ones(2), torch.full((2,), 3.0)), torch.full((2,), 3.0))
    else:
        assert torch.equal(made.call(torch.ones(2), scale=torch.full((2,), 3.0)), torch.full((2,), 3.0))


class Optional(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return x if scale is None else x * scale


@pytest.mark.parametrize("name", ["dynamo", "jit_trace", "hook"])
def test_an_optional_input_by_keyword(name: str) -> None:
    inputs = Inputs((torch.ones(2),), {"scale": torch.full((2,), 3.0)})
    made = make_front_end(name).capture(Optional(), inputs, make_executor("replay", for_verdict=True))
    assert torch.equal(made.call(torch.ones(2), scale=torch.full((2,), 3.0)), torch.full((2,), 3.0))


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_inductor_runs_every_front_ends_graphs(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    made = capture(name, model, torch.randn(3, 4), executor="inductor")
    with torch.no_grad():
        torch.testing.assert_close(made.call(x), model(x))


def test_script_is_lowered_anew_for_each_signature() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    executor = make_executor("inductor", for_verdict=False)
    with torch.no_grad():
        made = make_front_end("jit_trace").capture(model, Inputs((torch.randn(3, 4),)), executor)
        for rows, compiled in ((3, 1), (3, 1), (5, 2)):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(made.call(x), model(x))
            assert executor.compilations == compiled
