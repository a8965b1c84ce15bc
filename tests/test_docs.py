"""The page on controls says what the code does."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tracebench.controls.vocabulary import CONTROLS

from .conftest import ROOT


@pytest.fixture(scope="module")
def made() -> Any:
    spec = importlib.util.spec_from_file_location("controls_page", ROOT / "docs" / "controls.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Functions of it are named as controls' targets.
    sys.modules["controls_page"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["controls_page"]


@pytest.fixture(scope="module")
def page() -> str:
    text = (ROOT / "docs" / "controls.md").read_text(encoding="utf-8")
    torch_here = torch.__version__.partition("+")[0]
    if f"with torch {torch_here}." not in text:
        pytest.skip(f"the page was made with another torch than {torch_here}")
    return text


def test_every_control_is_shown(made: ModuleType, page: str) -> None:
    assert made.vocabulary() in page
    assert set(made.SHOWN) == set(CONTROLS)
    assert all(f"`controls.{name}=" in page for name in CONTROLS)


@pytest.mark.filterwarnings("ignore:.*Dynamo does not know how to trace:UserWarning")
def test_misconceptions_come_to_what_the_page_says(made: ModuleType, page: str) -> None:
    assert made.misconceptions() in page


@pytest.mark.parametrize("control", ["disable", "graph_break_after", "assume_constant_result", "mark_static", "stance"])
def test_effects_are_what_the_page_says(control: str, made: ModuleType, page: str) -> None:
    value = made.SHOWN[control][0]
    row = [made.spelled(control, value), *made.figures(made.run("dynamo", {control: value}))]
    assert f"| {' | '.join(row)} |" in page
