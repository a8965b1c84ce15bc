"""The largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebench.case import Case, ModelSpec
from tracebench.cli import _COLLECTED, _compose
from tracebench.config import to_request
from tracebench.record import BatchTry, ErrorInfo
from tracebench.running.largest import CLOSE, RETREATS, run_largest, search
from tracebench.running.launch import ForkServer
from tracebench.running.limits import Limits
from tracebench.running.runner import run_case

from .records import record


def memory(most: int, why: str = "oom") -> Callable[[int], BatchTry]:
    """Return what a device does on which ``most`` samples fit."""
    return lambda size: BatchTry(size, "fits" if size <= most else why, 0.1, "" if size <= most else "no room")


@given(most=st.integers(0, 3000), limit=st.integers(1, 3000))
def test_the_search_ends_at_the_largest_that_fits(most: int, limit: int) -> None:
    tries = list(search(memory(most), limit))
    sizes = [one.batch_size for one in tries]
    assert len(set(sizes)) == len(sizes) <= 22
    assert min(sizes) >= 1
    assert max(sizes) <= limit
    fits = max((one.batch_size for one in tries if one.outcome == "fits"), default=0)
    assert fits <= min(most, limit)
    assert min(most, limit) - fits <= max(1, CLOSE * fits) - 1


def test_what_is_no_question_of_memory_ends_the_search() -> None:
    assert [one.batch_size for one in search(memory(0, "error"), 1024)] == [8]
    assert [one.batch_size for one in search(memory(20, "timeout"), 1024)] == [8, 16, 32, 24, 20, 22, 21]


def test_the_case_itself_is_the_last_try() -> None:
    """The case needs twice what its calls need."""
    ran: list[int] = []

    def case(size: int) -> Any:
        ran.append(size)
        oom = size > 32
        return record(ending="oom" if oom else "sound", batch_size=size)

    found, search_ = run_largest(memory(64), case, 1024)
    assert ran == [64, 48, 36, 27]
    assert found.case["batch_size"] == 27
    assert [one.batch_size for one in search_.tries[-3:]] == [64, 48, 36]
    assert search_.ended == "36 samples do not fit (oom): the whole case: tried to allocate 3 GiB"

    ran.clear()
    never = record(ending="oom", error=ErrorInfo("load", "OutOfMemoryError", "none"))
    assert run_largest(memory(64), lambda size: ran.append(size) or never, 64)[0].status == "oom"
    assert len(ran) == 1 + RETREATS


def test_where_all_fits_the_limit_is_said() -> None:
    found, search_ = run_largest(memory(10**6), lambda size: record(batch_size=size), 100)
    assert found.case["batch_size"] == 100
    assert search_.ended == "batch_limit=100 fits; a larger one was not tried"
    assert [one.batch_size for one in search_.tries] == [8, 16, 32, 64, 100]


@pytest.fixture(scope="module")
def launcher() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


#: A model for which ten samples are too many: it says so as an allocator does, or takes the memory.
_HUNGRY = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        if x.shape[0] > 10:
            {full}
        return x + 1


def make_model():
    return Model().eval()


def example_inputs(batch_size=2):
    return (torch.randn(batch_size, 4),)
"""


@pytest.mark.parametrize(
    ("full", "words"),
    [
        ("raise torch.OutOfMemoryError('CUDA out of memory')", "OutOfMemoryError: CUDA out of memory"),
        ("torch.ones(10**10, dtype=torch.uint8).sum()", "used "),
    ],
    ids=["the device's allocator", "the limit on memory"],
)
def test_a_case_gets_the_largest_batch_and_says_how_it_was_found(
    full: str, words: str, tmp_path: Path, launcher: ForkServer
) -> None:
    path = tmp_path / "hungry.py"
    path.write_text(_HUNGRY.format(full=full), encoding="utf-8")
    asked = Case(ModelSpec("hungry", str(path)), "hook", device="cpu", batch_limit=64, stages=())
    assert asked.describe()["batch_size"] == "max"
    found = run_case(asked, "0" * 16, Limits(120.0, 1.5), launcher)
    assert found.status == "done"
    assert found.case["batch_size"] == 10
    assert found.batch_search is not None
    assert [(one.batch_size, one.outcome) for one in found.batch_search.tries] == [
        (8, "fits"), (16, "oom"), (12, "oom"), (10, "fits"), (11, "oom"),
    ]  # fmt: skip
    assert words in found.batch_search.ended
    assert any(found.batch_search.ended in note for note in found.notes)


@pytest.mark.parametrize(("given", "limit"), [([], 1024), (["batch_limit=9"], 9)])
def test_the_command_line_asks_for_it(given: list[str], limit: int) -> None:
    _compose(["model=gpt", "frontend=fx", "batch_size=max", *given])
    [asked] = [to_request(composed).case for composed in _COLLECTED]
    assert (asked.batch_size, asked.batch_limit, asked.describe()["batch_size"]) == (None, limit, "max")
