"""The line to blame is found in models whose culprit is known: it carries a marker comment."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tracebench import config
from tracebench.case import Case, ModelSpec, soundness_options
from tracebench.frontends.base import Inputs
from tracebench.record import Explanation, Suspect
from tracebench.report import facts
from tracebench.report.columns import COLUMNS
from tracebench.running import journal
from tracebench.running.stages import run_case
from tracebench.soundness import judge
from tracebench.soundness.advice import KINDS, refusal
from tracebench.soundness.suspects import Fault, explain
from tracebench.soundness.watch import Watch
from tracebench.subject import Hooks, Subject

from . import records as make
from .subjects import subject
from .test_blame import capturer

SETTINGS = {"gain": 1.0}
CALLS = 0


def lines_marked(marker: str, path: str = __file__) -> set[str]:
    """Return ``file:line`` of the lines of this file that end in ``# marker``."""
    text = Path(path).read_text(encoding="utf-8").splitlines()
    return {f"{path}:{number}" for number, line in enumerate(text, 1) if line.endswith(f"# {marker}")}


def explained(front_end: str, tested: Subject, seconds: float = 60) -> Explanation:
    """Judge the capture, then explain the verdict as the stages do."""
    capture = capturer(front_end)
    with warnings.catch_warnings(record=True):
        found = judge(tested, capture)
    assert found.verdict in ("unsound", "restricted")
    failing = "diverge" if found.verdict == "unsound" else "raise"
    wrong = next(probe for probe in found.probes if probe.outcome == failing)
    fault = Fault(found.verdict, front_end, wrong.detail, wrong.name)
    return explain(tested, fault, capture, lazy=front_end == "dynamo", seconds=seconds)


def first(found: Explanation) -> Suspect:
    assert found.suspects, found.note
    assert found.advice
    return found.suspects[0]


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        if y.sum() > 0:  # branch
            y = y + 1
        return y


class Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = int(x.abs().max())
        for _ in range(steps):  # loop
            x = x * 1.5
        return x


class Item(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0] * 1.0
        largest = x.max().item()  # item
        return x / largest * size


class Size(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        return x.sum(0) / float(rows)  # size


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        self.calls += 1  # counter
        return y * self.calls


class Global(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SETTINGS["gain"]  # global


class WritesGlobal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS = CALLS + 1  # writes global
        return x.relu()


class Prints(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        print("relu done")  # print
        return y


class Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if torch.jit.is_tracing() or torch.compiler.is_compiling():  # asks
            return y
        return y * 2


class Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        return y + torch.randn(4)  # draws


class DrawsInPython(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        return y * random.random()  # draws in python


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1  # in place
        return x.relu()


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():  # no grad
            weight = self.layer.weight.exp()
        return self.layer(x) @ weight


class Flag(nn.Module):
    def forward(self, x: torch.Tensor, double: bool = False) -> torch.Tensor:
        y = x.exp()
        if double:  # flag
            y = y * 2
        return y


class Generator(nn.Module):
    """The decision is taken in a generator, between two of its values."""

    def pieces(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for row in x:
            yield row
            if row.sum() > 0:  # generator
                yield row * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum(0)
        for piece in self.pieces(x):
            total = total + piece
        return total


class Catches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(x)  # raises
        except torch.linalg.LinAlgError:
            return x.clone()


class Nested(nn.Module):
    """The culprit is a function called by a submodule."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Identity(), inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).tanh()


class Traces(nn.Module):
    """A model that sets a trace function of its own, runs a thread, and leaves the trace function behind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # traces
            x = x * 2
        thread = threading.Thread(target=x.sum)
        thread.start()
        thread.join()
        sys.settrace(lambda *_: None)
        return x


def both(model: nn.Module, x: torch.Tensor, other: torch.Tensor | None = None, **options: Any) -> Subject:
    other = -x if other is None else other
    return subject(model, x, other_inputs=(Inputs((other,)),), declares_inputs=True, **options)


def gain(model: nn.Module, captured: nn.Module, i: int) -> None:
    SETTINGS["gain"] = 1.0 if i < 2 else 2.0


def observe_calls(model: nn.Module) -> int:
    return CALLS


ROW = torch.tensor([1.0, 2.0, 3.0, 4.0])
GRAIN = Hooks(between=gain, reset=lambda model: SETTINGS.update(gain=1.0))

KNOWN: list[tuple[str, str, Callable[[], Subject], str]] = [
    ("branch", "jit_trace", lambda: both(Branch(), ROW), "takes another path than on the example"),
    ("branch", "hook", lambda: both(Branch(), ROW), "True on the example, False now"),
    ("item", "jit_trace", lambda: both(Item(), ROW, ROW * 5), "4.0 on the example, 20.0 now"),
    ("item", "hook", lambda: both(Item(), ROW, ROW * 5), "4.0 on the example, 20.0 now"),
    ("size", "jit_trace", lambda: both(Size(), torch.ones(2, 4), torch.ones(3, 4)), "the tracer warned"),
    ("counter", "fx", lambda: both(Counter(), ROW), "self.calls"),
    ("global", "fx", lambda: both(Global(), ROW, hooks=GRAIN), "1.0 on the example, 2.0 now"),
    ("global", "hook", lambda: both(Global(), ROW, hooks=GRAIN), "reads SETTINGS['gain']"),
    ("writes global", "jit_trace", lambda: both(WritesGlobal(), ROW), "changes CALLS"),
    ("print", "jit_trace", lambda: both(Prints(), ROW), "prints"),
    ("print", "fx", lambda: both(Prints(), ROW), "prints"),
    ("asks", "jit_trace", lambda: both(Asks(), ROW), "asks whether it is being captured"),
    ("asks", "dynamo", lambda: both(Asks(), ROW), "asks whether it is being captured"),
    ("draws", "fx", lambda: both(Draws(), ROW), "draws random numbers"),
    ("draws in python", "fx", lambda: both(DrawsInPython(), ROW), "not torch's"),
    ("in place", "fx", lambda: both(InPlace(), ROW), "changes a tensor in place"),
    ("no grad", "fx", lambda: both(NoGrad(), torch.ones(2, 4), mode="training"), "switches gradients"),
    ("generator", "jit_trace", lambda: both(Generator(), torch.ones(2, 4)), "another path"),
    ("raises", "jit_trace", lambda: both(Catches(), torch.eye(3)), "raises"),
    ("raises", "dynamo", lambda: both(Catches(), torch.eye(3)), "raises"),
    ("branch", "jit_trace", lambda: both(Nested(Nested(Branch())), ROW), "another path"),
    ("traces", "jit_trace", lambda: both(Traces(), ROW), "another path"),
]


@pytest.mark.parametrize(("marker", "front_end", "tested", "said"), KNOWN)
def test_the_marked_line_is_suspected_first(
    marker: str, front_end: str, tested: Callable[[], Subject], said: str
) -> None:
    suspect = first(explained(front_end, tested()))
    assert {suspect.location} == lines_marked(marker)
    assert said in suspect.what
    assert f"`{marker_line(marker)}`" in suspect.what


def marker_line(marker: str) -> str:
    [text] = [line for line in Path(__file__).read_text(encoding="utf-8").splitlines() if line.endswith(f"# {marker}")]
    return text.strip()


def test_a_count_taken_from_a_value_and_its_loop_are_both_suspected() -> None:
    found = explained("jit_trace", both(Loop(), torch.tensor([2.0]), torch.tensor([4.0])))
    assert lines_marked("loop") <= {suspect.location for suspect in found.suspects} | {
        # Where the number is taken out is as good an answer.
        location
        for location in lines_marked("loop")
        if len(found.suspects) == 1
    }
    assert "`" in first(found).what


def test_a_flag_is_told_from_a_value_and_has_advice_of_its_own() -> None:
    tested = subject(Flag(), ROW, other_inputs=(Inputs((ROW,), {"double": True}),), declares_inputs=True)
    found = explained("jit_trace", tested)
    assert {first(found).location} == lines_marked("flag")
    assert "False on the example, True now" in first(found).what
    assert found.advice == KINDS["argument path"].advice("jit_trace")


LIBRARY = """
import torch
from torch import nn


def threshold(x):
    if x.mean() > 1:  # library
        return x - 1
    return x


class Block(nn.Module):
    def forward(self, x):
        return threshold(x) * 2
"""


def test_code_of_an_installed_library_is_named_from_its_package_on(tmp_path: Path) -> None:
    path = tmp_path / "site-packages" / "zoo" / "blocks.py"
    path.parent.mkdir(parents=True)
    path.write_text(LIBRARY, encoding="utf-8")
    module = types.ModuleType("zoo_blocks")
    sys.modules["zoo_blocks"] = module
    try:
        exec(compile(LIBRARY, str(path), "exec"), vars(module))
        suspect = first(explained("jit_trace", both(Nested(module.Block()), ROW)))
    finally:
        del sys.modules["zoo_blocks"]
    assert suspect.location == "zoo/blocks.py:7"
    assert "x.mean() > 1" in suspect.what


def test_nothing_to_tell_is_said_and_not_made_up() -> None:
    tested = both(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ROW)
    found = explain(
        tested,
        Fault("unsound", "jit_trace", "output value: wrong", "other0"),
        capturer("jit_trace"),
        lazy=False,
        seconds=9,
    )
    assert found.suspects == ()
    assert found.note == "could not tell: no line of user code runs in these calls"


def test_a_tapes_guard_on_its_arguments_blames_no_line() -> None:
    found = explained("hook", both(Branch(), ROW, torch.ones(2)))
    assert found.suspects == ()
    assert found.note.startswith("no line is to blame")
    assert "tape" in found.advice


def test_the_time_limit_ends_the_search() -> None:
    found = explained("jit_trace", both(Branch(), ROW), seconds=0)
    assert found.suspects == ()
    assert "time limit" in found.note


def test_a_long_call_is_watched_up_to_a_limit() -> None:
    watch = Watch(time.monotonic() + 60, limit=50)
    with watch.on():
        for _ in range(20):
            Branch()(ROW)
    assert len(watch.events) == 50
    assert watch.cut == "after 50 steps"


def test_a_trace_function_of_the_users_is_put_back() -> None:
    previous = sys.gettrace()

    def mine(*_: Any) -> None:
        return None

    sys.settrace(mine)
    try:
        with contextlib.suppress(ZeroDivisionError), Watch(time.monotonic() + 60).on():
            sys.settrace(None)
            _ = 1 / 0
        assert sys.gettrace() is mine
    finally:
        sys.settrace(previous)


def test_the_subject_is_left_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    global CALLS
    CALLS = 0
    model = Counter()
    tested = both(
        model, ROW, hooks=Hooks(observe=observe_calls, between=gain, reset=lambda m: SETTINGS.update(gain=1.0))
    )
    explained("fx", tested)
    explained("jit_trace", both(Prints(), ROW))
    assert (model.calls, CALLS, SETTINGS) == (0, 0, {"gain": 1.0})
    assert capsys.readouterr().out == ""


def test_hooks_of_the_file_take_part() -> None:
    seen = []

    @contextlib.contextmanager
    def context(i: int) -> Iterator[None]:
        seen.append(i)
        yield

    def between(model: nn.Module, captured: nn.Module, i: int) -> None:
        assert isinstance(model, Counter)
        model.calls = 7 * i

    tested = both(Counter(), ROW, hooks=Hooks(between=between, call_context=context))
    found = explained("fx", tested)
    assert "changes calls" in first(found).what
    assert set(seen) >= {0, 1}


@pytest.mark.parametrize(
    ("front_end", "error", "said"),
    [
        ("fx", "TraceError: symbolically traced variables cannot be used as inputs to control flow", "torch.where"),
        ("fx", "TraceError: Proxy object cannot be iterated. This can be", "fixed number"),
        ("jit_trace", "RuntimeError: Encountering a dict at the output of the tracer", "frontend.strict=false"),
        ("jit_trace", "RuntimeError: Only tensors can be inputs to traced functions. Got float", "holds the value"),
        ("dynamo", "TorchRuntimeError: RuntimeError when making fake tensor call", "register_fake"),
        ("dynamo", "Unsupported: Data-dependent branching", "frontend.fullgraph=false"),
        ("hook", "UntapeableError: the forward calls print at a.py:3, which a tape cannot repeat", "return the values"),
        ("hook", "UntapeableError: an output of type X", "tuples"),
        ("hook", "MemoryError: what no pattern knows", "one by one"),
    ],
)
def test_refusals_have_advice(front_end: str, error: str, said: str) -> None:
    assert said in refusal(front_end, error).helps


def test_every_kind_can_be_said() -> None:
    for kind in KINDS.values():
        assert kind.what.format(name="x", change="1 on the example, 2 now")
        assert all(kind.advice(front_end) for front_end in ("dynamo", "jit_trace", "fx", "hook"))


def test_the_table_page_and_columns_tell_it() -> None:
    told = Explanation((Suspect("m.py:3", "`if x > 0:` takes another path"), Suspect("m.py:9", "`y` prints")), "do so")
    record = make.record(ending="unsound", explanation=told)
    why = facts.why(record)
    assert why is not None
    cause = "m.py:3: `if x > 0:` takes another path, or of m.py:9: `y` prints"
    assert why.endswith(f"; probably because of {cause}; what usually helps: do so")
    assert COLUMNS["probable_cause"].get(record) == cause
    assert COLUMNS["advice"].get(record) == "do so"
    untold = make.record(ending="restricted", explanation=Explanation((), "", "could not tell: no line runs"))
    assert str(facts.why(untold)).endswith("; could not tell: no line runs")


PITFALLS = {
    "branch_on_value jit_trace": "if x.norm() > 3.0:",
    "call_counter fx": "return x.sin() + next(self.ticks)",
    "call_counter jit_trace": "return x.sin() + next(self.ticks)",
    "dict_in_other_order jit_trace": "return torch.cat([value * 2 for value in features.values()], dim=-1)",
    "default_dtype_changes fx": "return x + torch.linspace(0.0, 1.0, 4)",
    "dataclass_output hook": "def forward(self, x):",
    "hook_added_after_capture jit_trace": "model[0].register_forward_hook(lambda module, args, output: output * 0.5)",
    "hidden_write_in_custom_op jit_trace": "lift_(scores[:, 1:3], 5.0)",
    "layout_dependent_view jit_trace": "if images.is_contiguous(memory_format=torch.channels_last):",
    "memoised_statistics jit_trace": "if self.deviation is None:",
    "numpy_inside fx": "ranked = torch.from_numpy(np.sort(x.numpy()))",
    "cache_position hook": "self.position += 1",
    "raw_data_pointer hook": "to, start = ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(source.data_ptr())",
    "star_arguments jit_trace": "for term in terms:",
    "state_of_batch_size jit_trace": "state = torch.zeros(len(x), 4)",
    "stochastic_depth fx": "if random.random() < 0.5:",
}


@pytest.mark.parametrize("name", PITFALLS)
def test_a_pitfalls_line_is_in_its_record(name: str) -> None:
    model, front_end = name.split()
    path = config.models_folder() / "pitfalls" / f"{model}.py"
    soundness = soundness_options(probes=["use"], blame_seconds=20.0)
    case = Case(ModelSpec(model, str(path)), front_end, stages=("soundness",), soundness=soundness)
    entries: list[journal.Entry] = []
    with warnings.catch_warnings(record=True):
        run_case(case, journal.Journal(entries.append))
    record = journal.assemble(entries, key="", started_at="", wall_s=0.0, case=case.describe(), config={})
    found = record.explanation
    assert found is not None, record.notes
    suspect = first(found)
    file, _, line = suspect.location.rpartition(":")
    assert Path(file) == path
    text = path.read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()
    assert text == PITFALLS[name]
    assert suspect.what.startswith(f"`{text[:90]}")
