"""Executors: what they are told, that each runs every front end's graphs, and CUDA graphs with a recorder of ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import tracebench
from tracebench import executor_settings
from tracebench.errors import RequestError
from tracebench.executors import make_executor
from tracebench.executors.cuda_graphs import MOST_RECORDINGS, WARM_UP_CALLS, CudaGraphs, CudaRecorder
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Inputs
from tracebench.record import Record

FAST: dict[str, Any] = {"stages": ("soundness",), "blame_seconds": 0, "lifecycle_seconds": 0, "device": "cpu"}


def run(model: nn.Module, frontend: str, **options: Any) -> Record:
    return tracebench.run(model, (torch.randn(2, 3, 8, 8),), frontend, **{**FAST, **options})


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


def initialised(model: nn.Module) -> nn.Module:
    model(torch.randn(2, 3, 8, 8))
    return model.eval()


# --- settings --------------------------------------------------------------------------------------------------------


def test_options_read_from_the_source_are_torchs_own() -> None:
    from torch._inductor import list_options

    known = executor_settings.inductor_options()
    # A name that its module imports, and no option.
    assert set(list_options()) - {"TYPE_CHECKING"} <= known
    assert len(known) < len(list_options()) + 10


def test_nothing_but_what_is_changed_is_kept() -> None:
    assert executor_settings.checked("replay", {"mode": "default", "options": {}, "cuda_graphs": False}) == {}
    told = executor_settings.checked("inductor", {"options": {"triton": {"cudagraphs": True}, "max-autotune": True}})
    assert told == {"options": {"triton.cudagraphs": True, "max_autotune": True}}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"options": {"max_autotune": 3}}, "must be of type bool"),
        ({"options": {"max_autotun": True}}, "Did you mean: max_autotune"),
        ({"mode": "fast"}, "Valid choices: default, max-autotune"),
        ({"speed": 1}, "unknown setting of an executor 'speed'"),
        ({"options": 3}, "executor.options must map names"),
    ],
)
def test_what_inductor_has_not_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        make_executor("inductor", for_verdict=False, settings=settings)


def test_options_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    seen: list[dict[str, Any]] = []
    own = compile_fx.compile_fx

    def watched(*args: Any, config_patches: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        # It calls itself, with the options in force.
        seen.extend([config_patches] if config_patches else [])
        return own(*args, config_patches=config_patches, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx", watched)
    model, x = nn.Linear(3, 3).eval(), torch.randn(2, 3)
    settings = {"mode": "max-autotune-no-cudagraphs", "options": {"max_autotune": False, "epilogue_fusion": False}}
    executor = make_executor("inductor", for_verdict=False, settings=settings)
    with torch.no_grad():
        made = make_front_end("fx").capture(model, Inputs((x,)), executor)
        torch.testing.assert_close(made.call(x), model(x))
    # The options win over the mode.
    assert seen == [{"max_autotune": False, "coordinate_descent_tuning": True, "epilogue_fusion": False}]


def test_options_without_an_effect_are_said() -> None:
    said: list[str] = []
    settings = {"mode": "reduce-overhead", "options": {"debug": False, "max_autotune": True}}
    make_executor("inductor", for_verdict=False, settings=settings, tell=said.append)
    (note,) = said
    assert note.endswith("on cpu: triton.cudagraphs=True (for cuda), debug=False (the default)")
    make_executor("inductor", for_verdict=False, settings=settings, device="cuda", tell=said.append)
    assert said[1].endswith("on cuda: debug=False (the default)")


def test_random_numbers_of_ones_own_choice() -> None:
    plain = make_executor("inductor", for_verdict=False)
    chosen = make_executor("inductor", for_verdict=False, settings={"options": {"fallback_random": True}})
    assert (plain.own_random_numbers, chosen.own_random_numbers) == (True, False)


def test_cuda_graphs_need_their_device() -> None:
    with pytest.raises(RequestError, match=r"executor\.cuda_graphs needs an NVIDIA GPU; the device is cpu"):
        make_executor("replay", for_verdict=False, settings={"cuda_graphs": True})
    record = run(nn.Flatten(), "fx", executor_settings={"cuda_graphs": True})
    assert (record.status, record.error and record.error.type) == ("error", "RequestError")


# --- native ----------------------------------------------------------------------------------------------------------


def test_a_trace_is_frozen_and_optimised() -> None:
    model, x = initialised(convolution()), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        executor = make_executor("native", for_verdict=False, front_end="jit_trace")
        made = make_front_end("jit_trace").capture(model, Inputs((x,)), executor)
        assert "batch_norm" not in str(made.call.graph), "folded into the convolution"
        assert not list(made.call.parameters())
        torch.testing.assert_close(made.call(x), model(x))
    assert len(list(made.module.parameters())) == 6


def test_a_frozen_trace_is_judged_as_deployed() -> None:
    record = run(initialised(convolution()), "jit_trace", executor="native", lifecycle_seconds=20)
    assert record.verdict == "sound"
    assert record.notes == ()
    assert record.case["executor"] == "native"
    followed = {probe.name: probe.outcome for probe in record.lifecycle or ()}
    assert followed["parameter_replaced"] == "diverge", "weights are constants of a frozen trace"


def test_a_trace_for_training_is_not_frozen() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).train()
    record = run(model, "jit_trace", executor="native", mode="training")
    assert record.verdict == "sound"
    assert [note for note in record.notes if "native" in note] == [
        "native under jit_trace: the model is in training mode, so the trace is not frozen: the same as executor=replay"
    ]


@pytest.mark.parametrize(
    ("frontend", "said"),
    [("fx", "the code that fx generates"), ("hook", "there are none on cpu"), ("eager", "nothing to run")],
)
def test_native_that_is_replay_says_so(frontend: str, said: str) -> None:
    record = run(initialised(convolution()), frontend, executor="native")
    assert record.verdict == ("restricted" if frontend == "hook" else "sound")
    (note,) = record.notes
    assert said in note


def test_native_dynamo_is_compiled() -> None:
    record = run(nn.Flatten(), "dynamo", executor="native", stages=("coverage",))
    assert record.coverage is not None
    assert record.coverage.ops == 1.0
    assert "torch.compile with its defaults" in record.notes[0]
    executor = make_executor("native", for_verdict=False, front_end="dynamo")
    assert executor.compiles
    assert executor.own_random_numbers


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


class FakeRecorder:
    """Records on the CPU: what is recorded runs again, on the same inputs, into the same outputs."""

    device_type = "cpu"

    def __init__(self, changes: Callable[[], list[torch.Tensor]] = list) -> None:
        self.recorded = 0
        self.replayed = 0
        self._changes = changes

    def warm_up(self, call: Callable[[], Any]) -> Any:
        return call()

    def record(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        # Recording executes nothing, so what it does to other tensors is undone.
        before = [(tensor, tensor.clone()) for tensor in self._changes()]
        result = call()
        for tensor, value in before:
            tensor.data.copy_(value)
        outputs = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]

        def replay() -> None:
            self.replayed += 1
            again = [t for t in torch.utils._pytree.tree_leaves(call()) if isinstance(t, torch.Tensor)]
            for output, value in zip(outputs, again, strict=True):
                if output is not value and output.data_ptr() != value.data_ptr():
                    output.data.copy_(value)

        return replay, result


class Case:
    """A model under CUDA graphs next to itself run eagerly."""

    def __init__(self, model: nn.Module, changes: Callable[[nn.Module], list[torch.Tensor]] = lambda model: []) -> None:
        self.model = model.eval()
        self.recorder = FakeRecorder(lambda: changes(self.model))
        self.notes: list[str] = []
        self.executor = CudaGraphs(self.recorder, tell=self.notes.append)
        self.call = self.executor.wrap(self.model)

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            return self.call(*args)


class Plus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.weight


def test_replays_from_the_third_call_of_a_signature_on() -> None:
    case = Case(Plus())
    for value in range(6):
        torch.testing.assert_close(case(torch.full((3,), float(value))), torch.full((3,), value + 1.0))
    assert (case.recorder.recorded, case.recorder.replayed) == (1, 6 - WARM_UP_CALLS)
    assert case.executor.compilations == 1
    assert set(case.notes) == {
        "under CUDA graphs: a call looks where 2 parameters and buffers lie and "
        "copies 1.2e-05 MB of inputs in and 1.2e-05 MB of outputs out, as part of its time"
    }
    for _ in range(3):
        assert case(torch.zeros(2, 3)).shape == (2, 3)
    assert case.recorder.recorded == 2


def test_results_outlive_the_next_call() -> None:
    case = Case(Plus())
    results = [case(torch.full((3,), float(value))) for value in range(6)]
    assert [result[0].item() for result in results] == [1, 2, 3, 4, 5, 6]


def test_parameters_are_followed() -> None:
    case = Case(Plus())
    x = torch.zeros(3)
    assert [case(x)[0].item() for _ in range(4)] == [1] * 4
    with torch.no_grad():
        case.model.weight.mul_(2)
    assert case(x)[0].item() == 2
    case.model.weight.data = torch.full((3,), 5.0)
    assert [case(x)[0].item() for _ in range(4)] == [5] * 4
    case.model.weight = nn.Parameter(torch.full((3,), 7.0))
    assert [case(x)[0].item() for _ in range(4)] == [7] * 4
    assert case.recorder.recorded == 3


def test_state_is_changed_once_a_call() -> None:
    class Counts(Plus):
        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            return x + self.calls

    case = Case(Counts(), lambda model: list(model.buffers()))
    assert [case(torch.zeros(1)).item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert case.recorder.recorded == 1


@pytest.mark.parametrize("hidden", [False, True])
def test_changed_inputs_are_changed(hidden: bool) -> None:
    class Changes(Plus):
        def forward(self, x: torch.Tensor) -> Any:
            (x.data if hidden else x).add_(1)
            return x, x[1:], x * 2

    case = Case(Changes())
    for _ in range(5):
        x = torch.zeros(3)
        whole, part, double = case(x)
        assert x.tolist() == [1, 1, 1]
        assert whole is x, "an input that is returned is that input"
        assert (part.data_ptr(), part.shape) == (x.data_ptr() + 4, (2,))
        assert double.tolist() == [2, 2, 2]
    assert case.recorder.recorded == 1


def test_outputs_share_memory_as_they_do_in_eager() -> None:
    class Shares(Plus):
        def forward(self, x: torch.Tensor) -> Any:
            y = x + 1
            return {"whole": y, "again": y, "part": y[1:], "own": y * 2, "weight": self.weight, "n": 3}

    case = Case(Shares())
    for _ in range(4):
        found = case(torch.zeros(3))
        assert found["whole"] is found["again"]
        assert found["part"].data_ptr() == found["whole"].data_ptr() + 4
        assert found["own"].untyped_storage().data_ptr() != found["whole"].untyped_storage().data_ptr()
        assert found["weight"].data_ptr() == case.model.weight.data_ptr()
        assert (found["part"].tolist(), found["own"].tolist(), found["n"]) == ([1, 1], [2, 2, 2], 3)
    assert case.recorder.replayed == 2


def test_lifted_parameters_are_read_where_they_lie() -> None:
    graph = fx.symbolic_trace(nn.Bilinear(2, 2, 2))
    calls = CudaGraphs(recorder := FakeRecorder()).lower(graph, [])
    with torch.no_grad():
        weight, x = nn.Parameter(torch.ones(2)), torch.ones(2)
        for _ in range(4):
            torch.testing.assert_close(calls(weight, x), graph(weight, x))
        weight.fill_(3)
        torch.testing.assert_close(calls(weight, x), graph(weight, x))
        assert recorder.recorded == 1
        moved = nn.Parameter(torch.full((2,), 2.0))
        for _ in range(3):
            torch.testing.assert_close(calls(moved, x), graph(moved, x))
    assert recorder.recorded == 2


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda self, x: object.__new__(Wrapped).of(x), "an output of type Wrapped"),
        (lambda self, x: x.unsqueeze_(0) + 1, "changes the shape of an input"),
    ],
    ids=["foreign output", "changed shape"],
)
def test_what_cannot_be_repeated_runs_without(forward: Callable[..., Any], said: str) -> None:
    model = Plus()
    model.forward = forward.__get__(model)  # type: ignore[method-assign]
    case = Case(model)
    results = [case(torch.zeros(3)) for _ in range(5)]
    assert [(result.value if isinstance(result, Wrapped) else result[0])[0].item() for result in results] == [1] * 5
    assert case.recorder.replayed == 0
    assert len(set(case.notes)) == 1
    assert said in case.notes[0]


class Wrapped:
    def of(self, x: torch.Tensor) -> Wrapped:
        self.value = x + 1
        return self


def test_gradients_are_not_lost() -> None:
    case = Case(Plus())
    for _ in range(4):
        case.call(torch.zeros(3)).sum().backward()
    assert case.model.weight.grad is not None
    assert case.model.weight.grad.tolist() == [4, 4, 4]
    assert case.recorder.recorded == 0
    assert "gradients are recorded" in case.notes[0]


def test_inputs_that_share_memory_run_without() -> None:
    class Both(Plus):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            x.add_(1)
            return y + 0

    case = Case(Both())
    for _ in range(4):
        x = torch.zeros(3)
        assert case(x, x[1:]).tolist() == [1, 1]
    assert case.recorder.recorded == 0
    assert "share memory" in case.notes[0]


def test_a_failure_to_record_is_told_and_survived() -> None:
    case = Case(Plus())

    def record(call: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    case.recorder.record = record  # type: ignore[method-assign]
    assert [case(torch.zeros(3))[0].item() for _ in range(5)] == [1] * 5
    assert case.notes == ["no CUDA graph: RuntimeError: operation not permitted when stream is capturing"]


def test_recordings_are_limited() -> None:
    case = Case(Plus())
    for scale in range(MOST_RECORDINGS + 2):
        for _ in range(3):
            assert case(torch.zeros(scale + 1, 3)).shape == (scale + 1, 3)
    assert case.recorder.recorded == MOST_RECORDINGS
    assert f"more than {MOST_RECORDINGS} signatures" in case.notes[-1]


def test_ops_on_another_device_run_without() -> None:
    class Elsewhere(FakeRecorder):
        device_type = "cuda"

    case = Case(nn.Identity())
    case.recorder = Elsewhere()
    call = CudaGraphs(case.recorder, tell=case.notes.append).wrap(case.model)
    with torch.no_grad():
        assert call(torch.ones(2)).tolist() == [1, 1]
    assert case.notes == ["no CUDA graph: an input, parameter or buffer is no strided tensor on cuda"]

    class Draws(nn.Module):
        def forward(self, scale: float) -> Any:
            return torch.full((2,), scale) * 2 + torch.rand(2)

    draws = CudaGraphs(case.recorder, tell=case.notes.append).wrap(Draws())
    with torch.no_grad():
        results = [draws(2.0) for _ in range(4)]
    assert len({tuple(result.tolist()) for result in results}) == 4
    assert case.notes[-1] == "no CUDA graph: aten.rand.default works on cpu at each call"


def test_python_in_a_graph_is_not_recorded() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Plus()

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x) * 2

    class Leaf(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, Plus)

    model, notes = Holds(), []
    graph = fx.GraphModule(model, Leaf().trace(model))
    executor = CudaGraphs(FakeRecorder(), tell=notes.append)
    assert executor.wrap(graph) is graph
    assert notes == ["no CUDA graph: a graph calls Python (Plus)"]
    inlined = fx.symbolic_trace(model)
    assert executor.wrap(inlined) is not inlined


@pytest.mark.parametrize("frontend", ["dynamo", "jit_trace", "fx", "hook"])
def test_every_front_ends_graphs_are_replayed(frontend: str) -> None:
    model, recorder = initialised(convolution()), FakeRecorder()
    executor = CudaGraphs(recorder)
    with torch.no_grad():
        made: Capture = make_front_end(frontend).capture(model, Inputs((torch.randn(2, 3, 8, 8),)), executor)
        for _ in range(WARM_UP_CALLS + 2):
            x = torch.randn(2, 3, 8, 8)
            torch.testing.assert_close(made.call(x), model(x))
    assert (recorder.recorded, recorder.replayed) == (1, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("frontend", ["dynamo", "jit_trace", "fx", "hook"])
def test_cuda_graphs_on_a_gpu(frontend: str) -> None:
    record = run(initialised(convolution()), frontend, executor_settings={"cuda_graphs": True}, device="cuda")
    assert record.verdict in ("sound", "restricted")
    assert any(note.startswith("under CUDA graphs") for note in record.notes), record.notes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_random_numbers_go_on_under_cuda_graphs() -> None:
    model = nn.Dropout(0.5).cuda().train()
    call = CudaGraphs(CudaRecorder(torch.device("cuda"))).wrap(model)
    with torch.no_grad():
        x = torch.ones(64, device="cuda")
        torch.manual_seed(0)
        expected = [model(x) for _ in range(5)]
        torch.manual_seed(0)
        for value in expected:
            torch.testing.assert_close(call(x), value)
