"""Right captures are judged sound, and every way of being wrong is found on the right probe by the right name."""

from __future__ import annotations

import contextlib
import copy
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st
from torch import nn

from tracebench.errors import RequestError
from tracebench.frontends.base import Capture, Events, Inputs
from tracebench.probes import ASPECTS, chosen
from tracebench.record import Probe
from tracebench.soundness import Soundness, judge
from tracebench.soundness.calls import plan
from tracebench.soundness.globals import Globals
from tracebench.soundness.loss import run_backward
from tracebench.soundness.randomness import judge_random_numbers, rank_sum_z
from tracebench.soundness.reference import default_float64, in_float64
from tracebench.soundness.synthesize import fresh_values, same_values, with_batch
from tracebench.subject import Hooks

from .subjects import itself, subject

# Inputs are drawn where tests are collected.
torch.manual_seed(0)


def by(call: Callable[..., Any]) -> Callable[[nn.Module, Inputs], Capture]:
    """A capture whose calls are ``call(model, *args)``."""

    def capture(model: nn.Module, inputs: Inputs) -> Capture:
        return Capture(call=lambda *args, **kwargs: call(model, *args, **kwargs), module=model, events=Events())

    return capture


def traced(model: nn.Module, inputs: Inputs) -> Capture:
    """What torch.jit.trace makes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(model, inputs.args, check_trace=False)
    return Capture(call=module, module=module, events=Events())


def probe(found: Soundness, name: str) -> Probe:
    return next(probe for probe in found.probes if probe.name == name)


def outcomes(found: Soundness) -> dict[str, str]:
    return {probe.name: probe.outcome for probe in found.probes}


class Scale(nn.Module):
    """Plain: a tuple of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.lin(x)
        return y, y.exp()


class Count(nn.Module):
    """State in a buffer, and a Python attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        self.calls += 1
        return x + self.total


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


class Talks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("mean", round(float(x.mean()), 3))
        return x * 2


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x) + random.random()


class Detect(nn.Module):
    """A list of images in, a list of dicts out, like torchvision's detectors."""

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        return [{"boxes": image.mean((1, 2)), "labels": (image > 0).sum((1, 2))} for image in images]


class Clock(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + time.perf_counter()


SOUND: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any]]] = {
    "plain": (Scale, (torch.randn(2, 4),), {}),
    "training": (Scale, (torch.randn(2, 4),), {"mode": "training"}),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        (torch.randn(5, 4),),
        {"mode": "training"},
    ),
    "dropout": (lambda: nn.Dropout(0.5), (torch.ones(4, 4),), {"mode": "training"}),
    "random": (Noisy, (torch.zeros(2, 3),), {}),
    "state": (Count, (torch.ones(2, 4),), {"hooks": Hooks(observe=lambda model: model.calls)}),
    "input mutated": (InPlace, (torch.randn(2, 4),), {}),
    "printing": (Talks, (torch.randn(2, 4),), {}),
    "list of dicts": (Detect, ([torch.randn(3, 4, 4), torch.randn(3, 5, 4)],), {}),
    "integers": (lambda: nn.Embedding(7, 3), (torch.tensor([[0, 6, 2]]),), {}),
    "input gradient": (Scale, (torch.randn(2, 4, requires_grad=True),), {"mode": "training"}),
    "bfloat16": (lambda: Scale().bfloat16(), (torch.randn(2, 4).bfloat16(),), {}),
}


@pytest.mark.parametrize("name", SOUND)
def test_the_null_capture_is_sound(name: str) -> None:
    make, args, options = SOUND[name]
    torch.manual_seed(1)
    found = judge(subject(make(), *args, **options), itself)
    assert found.verdict == "sound", found
    # Batch norm in training cannot do without samples.
    judged = [probe for probe in found.probes if not (name == "batch norm" and probe.name in ("batch_0", "batch_1"))]
    assert {probe.outcome for probe in judged} == {"match"}
    assert all(probe.bitwise for probe in judged)
    assert {"same", "same_again", "fresh0", "fresh1", "same_last"} <= set(outcomes(found))


def test_probe_names_and_order() -> None:
    given = subject(Scale(), torch.randn(2, 4))
    assert [call.name for call in plan(given).calls] == [
        *("same", "same_again", "fresh0", "fresh1", "fresh_large", "fresh_small"),
        *("batch_1", "batch_3", "batch_0", "same_last"),
    ]
    of_five = [call.name for call in plan(subject(Scale(), torch.randn(5, 4))).calls if "batch" in call.name]
    assert of_five == ["batch_4", "batch_6", "batch_1", "batch_0"]
    of_one = [call.name for call in plan(subject(Scale(), torch.randn(1, 4))).calls if "batch" in call.name]
    assert of_one == ["batch_0", "batch_2"]
    declared = subject(
        Scale(), torch.randn(2, 4), declares_inputs=True,
        other_inputs=(Inputs((torch.randn(3, 4),)),), invalid_inputs=(Inputs((torch.randn(3, 5),)),),
    )  # fmt: skip
    assert [call.name for call in plan(declared).calls] == ["same", "same_again", "other0", "same_last", "invalid0"]
    assert set(outcomes(judge(declared, itself)).values()) == {"match"}


def wrong_constant(model: Any, x: torch.Tensor) -> Any:
    y, z = model(x)
    z = z.clone()
    z.view(-1)[0] += 1e-3
    return y, z


class Frozen:
    """A capture with the random numbers of its first call baked in."""

    noise: torch.Tensor | None = None

    def __call__(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.noise is None or self.noise.shape != x.shape:
            self.noise = torch.randn_like(x) + random.random()
        return x + self.noise


def stale(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Right output, buffer left alone from the second call on."""
    out: torch.Tensor = model(x)
    if model.calls > 1:
        model.total.sub_(x.sum(0))
        return out.clone()
    return out


#: name: (model, input, options, capture, aspect named in the detail, first probe that shows it)
BROKEN: dict[str, tuple[nn.Module, torch.Tensor, dict[str, Any], Callable[..., Any], str, str]] = {
    "constant": (Scale(), torch.randn(2, 4), {}, wrong_constant, "output value: output[1]: 1 of 8", "same"),
    "swapped": (Scale(), torch.randn(2, 4), {}, lambda m, x: m(x)[::-1], "output value", "same"),
    "list": (Scale(), torch.randn(2, 4), {}, lambda m, x: list(m(x)), "output structure: output: list instead", "same"),
    "dtype": (Scale(), torch.randn(2, 4), {}, lambda m, x: tuple(t.double() for t in m(x)), "output dtype", "same"),
    "mutation": (InPlace(), torch.randn(2, 4), {}, lambda m, x: m(x.clone()), "input mutation: input.args[0]", "same"),
    "mutates": (nn.ReLU(), torch.randn(2, 4), {}, lambda m, x: x.relu_(), "input mutation", "same"),
    "detached": (
        Scale(), torch.randn(2, 4), {"mode": "training"},
        lambda m, x: (m(x)[0], m(x)[1].detach()), "output requires_grad", "same",
    ),
    "gradient": (
        Scale(), torch.randn(2, 4), {"mode": "training"},
        lambda m, x: (m(x)[0], m(x)[1].detach() + 0 * m(x)[0]), "grad: lin.weight", "same",
    ),
    "state": (Count(), torch.ones(2, 4), {}, stale, "state: total", "same_again"),
    "no print": (Talks(), torch.randn(2, 4), {}, lambda m, x: x * 2, "side effect (printed): stdout: 0 lines", "same"),
    "attribute": (
        Count(), torch.ones(2, 4), {"hooks": Hooks(observe=lambda model: model.calls)},
        lambda m, x: x + m.total.add_(x.sum(0)), "side effect (observe)", "same",
    ),
    "aliases input": (
        nn.Hardtanh(-100, 100), torch.randn(2, 4), {}, lambda m, x: x,
        "alias: memory: output shares its memory", "same",
    ),
    "random": (Noisy(), torch.zeros(2, 3), {}, Frozen(), "output value", "same_again"),
    "batch baked in": (
        nn.ReLU(), torch.randn(1, 4), {}, lambda m, x: m(x)[:1],
        "output shape: output: [1, 4] instead of [2, 4]", "batch_2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_every_broken_capture_is_unsound(name: str) -> None:
    model, x, options, call, aspect, first = BROKEN[name]
    found = judge(subject(copy.deepcopy(model), x, **options), by(call))
    assert found.verdict == "unsound", found
    wrong = [probe for probe in found.probes if probe.outcome == "diverge"]
    assert wrong[0].name == first, found
    assert aspect in wrong[0].detail, wrong[0].detail


def test_an_output_kept_between_calls() -> None:
    kept = torch.zeros(4, 4)

    def static(model: Any, x: torch.Tensor) -> torch.Tensor:
        out = kept[: len(x)]
        out.copy_(model(x))
        return out

    found = judge(subject(nn.ReLU(), torch.randn(2, 4)), by(static))
    assert probe(found, "same").outcome == "match"
    assert "shares its memory with earlier output" in probe(found, "same_again").detail


def test_rounding_noise_is_sound_and_its_size_is_told() -> None:
    def reordered(model: Any, x: torch.Tensor) -> Any:
        weight, bias = model.lin.weight, model.lin.bias
        y = (x.flip(1) @ weight.flip(1).t()) * (1 + 1e-7) + bias
        return y, y.exp()

    for mode in ("inference", "training"):
        found = judge(subject(Scale(), torch.randn(3, 4), mode=mode), by(reordered))
        assert found.verdict == "sound", found
        assert probe(found, "same").bitwise is False
        error = probe(found, "same").max_error
        assert error is not None
        assert 0 < error < 1e-5


def test_raising_on_another_batch_is_restricted() -> None:
    def fixed(model: Any, x: torch.Tensor) -> Any:
        if len(x) != 2:
            raise ValueError("captured for a batch of 2\nand not more")
        return model(x)

    found = judge(subject(Count(), torch.ones(2, 4), hooks=Hooks(observe=lambda model: model.calls)), by(fixed))
    assert found.verdict == "restricted"
    assert probe(found, "batch_3").outcome == "raise"
    assert "ValueError: captured for a batch of 2 (at" in probe(found, "batch_3").detail
    # The calls after it start from the state that eager's have.
    assert probe(found, "same_last").outcome == "match"


def test_invalid_inputs_must_raise() -> None:
    bad = Inputs((torch.randn(2, 5),))
    given = subject(Scale(), torch.randn(2, 4), invalid_inputs=(bad,))
    assert probe(judge(given, itself), "invalid0").outcome == "match"
    lenient = judge(given, by(lambda m, x: m(x[:, :4])))
    assert probe(lenient, "invalid0").outcome == "diverge"
    assert "returns where eager raises RuntimeError" in probe(lenient, "invalid0").detail
    accepted = judge(subject(nn.ReLU(), torch.randn(2, 4), invalid_inputs=(bad,)), itself)
    assert probe(accepted, "invalid0").outcome == "n/a"
    assert accepted.verdict == "sound"


def test_where_eager_raises_a_probe_does_not_apply() -> None:
    given = subject(Scale(), torch.randn(2, 4), declares_inputs=True, other_inputs=(Inputs((torch.randn(2, 5),)),))
    found = judge(given, itself)
    assert probe(found, "other0").outcome == "n/a"
    assert "eager itself raises RuntimeError" in probe(found, "other0").detail
    assert found.verdict == "sound"


def test_what_eager_does_not_reproduce_is_no_verdict() -> None:
    found = judge(subject(Clock(), torch.zeros(2, dtype=torch.float64)), itself)
    assert found.verdict is None
    assert {name for name, outcome in outcomes(found).items() if outcome != "n/a"} == {"batch_0"}
    assert "eager itself does not reproduce this" in probe(found, "same").detail
    assert any("no verdict" in note for note in found.notes)


def test_an_unreproducible_side_effect_is_left_out_and_the_rest_still_judged() -> None:
    given = subject(nn.ReLU(), torch.randn(2, 4), hooks=Hooks(observe=lambda model: time.perf_counter_ns()))
    found = judge(given, itself)
    assert found.verdict == "sound"
    assert "not compared: observe, eager itself does not reproduce this" in probe(found, "same").detail
    assert judge(given, by(lambda m, x: m(x) + 1)).verdict == "unsound"


def test_what_capturing_changes_is_put_back_and_told() -> None:
    def runs_the_model(model: nn.Module, inputs: Inputs) -> Capture:
        for _ in range(3):
            model(*inputs.args)
        torch.rand(1)
        return itself(model, inputs)

    given = subject(Count(), torch.ones(2, 4), hooks=Hooks(observe=lambda model: model.calls))
    found = judge(given, runs_the_model)
    assert found.verdict == "sound", found
    note = next(note for note in found.notes if note.startswith("capturing changed"))
    for word in ("state total", "attribute calls", "random state (torch)"):
        assert word in note
    mutated = judge(subject(InPlace(), torch.randn(2, 4)), runs_the_model)
    assert mutated.verdict == "sound"
    assert any("the example inputs" in note for note in mutated.notes)


def test_hooks_are_called_in_order_for_eager_and_capture() -> None:
    seen: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def context(i: int) -> Any:
        seen.append(("enter", i))
        yield

    hooks = Hooks(
        between=lambda model, captured, i: seen.append(("between", i)),
        reset=lambda model: seen.append(("reset", -1)),
        call_context=context,
    )
    given = subject(nn.ReLU(), torch.randn(2, 4), hooks=hooks, declares_inputs=True)
    assert judge(given, itself).verdict == "sound"
    one_run = [("between", 0), ("enter", 0), ("between", 1), ("enter", 1), ("between", 2), ("enter", 2)]
    assert [step for step in seen if step[0] != "reset"] == 3 * one_run
    assert seen[0][0] == seen[-1][0] == "reset"


def test_observe_falls_back_to_the_model_where_the_captures_module_lacks_the_attribute() -> None:
    def elsewhere(model: nn.Module, inputs: Inputs) -> Capture:
        return Capture(call=model, module=nn.Module(), events=Events())

    given = subject(Count(), torch.ones(2, 4), hooks=Hooks(observe=lambda model: model.calls))
    assert judge(given, elsewhere).verdict == "sound"


@pytest.mark.parametrize("name", SOUND)
def test_judging_leaves_the_subject_as_it_was(name: str) -> None:
    make, args, options = SOUND[name]
    given = subject(make(), *copy.deepcopy(args), **options)
    before = copy.deepcopy(given.model.state_dict())
    inputs = copy.deepcopy(given.example)
    attributes = dict(given.model.__dict__.items())
    settings = (torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(), torch.is_grad_enabled())
    judge(given, by(lambda m, *a: m(*a)))
    assert all(torch.equal(before[key], value) for key, value in given.model.state_dict().items())
    assert same_values(inputs, given.example)
    assert all(parameter.grad is None for parameter in given.model.parameters())
    assert {key: value for key, value in attributes.items() if isinstance(value, int)} == {
        key: value for key, value in given.model.__dict__.items() if isinstance(value, int)
    }
    assert settings == (
        torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(), torch.is_grad_enabled(),
    )  # fmt: skip


class BranchOnValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.mean() > 0 else x - 1


class BranchOnState(nn.Module):
    """Right on the first call and the last, wrong on the second."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("odd", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.odd += 1
        return x * 2 if self.odd % 2 == 1 else x * 3


class BatchInside(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(int(x.shape[0]), 1)


class Dropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if random.random() < 0.5 else x * 2


@pytest.mark.parametrize(
    ("model", "x", "where"),
    [
        (BranchOnValue(), torch.tensor([[1.5, -0.3, 1.2, 1.1]]), {"fresh0", "fresh1"}),
        (BranchOnState(), torch.randn(2, 4), {"same_again"}),
        (Talks(), torch.randn(2, 4), {"same"}),
        (Dropped(), torch.randn(2, 4), {"same", "same_again", "fresh0", "fresh1"}),
    ],
)
def test_silent_errors_of_a_trace_are_found(model: nn.Module, x: torch.Tensor, where: set[str]) -> None:
    found = judge(subject(model, x), traced)
    assert found.verdict == "unsound", found
    assert where & {probe.name for probe in found.probes if probe.outcome == "diverge"}


def test_a_good_trace_is_sound() -> None:
    assert judge(subject(Scale().eval(), torch.randn(2, 4)), traced).verdict == "sound"
    buffers = subject(Count(), torch.ones(2, 4), aspects=frozenset(ASPECTS) - {"attribute"})
    found = judge(buffers, traced)
    assert found.verdict == "sound"
    assert "not compared, as soundness.aspects says: attribute" in found.notes


def test_python_attributes_are_compared() -> None:
    found = judge(subject(Count(), torch.ones(2, 4)), traced)
    assert found.verdict == "unsound"
    assert probe(found, "same").detail == "attribute: calls: 0 instead of 1"
    assert probe(found, "same_again").detail == "attribute: calls: 0 instead of 2"


class Remembers(nn.Module):
    """Keeps what it computed last, first under no name at all."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lin(x)
        self.last = y
        self.sizes.append(len(x))
        return y


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_an_attribute_that_appears_or_is_a_tensor_or_a_list(mode: str) -> None:
    given = subject(Remembers(), torch.ones(2, 4), mode=mode)
    assert judge(given, itself).verdict == "sound"

    def stale(model: Any, x: torch.Tensor) -> Any:
        kept = getattr(model, "last", None)
        y = model(x)
        model.last = y if kept is None else kept
        return y

    found = judge(given, by(stale))
    assert probe(found, "same").outcome == "match"
    assert probe(found, "fresh0").detail.startswith("attribute: last: 8 of 8 elements differ")

    def never(model: Any, x: torch.Tensor) -> Any:
        return model.lin(x)

    found = judge(given, by(never))
    assert probe(found, "same").detail == "attribute: last: missing; sizes: 0 items instead of 1"


def test_probes_are_chosen() -> None:
    given = subject(
        Scale(),
        torch.randn(3, 4),
        other_shapes={"shape_length=5": lambda: Inputs((torch.randn(2, 5, 4),))},
        invalid_inputs=(Inputs((torch.randn(3, 3),)),),
        probes=chosen(["shape", "invalid"]),
    )
    found = judge(given, itself)
    assert [probe.name for probe in found.probes] == ["same", "same_again", "shape_length=5", "same_last", "invalid0"]
    assert any("fewer probes" in note and "fresh, batch" in note for note in found.notes)
    rows = judge(given, by(lambda model, x: model(x) if x.dim() == 2 else (model(x)[0], x.exp())))
    assert [probe.name for probe in rows.probes if probe.outcome == "diverge"] == ["shape_length=5"]


class Threshold(nn.Module):
    """Takes its other branch only where values are large, or all of them small."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.abs().max()
        return x * 2 if (size > 6 if self.sign > 0 else size < 0.2) else x + 1


@pytest.mark.parametrize(("sign", "where"), [(1, "fresh_large"), (-1, "fresh_small")])
def test_branches_on_a_magnitude_are_found(sign: int, where: str) -> None:
    found = judge(subject(Threshold(sign), torch.randn(3, 4)), traced)
    assert [probe.name for probe in found.probes if probe.outcome == "diverge"] == [where]


def test_values_of_one_sign_are_not_scaled() -> None:
    names = [call.name for call in plan(subject(Scale(), torch.rand(3, 4))).calls]
    assert "fresh1" in names
    assert "fresh_large" not in names


class Drops(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.p)


def other_numbers(model: Any, x: torch.Tensor) -> Any:
    """The model on a random stream that depends on the seed, but is not eager's."""
    torch.rand(1)
    return model(x)


@pytest.mark.parametrize(
    ("stands_for", "outcome", "said"),
    [
        (other_numbers, "match", "the same distribution"),
        (
            lambda model, x: nn.functional.dropout(x, 0.3),
            "diverge",
            "another distribution: the mean square of output 0",
        ),
        (lambda model, x: nn.functional.dropout(x, 0.5) / 2, "diverge", "another distribution: the mean of output 0"),
        (lambda model, x: x * (x > 0.5) * 2, "diverge", "two calls with different seeds return the same values"),
        (lambda model, x: x * random.SystemRandom().random(), "diverge", "a seed does not give the same values again"),
    ],
)
def test_random_numbers_of_another_stream(stands_for: Any, outcome: str, said: str) -> None:
    found = judge_random_numbers(subject(Drops(0.5), torch.rand(16, 16) + 0.1), by(stands_for))
    assert found is not None
    assert (found.name, found.outcome) == ("random", outcome)
    assert said in found.detail


def test_a_model_without_random_numbers_has_no_such_probe() -> None:
    assert judge_random_numbers(subject(Scale(), torch.rand(3, 4)), itself) is None


@for_all(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)
)
def test_rank_sum(a: list[float], b: list[float]) -> None:
    assert rank_sum_z(a, b) == pytest.approx(-rank_sum_z(b, a))
    assert rank_sum_z(a, a) == 0
    assert rank_sum_z([value + 1e4 for value in a], b) > 0


def test_a_size_baked_into_a_trace_is_loud_or_found() -> None:
    found = judge(subject(BatchInside(), torch.randn(3, 4)), traced)
    raising = {name for name, outcome in outcomes(found).items() if outcome == "raise"}
    assert raising == {"batch_2", "batch_4", "batch_0"}
    # One row is broadcast to the three that were baked in.
    assert "output shape: output: [3, 4] instead of [1, 4]" in probe(found, "batch_1").detail


def test_a_model_without_a_float64_form_is_judged_by_the_fallback() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.lin(x.float())
            return out

    found = judge(subject(Half(), torch.randn(2, 4)), by(lambda m, x: m(x) * (1 + 3e-7)))
    assert found.verdict == "sound"
    assert any("does not run in float64" in note for note in found.notes)
    assert judge(subject(Half(), torch.randn(2, 4)), by(lambda m, x: m(x) * (1 + 1e-3))).verdict == "unsound"


def test_big_gradients_are_kept_as_block_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracebench.soundness.runs.GRADIENT_BUDGET", 0)
    assert judge(subject(Scale(), torch.randn(2, 4), mode="training"), itself).verdict == "sound"
    wrong = by(lambda m, x: (m(x)[0], m(x)[1].detach() + 0 * m(x)[0]))
    found = judge(subject(Scale(), torch.randn(2, 4), mode="training"), wrong)
    assert "blocks of 64 elements differ" in probe(found, "same").detail


def test_fresh_values_keep_aliasing_and_kind() -> None:
    base = torch.arange(6.0)
    made = fresh_values(Inputs((base, base[2:4], torch.tensor([5, 5]), torch.zeros(3)[None].expand(4, 3))), 1)
    first, window, ids, wide = made.args
    assert window.data_ptr() == first[2:4].data_ptr()
    assert not torch.equal(first, base)
    assert first.min() >= 0
    assert first.max() <= 5
    assert set(ids.tolist()) <= set(range(6))
    assert wide.stride() == (0, 1)
    assert wide.abs().sum() > 0


def test_float64_inputs_keep_aliasing() -> None:
    base = torch.arange(6.0)
    made = in_float64(Inputs((base, {"w": base[2:4]}, torch.tensor([1]))))
    assert made.args[0].dtype == torch.float64
    assert made.args[1]["w"].data_ptr() == made.args[0][2:4].data_ptr()
    assert made.args[2].dtype == torch.int64
    assert base.dtype == torch.float32


def test_other_batch_sizes() -> None:
    twice = torch.randn(2, 3)
    made = with_batch(Inputs((twice, {"mask": torch.ones(2, dtype=torch.bool)}), {"again": twice}), 3, 0)
    assert made.args[0].shape == (3, 3)
    assert made.args[1]["mask"].shape == (3,)
    assert made.kwargs["again"] is made.args[0]
    images = with_batch(Inputs(([torch.randn(3, 4, 4), torch.randn(3, 5, 5)],)), 1, 0)
    assert [image.shape for image in images.args[0]] == [(3, 4, 4)]
    assert with_batch(images, 0, 0).args == ([],)
    assert len(with_batch(images, 3, 0).args[0]) == 3
    assert with_batch(Inputs((twice,)), 5, 0).args[0].shape == (5, 3)
    assert with_batch(Inputs((twice,)), 0, 0).args[0].shape == (0, 3)
    found = judge(subject(nn.Bilinear(2, 3, 4), torch.randn(5, 2), torch.randn(5, 3)), itself)
    assert outcomes(found)["batch_4"] == outcomes(found)["batch_6"] == "match"
    apart = judge(subject(Apart(), torch.randn(5, 2), torch.randn(3, 3)), itself)
    assert probe(apart, "batch").outcome == "n/a"
    assert "do not share a leading dimension" in probe(apart, "batch").detail


def test_a_batch_size_that_the_author_cannot_make_does_not_apply() -> None:
    def draw(size: int) -> Inputs:
        if size == 0:
            raise RequestError("no samples")
        return Inputs((torch.ones(size, 4),))

    found = judge(subject(nn.ReLU(), torch.ones(3, 4), with_batch=draw, batch_size=3), itself)
    assert found.verdict == "sound"
    assert probe(found, "batch_0").detail == "the model's example_inputs() fails at this batch size: no samples"
    assert [name for name, outcome in outcomes(found).items() if outcome == "n/a"] == ["batch_0"]
    assert probe(found, "batch_1").outcome == "match"


def test_batches_on_which_eager_raises_or_has_no_numbers() -> None:
    normed = judge(subject(nn.BatchNorm1d(4), torch.randn(3, 4), mode="training"), itself)
    assert normed.verdict == "sound"
    assert outcomes(normed)["batch_1"] == "n/a"
    mean = judge(subject(Average(), torch.randn(3, 4), mode="training"), traced)
    assert mean.verdict == "sound", mean
    assert outcomes(mean)["batch_0"] == "match"


class Average(nn.Module):
    """NaN of no samples, in output, gradient and state."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 2)
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.lin(x).mean(0)
        self.last.copy_(mean.detach())
        return mean


def test_where_a_call_leaves_the_generators_counts() -> None:
    def more(model: Any, x: torch.Tensor) -> Any:
        out = model(x)
        torch.rand(1)
        random.random()
        return out

    given = subject(nn.Dropout(0.5), torch.ones(4, 4), mode="training")
    found = judge(given, by(more))
    assert found.verdict == "unsound"
    assert probe(found, "same").detail == (
        "side effect (random state): torch generator advanced differently; random generator advanced differently"
    )
    loose = replace(given, aspects=frozenset(ASPECTS) - {"random_state"})
    assert judge(loose, by(more)).verdict == "sound"
    assert judge(given, traced).verdict == "sound"


STEPS = 0
LOG: list[int] = []


class Logs(nn.Module):
    """Counts its calls at module level, and works by the count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global STEPS
        STEPS += 1
        LOG.append(len(x))
        return x * (2 if STEPS == 1 else 3)


def test_globals_are_put_back_before_each_run_and_compared() -> None:
    log = LOG
    good = judge(subject(Logs(), torch.ones(2, 4)), itself)
    assert good.verdict == "sound", good
    assert (STEPS, LOG) == (0, [])
    assert log is LOG

    def silent(model: Any, x: torch.Tensor) -> torch.Tensor:
        global STEPS
        STEPS += 1
        return x * (2 if STEPS == 1 else 3)

    found = judge(subject(Logs(), torch.ones(2, 4)), by(silent))
    assert found.verdict == "unsound"
    assert probe(found, "same").detail == "side effect (global): LOG: 0 items instead of 1"
    traces = judge(subject(Logs(), torch.ones(2, 4)), traced)
    assert Globals(nn.Sequential(nn.Linear(2, 2))).read() == {}
    assert "capturing changed: global STEPS, global LOG; the model was put back before the first call" in traces.notes


class Shared(nn.Module):
    seen: list[int] = []
    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        Shared.steps += 1
        return x + len(self.seen) + Shared.steps


def test_class_attributes_are_globals_too() -> None:
    good = judge(subject(Shared(), torch.ones(2, 4)), itself)
    assert good.verdict == "sound", good
    assert (Shared.seen, Shared.steps) == ([], 0)
    found = judge(subject(Shared(), torch.ones(2, 4)), by(lambda model, x: x + 2))
    assert probe(found, "same").detail == (
        "side effect (global): Shared.seen: 0 items instead of 1; Shared.steps: 0 instead of 1"
    )


class Fails(nn.Module):
    """Counts in a global, and cannot take three samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Shared.steps += 1
        return x + Shared.steps


def test_after_a_refused_call_globals_go_on_from_eagers() -> None:
    def picky(model: Any, x: torch.Tensor) -> Any:
        if len(x) == 1:
            raise ValueError("one sample")
        return model(x)

    found = judge(subject(Fails(), torch.ones(2, 4)), by(picky))
    assert found.verdict == "restricted"
    assert [name for name, outcome in outcomes(found).items() if outcome == "raise"] == ["batch_1"]


def test_globals_that_appear_or_were_no_plain_values() -> None:
    global LOG, STEPS
    watched, log, made_here = Globals(Logs()), LOG, globals()
    made_here["NEW"], made_here["itself"] = 1, 2
    STEPS, LOG = "many", [torch.ones(1)]  # type: ignore[assignment,list-item]
    assert watched.read()["LOG"] == "a list"
    assert set(watched.restore()) == {"NEW", "itself", "STEPS", "LOG"}
    assert "NEW" not in made_here
    assert callable(itself)
    assert (STEPS, LOG) == (0, [])
    assert watched.restore() == []
    LOG = log


class Apart(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.sum() + b.sum()


def test_gradients_that_eager_reproduces_only_in_part_are_judged_in_the_other_part() -> None:
    class Flaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # Never small: the size of what is not reproduced must not loosen what is asked of the other part.
            scale = 1e6 + float(time.perf_counter_ns() % 1000003)
            return x * self.a + (self.b * scale - (self.b * scale).detach())

    given = subject(Flaky(), torch.randn(2, 3), mode="training")
    found = judge(given, itself)
    assert found.verdict == "sound"
    assert (
        "not compared: grad of 1 tensors, eager itself does not reproduce this (grad: b" in probe(found, "same").detail
    )
    wrong = judge(given, by(lambda m, x: m(x).detach() + 0 * m.a + x * (m.a - m.a.detach()) * 2 + 0 * m.b))
    assert wrong.verdict == "unsound"
    assert "grad: a:" in probe(wrong, "same").detail


def test_noise_of_another_kernel_in_a_deep_model_is_sound() -> None:
    torch.manual_seed(3)
    blocks = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def other_layout(model: Any, x: torch.Tensor) -> Any:
        return model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))

    for mode in ("inference", "training"):
        found = judge(subject(model, torch.randn(3, 3, 12, 12), mode=mode), by(other_layout))
        assert found.verdict == "sound", [probe.detail for probe in found.probes]


def test_the_float64_reference_has_the_same_loss() -> None:
    def gradient() -> torch.Tensor:
        weights = torch.ones(6, dtype=torch.float64, requires_grad=True)
        run_backward(weights * 1)
        assert weights.grad is not None
        return weights.grad

    with default_float64(torch.float32):
        there = gradient()
    assert torch.equal(gradient(), there)
