"""The comparison finds every injected fault and never reports noise of rounding size."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tracebench.soundness.aliasing import aliasing
from tracebench.soundness.blocksums import block_sums
from tracebench.soundness.compare import bitwise_equal, compare, compare_text
from tracebench.soundness.structure import to_tree
from tracebench.soundness.tolerance import TOLERANCES, compare_values

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Result:
    score: Any
    name: str = "result"


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype] = FLOATS, smallest: int = 1) -> torch.Tensor:
    """Random tensors of various dtypes, shapes, layouts in memory and magnitudes, spread over six orders within one."""
    shape = draw(st.lists(st.integers(smallest, 5), min_size=0, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    dtype = draw(st.sampled_from(dtypes))
    spread = 2 if dtype == torch.float16 else 6
    values *= 10 ** (torch.rand(shape, generator=generator, dtype=torch.float64) * spread - spread / 2)
    values *= 10.0 ** draw(st.integers(-1, 1))
    tensor = values.to(dtype)
    if draw(st.booleans()) and tensor.dim() >= 2:
        tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
    return tensor


@st.composite
def structures(draw: st.DrawFn) -> Any:
    """Nested containers that hold at least one tensor, the first reached by ``first_tensor``."""
    leaf = tensors()
    other = st.one_of(leaf, st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats(allow_nan=True))
    tree = draw(leaf)
    for _ in range(draw(st.integers(0, 3))):
        rest = draw(st.lists(other, max_size=2))
        kind = draw(st.sampled_from(["list", "tuple", "dict", "ordered", "pair", "dataclass"]))
        match kind:
            case "list":
                tree = [tree, *rest]
            case "tuple":
                tree = (tree, *rest)
            case "dict":
                tree = {"t": tree, **{f"k{i}": item for i, item in enumerate(rest)}}
            case "ordered":
                tree = OrderedDict([("t", tree), *((i, item) for i, item in enumerate(rest))])
            case "pair":
                tree = Pair(tree, rest)
            case "dataclass":
                tree = Result(tree)
    return tree


def replace_first(tree: Any, change: Any) -> Any:
    """Return ``tree`` copied, its innermost first tensor replaced by ``change(tensor)``."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return type(tree)((k, replace_first(v, change) if i == 0 else v) for i, (k, v) in enumerate(tree.items()))
    if isinstance(tree, Pair):
        return Pair(replace_first(tree.first, change), tree.second)
    if isinstance(tree, Result):
        return dataclasses.replace(tree, score=replace_first(tree.score, change))
    return type(tree)([replace_first(tree[0], change), *tree[1:]])


def kinds(expected: Any, actual: Any, **options: Any) -> set[str]:
    return {difference.kind for difference in compare(expected, actual, **options).differences}


def scale(tensor: torch.Tensor) -> torch.Tensor:
    """The scale of the tolerance rule: magnitude plus typical magnitude."""
    wide = tensor.double().abs()
    nonzero = wide[wide > 0]
    return wide + (nonzero.median() if nonzero.numel() else 0.0)


@given(structures())
@settings(max_examples=60, deadline=None)
def test_equal_to_its_copy(tree: Any) -> None:
    found = compare(tree, to_tree(tree, own=True), tree)
    assert found.equal
    assert found.bitwise is True


@given(structures(), st.data())
@settings(max_examples=100, deadline=None)
def test_one_wrong_element_is_found_without_and_with_a_reference(tree: Any, data: st.DataObject) -> None:
    where = data.draw(st.integers(0, 10**6))

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        wrong = tensor.clone().contiguous()
        flat = wrong.view(-1)
        at = where % flat.numel()
        # Off by a hundred times what the fallback allows, or what rounding can explain.
        rule = TOLERANCES[tensor.dtype]
        flat[at] = (flat[at].double() + 4 * scale(tensor).reshape(-1)[at] * max(100 * rule.fallback, 0.5)).to(
            tensor.dtype
        )
        return wrong

    wrong = replace_first(tree, spoil)
    assert "value" in kinds(tree, wrong) or "inf" in kinds(tree, wrong)
    assert kinds(tree, wrong, reference=tree) & {"value", "inf"}


@given(tensors([torch.float32, torch.float64]), st.data())
@settings(max_examples=100, deadline=None)
def test_with_a_reference_a_single_element_is_found_far_below_the_fallback(
    reference: torch.Tensor, data: st.DataObject
) -> None:
    reference = reference.double()
    expected = reference.float()
    at = data.draw(st.integers(0, expected.numel() - 1))
    wrong = expected.clone().contiguous()
    wrong.view(-1)[at] += (scale(reference).reshape(-1)[at] * 2e-5).float()
    assert kinds(expected, wrong, reference=reference) == {"value"}
    assert kinds(expected, wrong) == set()  # below the fallback tolerance


@given(tensors(), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_rounding_noise_is_never_reported(expected: torch.Tensor, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    eps = torch.finfo(expected.dtype).eps

    def noisy(size: float) -> torch.Tensor:
        noise = torch.rand(expected.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return expected.double() + noise * eps * size * scale(expected)

    # Two roundings of one exact value, each off by a few units in the last place of the typical element.
    actual = noisy(1.0).to(expected.dtype)
    for reference in (None, noisy(1.0)):
        found = compare(expected, actual, reference)
        assert found.equal, found
        assert found.max_error is not None


def test_noise_as_large_as_eagers_own_error_passes_and_more_does_not() -> None:
    reference = torch.linspace(1, 2, 1000, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(1000, generator=generator, dtype=torch.float64) * 1e-4
    expected = (reference + noise).float()
    assert compare(expected, (reference - noise).float(), reference).equal
    wrong = (reference - noise).float()
    wrong[500] += 1e-3
    assert not compare(expected, wrong, reference).equal


def test_values_that_are_noise_around_zero() -> None:
    # The gradient of a bias in front of a batch norm: zero in exact arithmetic.
    reference = torch.full((16,), 1e-18, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    expected, actual = (torch.randn(16, generator=generator) * 1e-8 for _ in range(2))
    assert compare(expected, actual, reference).equal
    actual[3] = 1e-5
    assert not compare(expected, actual, reference).equal


def test_where_the_reference_took_another_branch_the_fallback_judges() -> None:
    reference = torch.ones(100, dtype=torch.float64)
    expected = torch.ones(100)
    expected[:50] = 3.0  # eager's other branch
    assert compare(expected, expected * (1 + 1e-6), reference).equal
    wrong = expected.clone()
    wrong[7] = 1.0  # what the reference says, not what eager says
    assert not compare(expected, wrong, reference).equal
    wrong = expected.clone()
    wrong[77] = 3.0
    assert not compare(expected, wrong, reference).equal


def test_a_huge_element_hides_no_wrong_one() -> None:
    expected = torch.rand(100) + 1
    expected[0] = 1e8
    wrong = expected.clone()
    wrong[1] += 0.01
    assert kinds(expected, wrong) == {"value"}
    assert kinds(expected, wrong, reference=expected.double()) == {"value"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_are_exact(dtype: torch.dtype) -> None:
    expected = torch.tensor([0, 1, 1]).to(dtype)
    actual = torch.tensor([0, 1, 0]).to(dtype)
    assert kinds(expected, actual) == {"value"}


@given(structures(), st.sampled_from([float("nan"), float("inf"), -float("inf")]))
@settings(max_examples=60, deadline=None)
def test_nan_and_inf_patterns(tree: Any, special: float) -> None:
    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        wrong = tensor.clone().contiguous()
        wrong.view(-1)[-1] = special
        return wrong

    wrong = replace_first(tree, spoil)
    assert kinds(tree, wrong) & {"nan", "inf"}
    assert kinds(wrong, tree) & {"nan", "inf"}
    assert compare(wrong, to_tree(wrong, own=True)).equal
    negated = replace_first(wrong, lambda tensor: torch.where(torch.isinf(tensor), -tensor, tensor))
    assert compare(wrong, negated).equal == (special != special)


@given(structures(), st.sampled_from(["dtype", "shape", "requires_grad", "stride", "type", "missing", "order"]))
@settings(max_examples=120, deadline=None)
def test_each_structural_fault_is_found(tree: Any, fault: str) -> None:
    if fault == "dtype":
        to = {torch.float64: torch.float32}
        wrong = replace_first(tree, lambda tensor: tensor.to(to.get(tensor.dtype, torch.float64)))
        assert "dtype" in kinds(tree, wrong)
    elif fault == "shape":
        assert "shape" in kinds(tree, replace_first(tree, lambda tensor: tensor.unsqueeze(0)))
    elif fault == "requires_grad":
        wrong = replace_first(tree, lambda tensor: tensor.clone().requires_grad_())
        assert kinds(tree, wrong) == {"requires_grad"}
        assert compare(tree, wrong, requires_grad=False).equal
    elif fault == "stride":
        square = torch.arange(6.0).view(2, 3)
        wrong = {"t": square.t().contiguous().t(), "tree": tree}
        assert kinds({"t": square, "tree": tree}, wrong, strides=True) == {"strides"}
        assert any("strides" in note for note in compare({"t": square, "tree": tree}, wrong).notes)
    elif fault == "type":
        assert "type" in kinds([tree], (tree,))
        assert "type" in kinds({"t": tree}, OrderedDict(t=tree))
        assert "type" in kinds(Pair(tree, 1), (tree, 1))
        assert "type" in kinds(tree, None)
    elif fault == "missing":
        assert kinds({"a": tree, "b": 1}, {"b": 1}) == {"keys"}
        assert kinds({"b": 1}, {"a": tree, "b": 1}) == {"keys"}
        assert kinds([tree, tree], [tree]) == {"length"}
    else:
        assert kinds({"a": tree, "b": 1}, {"b": 1, "a": tree}) == {"key order"}


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (None, 0),
        (True, 1),
        (1, 2),
        (1.0, 1.5),
        ("a", "b"),
        (torch.Size([1, 2]), torch.Size([2, 1])),
        (torch.Size([1, 2]), (1, 2)),
        (np.ones(3), np.zeros(3)),
        (np.ones(3, np.float32), np.ones(3, np.float64)),
        (np.ones(3), torch.ones(3)),
        ({1, 2}, {1}),
        (float("nan"), 0.0),
        (torch.float32, torch.float64),
        (torch.ones(2).to_sparse(), torch.ones(2)),
        (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64) * 1j),
    ],
)
def test_other_values(expected: Any, actual: Any) -> None:
    assert not compare(expected, actual).equal
    assert compare(expected, expected).equal
    assert compare(expected, to_tree(expected, own=True)).equal


def test_nested_sparse_empty_meta_and_cyclic_values_do_not_crash() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    other = torch.nested.nested_tensor([torch.ones(1, 3), torch.ones(2, 3)], layout=torch.jagged)
    assert compare(jagged, jagged).equal
    assert not compare(jagged, other).equal
    assert compare(torch.empty(0), torch.empty(0)).equal
    meta = torch.ones(2, device="meta")
    assert compare(meta, torch.ones(2, device="meta")).equal
    assert kinds(meta, torch.ones(2)) == {"device"}
    cyclic: list[Any] = [1]
    cyclic.append(cyclic)
    assert compare(cyclic, cyclic).equal
    assert aliasing({"output": [jagged, meta, torch.empty(0)]}) == frozenset()


def test_objects_without_equality_are_compared_by_type_and_that_is_said() -> None:
    class Plain:
        pass

    found = compare(Plain(), Plain())
    assert found.equal
    assert "by type only" in found.notes[0]
    assert kinds(Plain(), object()) == {"type"}


def test_strides_are_a_note_unless_asked_for() -> None:
    images = torch.rand(2, 3, 4, 5)
    last = images.to(memory_format=torch.channels_last)
    found = compare(images, last)
    assert found.equal
    assert found.bitwise
    assert "strides" in found.notes[0]
    assert kinds(images, last, strides=True) == {"strides"}


def test_bits() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert bitwise_equal(nan, nan.clone())
    assert not bitwise_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert compare(torch.tensor([0.0]), torch.tensor([-0.0])).equal
    assert compare(torch.tensor([0.0]), torch.tensor([-0.0])).bitwise is False


@given(tensors(smallest=2), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_aliasing_is_seen(tensor: torch.Tensor, how: int) -> None:
    tensor = tensor.contiguous().reshape(-1)
    if tensor.numel() < 2:
        tensor = torch.arange(4.0)
    view = (tensor, tensor[:-1], tensor.view(1, -1), tensor.detach())[how]
    separate = aliasing({"output": [view.clone()], "input": [tensor]})
    shared = aliasing({"output": [view], "input": [tensor]})
    assert separate == frozenset()
    assert len(shared) == 1
    assert next(iter(shared)).how == ("overlap" if how == 1 else "same")


def test_windows_that_share_a_storage_but_no_element_do_not_alias() -> None:
    base = torch.rand(4, 6)
    assert aliasing({"output": list(base.chunk(3, 1))}) == frozenset()
    assert aliasing({"output": [base[::2], base[1::2]]}) == frozenset()
    assert len(aliasing({"output": [base[::2], base[:, 1:]]})) == 1


@given(st.integers(1, 300), st.data())
@settings(max_examples=40, deadline=None)
def test_block_sums_still_show_one_wrong_element(count: int, data: st.DataObject) -> None:
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(count))
    wrong = tensor.clone()
    wrong[data.draw(st.integers(0, count - 1))] += 0.5
    first, second = block_sums(tensor), block_sums(wrong)
    assert compare_values(first.sums, block_sums(tensor.clone()).sums, None, torch.float32).wrong == 0
    assert compare_values(first.sums, second.sums, None, torch.float32).wrong == 1


def test_printed_text() -> None:
    assert compare_text("step 1 mean 0.1234\n", "step 1 mean 0.1235\n", "stdout").equal
    assert not compare_text("step 1 mean 0.1234\n", "step 1 mean 0.2234\n", "stdout").equal
    assert not compare_text("step 1\n", "step 2\n", "stdout").equal
    assert not compare_text("step 1\n", "", "stdout").equal
