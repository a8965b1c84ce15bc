"""What a timed call is: which inputs it goes round, what it does in training, and what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tracebench.case import Case, ModelSpec
from tracebench.errors import CallError, RequestError
from tracebench.executors import make_executor
from tracebench.frontends import make_front_end
from tracebench.frontends.base import Capture, Events, Inputs
from tracebench.record import CompileSeconds, Speedup, ThroughputInfo, Timing
from tracebench.soundness.loss import WeightedSum, run_backward
from tracebench.subject import Subject, load
from tracebench.throughput import calls, stage
from tracebench.throughput.calls import BoundCall, InputSets, input_sets, optimizer_for, storage_bytes
from tracebench.throughput.launches import count_kernels, host_ms, kernels
from tracebench.throughput.memory import allocated_mb, call_memory_mb, peak_allocated_mb, peak_bytes

_FILE = """
import torch
from torch import nn


def make_model():
    return Model().eval()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return {forward}


def example_inputs():
    return ({inputs},)
"""
_IDS = "torch.randint(0, 10, (2, 3))"


@pytest.fixture
def subject(tmp_path: Path) -> Callable[..., Subject]:
    """Return a function that loads a small model from a file."""

    def make(
        inputs: str = _IDS, forward: str = "self.layer(self.embedding(x))", more: str = "", mode: str = "inference"
    ) -> Subject:
        path = tmp_path / "mine.py"
        path.write_text(_FILE.format(inputs=inputs, forward=forward) + more, encoding="utf-8")
        return load(Case(ModelSpec("mine", str(path)), "eager", mode=mode, device="cpu"))

    return make


def capturer(front_end: str) -> Callable[[nn.Module, Inputs], Capture]:
    def capture(model: nn.Module, inputs: Inputs) -> Capture:
        made = make_front_end(front_end).capture(model, inputs, make_executor("replay", for_verdict=False))
        return dataclasses.replace(made, compilations=lambda: made.events.compilations)

    return capture


# --- inputs ----------------------------------------------------------------------------------------------------------


def test_fresh_sets_exceed_the_cache_and_stay_valid(
    subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "last_level_cache", lambda device: 100)
    found = input_sets(subject())
    one = 2 * 3 * 8
    assert len(found.sets) == 5  # the fewest whose size is twice the cache's
    assert found.mb == pytest.approx(5 * one / 1e6)
    assert (found.values, found.note) == ("fresh", "")
    ids = torch.stack([inputs.args[0] for inputs in found.sets])
    assert ids.dtype == torch.int64
    assert 0 <= ids.min() <= ids.max() < 10
    assert len({tuple(values.flatten().tolist()) for values in ids}) > 1


def test_count_and_bytes_of_sets_are_capped(subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "last_level_cache", lambda device: 10**9)
    found = input_sets(subject())
    assert len(found.sets) == calls.MAX_SETS
    assert f"no more than {calls.MAX_SETS} sets" in found.note
    monkeypatch.setattr(calls, "free_bytes", lambda device: 48 * 60)
    few = input_sets(subject())
    assert len(few.sets) == 3
    assert "free memory" in few.note
    monkeypatch.setattr(calls, "last_level_cache", lambda device: None)
    assert "not known" in input_sets(subject()).note


@pytest.mark.parametrize(
    ("inputs", "more", "why"),
    [
        ("torch.ones(2, 3, dtype=torch.int64)", "", "draws the same values"),
        ("torch.randint(0, 10, (int(torch.randint(1, 99, ())), 3))", "", "draws other sizes"),
        (_IDS, f"\ndef other_inputs():\n    return [({_IDS},)]\n", "declares other_inputs"),
    ],
)
def test_copies_where_fresh_values_would_change_the_work(
    inputs: str, more: str, why: str, subject: Callable[..., Subject]
) -> None:
    made = subject(inputs, more=more)
    found = input_sets(made)
    assert found.values == "copies"
    assert why in found.note
    own = found.copied(made)
    assert len(own) > 1
    assert all(torch.equal(one.args[0], made.example.args[0]) for one in own)
    assert len({one.args[0].data_ptr() for one in own}) == len(own)


def test_memory_that_inputs_share_counts_once() -> None:
    whole = torch.zeros(100)
    assert storage_bytes([whole, whole[:10], whole.view(10, 10), torch.zeros(1)]) == 404


def test_both_sides_begin_a_round_with_the_same_set() -> None:
    seen: list[float] = []
    model = nn.Identity()
    sets = [Inputs((torch.tensor(float(index)),)) for index in range(3)]
    call = BoundCall("eager", lambda x: seen.append(float(x)), model, sets)
    for _ in range(4):
        call()
    call.rewind(5)
    call()
    assert seen == [0.0, 1.0, 2.0, 0.0, 2.0]


def timed(made: Subject, capture: Callable[[nn.Module, Inputs], Capture], **options: Any) -> ThroughputInfo:
    return stage.time_capture(made, capture, seconds=0.1, **options)[0]


def test_a_capture_that_raises_on_other_values_is_timed_on_copies(subject: Callable[..., Subject]) -> None:
    captures = 0

    def picky(model: nn.Module, inputs: Inputs) -> Capture:
        nonlocal captures
        captures += 1
        known = inputs.args[0].clone()

        def call(x: torch.Tensor) -> Any:
            if not torch.equal(x, known):
                raise ValueError("other values")
            return model(x)

        return Capture(call, model, Events())

    found = timed(subject(), picky)
    assert captures == 2
    assert found.inputs is not None
    assert found.inputs.values == "copies"
    assert "other values" in found.inputs.note
    assert found.speedup.ratio > 0


def test_a_capture_that_compiles_for_other_values_is_timed_on_copies(subject: Callable[..., Subject]) -> None:
    def compiling(model: nn.Module, inputs: Inputs) -> Capture:
        seen: set[bytes] = set()

        def call(x: torch.Tensor) -> Any:
            seen.add(x.numpy().tobytes())
            return model(x)

        return Capture(call, model, Events(), compilations=lambda: len(seen))

    found = timed(subject(), compiling)
    assert found.inputs is not None
    assert found.inputs.values == "copies"
    assert "compiles anew for other values" in found.inputs.note
    assert not any(warning.startswith(("recompiled", "not steady")) for warning in found.warnings)


def test_a_capture_that_always_raises_is_an_error(subject: Callable[..., Subject]) -> None:
    def broken(model: nn.Module, inputs: Inputs) -> Capture:
        count = iter(range(10**6))

        def call(x: torch.Tensor) -> Any:
            if next(count) > 2:
                raise ValueError("worn out")
            return model(x)

        return Capture(call, model, Events())

    with pytest.raises(CallError, match="the capture raises when called repeatedly: ValueError: worn out"):
        timed(subject(), broken)


# --- training --------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_verdicts_and_its_weights_are_kept() -> None:
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    run_backward({"a": layer(x), "b": [layer(x).exp()]})
    assert layer.weight.grad is not None
    wanted, layer.weight.grad = layer.weight.grad, None
    loss = WeightedSum()
    for _ in range(2):
        layer.weight.grad = None
        loss.backward({"a": layer(x), "b": [layer(x).exp()]})
        assert torch.equal(layer.weight.grad, wanted)
    loss.backward(torch.ones(2))  # nothing to derive by
    loss.backward(layer(torch.randn(5, 3)))


@pytest.mark.parametrize("name", ["sgd", "adamw", "none"])
def test_a_training_call_is_forward_backward_and_step(name: str) -> None:
    model = nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x = torch.randn(4, 3, requires_grad=True)
    call = BoundCall("eager", model, model, [Inputs((x,))], training=True, optimizer=name)
    steps = []
    if call.optimizer is not None:
        call.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    versions = [parameter._version for parameter in model.parameters()]
    grads = []
    for _ in range(3):
        assert call() is None
        grads.append((model.weight.grad.clone(), x.grad.clone()))  # type: ignore[union-attr]
    assert len(steps) == (0 if name == "none" else 3)
    # A step writes every parameter, and leaves its value: the last call does the work of the first.
    written = [parameter._version for parameter in model.parameters()]
    assert all(new > old for old, new in zip(versions, written, strict=True)) == (name != "none")
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert all(torch.equal(a, b) for grad in grads for a, b in zip(grad, grads[0], strict=True))
    # AdamW keeps two moments and a count for each parameter.
    state = 0 if name != "adamw" else 2 * 8 * 4 + 2 * 4
    call.release()
    assert model.weight.grad is None
    assert storage_bytes(call.resident()) == 8 * 4 + 12 * 4 + state


def test_an_unknown_optimizer_is_refused_with_the_choices() -> None:
    with pytest.raises(RequestError, match=r"(?s)throughput.optimizer 'sdg'.*sgd"):
        optimizer_for("sdg")


@pytest.mark.parametrize("front_end", ["eager", "hook", "fx", "jit_trace", "dynamo"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_every_front_end_is_timed_in_training(front_end: str, subject: Callable[..., Subject]) -> None:
    found = timed(subject(mode="training"), capturer(front_end), optimizer="adamw")
    assert found.optimizer == "adamw"
    assert found.speedup.ratio > 0
    assert not any(warning.startswith(("recompiled", "not steady")) for warning in found.warnings)
    assert found.inputs is not None
    assert found.inputs.values == "fresh"
    assert found.inputs.sets > 1
    # Both have the same parameters, moments and inputs, and a call makes the same gradients.
    assert found.eager.peak_memory_mb == pytest.approx(found.captured.peak_memory_mb, rel=0.3)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_peak_of_allocations() -> None:
    assert peak_bytes([]) == 0
    assert peak_bytes([(1, 10), (2, 20), (1, -10), (3, 5), (2, -20)]) == 30
    # What was there before is not the call's to count, neither when it is released nor when its address is used again.
    assert peak_bytes([(9, -50), (9, 10), (1, 10)]) == 20


def test_memory_of_known_tensors() -> None:
    def call() -> torch.Tensor:
        first = torch.empty(1_000_000)
        second = torch.empty(2_000_000)
        del first
        return second.new_empty(500_000)

    assert call_memory_mb(call) == 12.0
    old = [torch.empty(1000)]
    assert call_memory_mb(old.clear) == 0.0
    assert call_memory_mb(call) == 12.0


def test_peak_on_the_cpu_is_what_is_held_and_what_a_call_makes(subject: Callable[..., Subject]) -> None:
    made = subject("torch.randint(0, 10, (50, 20))", forward="self.layer(self.embedding(x)).exp().sum()")
    found = timed(made, capturer("eager"))
    held = 10 * 4 * 4 + (16 + 4) * 4 + 1000 * 8
    # At most the layer's output and its exponential, or that and the embedding, live at once.
    assert found.eager.peak_memory_mb == pytest.approx((held + 2 * 1000 * 4 * 4) / 1e6)
    assert found.captured.peak_memory_mb == found.eager.peak_memory_mb
    assert (found.eager.host_ms, found.eager.kernels) == (None, None)


class Allocator:
    """An accelerator's allocator: what is allocated, and the peak since the last reset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.accelerator, "memory_allocated", lambda device: self.now)
        monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda device: self.peak)
        monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", self.reset)

    def reset(self, device: object) -> None:
        self.peak = self.now

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def test_peak_of_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator, device = Allocator(monkeypatch), torch.device("cuda")
    allocator.take(50_000_000)

    def call() -> None:
        allocator.take(300_000_000)
        allocator.take(-300_000_000)

    assert allocated_mb(device) == 50.0
    assert peak_allocated_mb(call, device) == 350.0
    assert peak_allocated_mb(lambda: None, device) == 50.0
    allocator.now = 0
    # A peak of 0 means that the allocator does not count.
    assert peak_allocated_mb(lambda: None, device) is None


def test_a_sides_peak_on_an_accelerator_leaves_out_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager holds 100 MB, the capture 160; a call takes 30 and 40 more; each has 4 input sets of 1 MB, 7 lie about."""
    allocator = Allocator(monkeypatch)
    allocator.take(7_000_000)
    sets = InputSets((Inputs((torch.empty(250_000),)),) * 4, "copies")
    sides = object.__new__(stage._Sides)

    class Side:
        def __init__(self, beyond: int) -> None:
            self.beyond = beyond

        def release(self) -> None:
            pass

        def __call__(self) -> None:
            allocator.take(self.beyond)
            allocator.take(-self.beyond)

    before = 7.0
    allocator.take(104_000_000)
    between = 111.0
    allocator.take(164_000_000)
    sides._subject = type("S", (), {"device": torch.device("cuda")})()  # type: ignore[assignment]
    sides._sets = sets
    sides._levels = (before, between)
    sides.eager = Side(30_000_000)  # type: ignore[assignment]
    sides.captured = type("C", (), {"call": Side(40_000_000)})()  # type: ignore[assignment]
    monkeypatch.setattr(InputSets, "mb", 4.0)
    assert sides._accelerator_peaks(sets) == [pytest.approx(131.0), pytest.approx(201.0)]


def test_statistics_missing_on_a_back_end_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(device: torch.device) -> int:
        raise NotImplementedError("no statistics on this back end")

    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", unsupported)
    monkeypatch.setattr(torch.accelerator, "memory_allocated", unsupported)
    assert peak_allocated_mb(lambda: None, torch.device("mps")) is None
    assert allocated_mb(torch.device("mps")) is None
    assert allocated_mb(torch.device("cpu")) is None


# --- launches --------------------------------------------------------------------------------------------------------


class Event:
    def __init__(self, name: str, device: str) -> None:
        self._name, self._device = name, device

    def name(self) -> str:
        return self._name

    def device_type(self) -> Any:
        return type("DeviceType", (), {"name": self._device})()


def test_kernels_are_work_of_the_device_that_computes() -> None:
    events = [
        Event("aten::mm", "CPU"),
        Event("cudaLaunchKernel", "CPU"),
        Event("sm90_xmma_gemm", "CUDA"),
        Event("void at::native::elementwise_kernel", "CUDA"),
        Event("Memcpy HtoD (Pageable -> Device)", "CUDA"),
        Event("Memset (Device)", "CUDA"),
    ]
    assert count_kernels(events) == 2
    assert kernels(lambda: None, torch.device("cpu")) is None


def test_host_time_ends_when_the_call_returns() -> None:
    done: list[str] = []
    assert host_ms(lambda: done.append("call"), lambda: done.append("wait")) < 1.0
    # Every call begins on an idle device, and the work is waited for outside of what is timed.
    assert done == ["wait", "call"] * (len(done) // 2) + ["wait"]


# --- what capturing costs --------------------------------------------------------------------------------------------


def test_the_cost_of_capturing_is_beyond_calls_that_were_due_anyway() -> None:
    started = stage.Started(None, None, 250.0, 1.5, 2)  # type: ignore[arg-type]
    assert started.overhead_s(100.0) == pytest.approx(1.3)
    assert started.overhead_s(10_000.0) == 0.0


def test_break_even_takes_the_cold_compile_time_where_there_is_one() -> None:
    eager, captured = Timing(20.0, 0.1, (20.0,)), Timing(10.0, 0.1, (10.0,))
    info = ThroughputInfo(eager, captured, Speedup(2.0, 1.9, 2.1, True, 0.99))
    assert stage.paid_back(info, 3.0).break_even_calls == 300
    assert stage.paid_back(dataclasses.replace(info, compile_s=CompileSeconds(50.0, 4.0)), 3.0).break_even_calls == 5000
