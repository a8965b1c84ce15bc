"""What the README says of the code is so."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tracebench import config
from tracebench.case import Case, ModelSpec
from tracebench.frontends import FRONT_ENDS
from tracebench.status import VERDICTS
from tracebench.subject import load

from .conftest import ROOT, loaded

README = (ROOT / "README.md").read_text(encoding="utf-8")


def refresh() -> ModuleType:
    return loaded(ROOT / "docs" / "refresh.py")


def test_the_tables_are_what_the_reference_records_print() -> None:
    for page in refresh().PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert refresh().readme(text) == text, f"{page}: run python docs/refresh.py"
    assert "resnet18" in README


def test_the_first_screen_has_sentence_command_table_and_plot() -> None:
    first = README[: README.index("## A model of your own")]
    assert "python -m tracebench model=resnet50 frontend=dynamo" in first
    assert "1 case: 1 sound" in first
    assert "12 cases:" in README
    [plot] = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", first)
    assert (ROOT / plot).read_bytes().startswith(b"\x89PNG")


def test_ci_runs_the_readmes_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "<!-- test command -->" in script
    assert re.search(r"<!-- test command -->\n```sh\n.*-m pytest -q\n```", README)


def test_the_models_file_in_it_loads(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(import torch\n.*?)```", README, re.S)
    path = tmp_path / "mine.py"
    path.write_text(code, encoding="utf-8")
    subject = load(Case(ModelSpec("mine", str(path), {"hidden": 64}), "fx", batch_size=16))
    assert subject.example.args[0].shape == (16, 8)
    with torch.no_grad():
        assert subject.model(*subject.example.args).shape == (16, 2)


@pytest.mark.parametrize("word", [*FRONT_ENDS, *config.EXECUTORS, *VERDICTS])
def test_every_word_is_explained(word: str) -> None:
    assert f"`{word}`" in README


def test_hooks_in_it_are_those_the_loader_reads() -> None:
    loader = (ROOT / "tracebench" / "subject.py").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)", README[README.index("| name | meaning |") :], re.M)
    for name in named[: named.index("call_context") + 1]:
        assert f'"{name}"' in loader, name


@pytest.mark.parametrize("page", ["README.md", "docs/measuring.md"])
def test_keys_in_it_exist(page: str) -> None:
    found = re.findall(r"`((?:\w+\.)*\w+)=", (ROOT / page).read_text(encoding="utf-8"))
    assert found
    for key in found:
        if not key.startswith(("model.options.", "model.path")):
            assert key in [*config.valid_keys(key)], key
