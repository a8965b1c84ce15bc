"""Every pitfall model teaches what it says: the form of its file, and the verdicts it expects."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tracebench import config
from tracebench.case import Case, ModelSpec
from tracebench.helptext import help_page
from tracebench.running.journal import Journal
from tracebench.running.launch import make_launcher
from tracebench.running.limits import Limits
from tracebench.running.stages import run_case
from tracebench.running.sweep import Request, run_sweep
from tracebench.status import OUTCOMES, as_expected, outcome

FRONT_ENDS = ("dynamo", "jit_trace", "fx", "hook")
FILES = sorted((config.models_folder() / "pitfalls").glob("*.py"))


def test_there_are_many() -> None:
    assert len(FILES) >= 50


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_explains_itself(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree)
    assert text is not None
    summary, blank, rest = text.split("\n", 2)
    assert len(summary) <= 100
    assert summary.endswith(".")
    assert blank == ""
    places = [rest.index(part) for part in ("What happens: ", "Why: ", "What to do instead: ")]
    assert places == sorted(places)
    assert places[0] == 0
    [expect] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["EXPECT"]
    ]
    assert tuple(expect) == FRONT_ENDS
    for words in expect.values():
        assert set([words] if isinstance(words, str) else words) <= set(OUTCOMES)
    chosen = OmegaConf.load(config.config_folder() / "model" / "pitfalls" / f"{path.stem}.yaml")
    assert chosen.name == path.stem
    assert f"{chosen.summary}." == summary
    assert OmegaConf.to_container(chosen)["path"] == f"${{models_dir:}}/pitfalls/{path.name}"


def test_every_choice_has_its_file() -> None:
    chosen = {path.stem for path in (config.config_folder() / "model" / "pitfalls").glob("*.yaml")}
    assert chosen == {path.stem for path in FILES}
    assert f"{len(FILES)} small models" in help_page()


@pytest.mark.timeout(600)
def test_every_verdict_is_the_expected_one(tmp_path: Path) -> None:
    requests = [
        Request(Case(ModelSpec(path.stem, str(path)), front_end, stages=("soundness",)), Limits(120.0), {})
        for path in FILES
        for front_end in FRONT_ENDS
    ]
    launcher = make_launcher("auto")
    try:
        records = [step.record for step in run_sweep(requests, tmp_path, "all", launcher)]
    finally:
        launcher.close()
    assert len(records) == len(requests)
    surprises = [
        (record.case["model"], record.case["frontend"], outcome(record.status, record.verdict), record.expected)
        for record in records
        if not as_expected(record.status, record.verdict, record.expected)
    ]
    assert surprises == []


def test_what_a_file_expects_is_of_the_front_end_without_options() -> None:
    [path] = [path for path in FILES if path.stem == "branch_on_value"]

    def expected(**options: object) -> object:
        entries: list[dict[str, Any]] = []
        case = Case(ModelSpec(path.stem, str(path)), "hook", dict(options), stages=())
        run_case(case, Journal(entries.append))
        return next(entry["set"]["expected"] for entry in entries if "expected" in entry.get("set", {}))

    assert expected() is not None
    assert expected(on_guard_failure="raise") == expected()
    assert expected(on_guard_failure="retrace") is None
