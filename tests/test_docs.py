"""The pages on controls and on hooks say what the code does."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tracebench
from tracebench import hooks
from tracebench.controls.vocabulary import CONTROLS
from tracebench.hooks import Traced
from tracebench.report import load_records, render_table

from .conftest import ROOT, loaded


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


HOOKS = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")


def test_the_tables_of_hooks_are_what_the_records_print() -> None:
    assert loaded(ROOT / "docs" / "refresh.py").readme(HOOKS) == HOOKS, "run: python docs/refresh.py"
    assert "12 cases:" in HOOKS


def test_what_hooks_are_quoted_to_say_they_said() -> None:
    records, _ = load_records(ROOT / "results" / "reference-hooks")
    printed = " ".join(render_table(records).split())
    quoted = re.findall(r"<!-- said by results/reference-hooks -->\n```text\n(.*?)```", HOOKS, re.S)
    assert len(quoted) == 3
    for line in "".join(quoted).splitlines():
        assert line in printed


def test_the_hook_on_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(# my_hook\.py\n.*?)```", HOOKS, re.S)
    (tmp_path / "my_hook.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    record = tracebench.run(
        torch.nn.Tanh(), (torch.ones(2),), "hook", frontend_options={"hook": "my_hook.py"}, blame_seconds=0,
        stages=("soundness", "coverage"), lifecycle_seconds=0,
    )  # fmt: skip
    assert record.verdict == "sound"
    assert record.coverage is not None
    assert record.coverage.ops == 1.0


def test_the_fields_and_files_on_the_page_are_all_there_are() -> None:
    fields = re.findall(r"^\| `(\w+)` \|", HOOKS[HOOKS.index("| field of `Traced`") :], re.M)
    assert fields == [field.name for field in dataclasses.fields(Traced)]
    files = re.findall(r"\]\(\.\./models/hooks/(\w+)\.py\)", HOOKS)
    assert sorted(files) == sorted(path.stem for path in (ROOT / "models" / "hooks").glob("*.py"))
    assert all(f"hooks.{name}" in HOOKS or f"`{name}(" in HOOKS for name in hooks.__all__)
