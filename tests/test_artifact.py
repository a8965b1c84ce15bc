"""``capture.save=true``: the artifact is on disk, and what is said of loading it is so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tracebench.artifact import judge_artifact, save_artifact, try_artifact
from tracebench.case import Case, ModelSpec
from tracebench.frontends.base import UNSAVED
from tracebench.running.journal import Journal
from tracebench.running.stages import run_case

from .subjects import subject


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1


def symbolic(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.fx.symbolic_trace(model)


def plain(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return model.forward


def saved(front_end: str, path: Path, model: nn.Module | None = None, **options: Any) -> dict[str, Any]:
    """Return what a case with ``capture.save`` tells."""
    model = model or nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    case = Case(
        ModelSpec("m", ""), front_end, options, stages=(), capture={"dump": False, "save": True},
    )  # fmt: skip
    entries: list[dict[str, Any]] = []
    run_case(case, Journal(entries.append), subject(model.eval(), torch.randn(2, 3)), artifact=path)
    found: dict[str, Any] = {"notes": [entry["note"] for entry in entries if "note" in entry]}
    for entry in entries:
        found |= entry.get("set", {})
    return found


@pytest.mark.parametrize(
    ("front_end", "options", "suffix"),
    [
        ("jit_trace", {}, ".ts"),
        ("fx", {}, ".pt"),
        ("hook", {}, ".pt"),
        ("hook", {"hook": f"{__name__}:symbolic"}, ".pt"),
    ],
)
def test_an_artifact_gives_the_same_in_another_process(
    front_end: str, options: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    found = saved(front_end, tmp_path / "artifacts" / "key.pt", **options)
    told = found["capture"]["artifact"]
    path = tmp_path / "artifacts" / f"key{suffix}"
    assert told == {
        "path": f"artifacts/key{suffix}", "bytes": path.stat().st_size, "loads": True,
        "detail": "it gives the capture's outputs to the bit",
    }  # fmt: skip
    assert [other.name for other in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("front_end", "options", "why"),
    [
        ("eager", {}, "eager captures nothing"),
        ("dynamo", {}, "guards and the Python between Dynamo's graphs live in this process"),
        ("hook", {"hook": f"{__name__}:plain"}, "the hook returned no graph but a callable"),
    ],
)
def test_where_there_is_none_a_note_says_why(front_end: str, options: dict[str, Any], why: str, tmp_path: Path) -> None:
    found = saved(front_end, tmp_path / "key.pt", **options)
    assert found["capture"]["artifact"] is None
    [note] = [note for note in found["notes"] if note.startswith(UNSAVED)]
    assert why in note
    assert not list(tmp_path.iterdir())


class Refuses(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


def test_modules_left_to_python_are_in_no_file(tmp_path: Path) -> None:
    found = saved("fx", tmp_path / "key.pt", nn.Sequential(nn.Linear(3, 3), Refuses()), on_refusal="exclude")
    assert f"{UNSAVED}modules were left to Python" in found["notes"]


def trial(path: Path, model: nn.Module) -> Any:
    x = torch.ones(3)
    return judge_artifact(path, [model(x)], lambda: try_artifact(path, (x,), {}, seed=0, grad=False))


def test_a_file_that_needs_the_models_source_does_not_load(tmp_path: Path) -> None:
    # Its class is of a module that only this process can import.
    path = save_artifact(lambda at: torch.save(Own(), at), tmp_path / "key.pt")
    told = trial(path, Own())
    assert told.loads is False
    assert "without the model's source: ModuleNotFoundError" in told.detail


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_other_outputs_are_told(tmp_path: Path) -> None:
    path = save_artifact(lambda at: torch.jit.save(torch.jit.script(nn.Identity()), str(at)), tmp_path / "key.pt")
    assert path.suffix == ".ts"
    told = trial(path, Own())
    assert (told.loads, told.detail) == (False, "it loads, and output 0 differs")


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def save(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_artifact(save, tmp_path / "key.pt")
    assert not list(tmp_path.iterdir())


def test_table_and_csv_tell_the_size(
    tracebench: Callable[..., subprocess.CompletedProcess[str]], model_file: Callable[..., Path], tmp_path: Path
) -> None:
    ran = tracebench(
        "model=file", f"model.path={model_file('mine')}", "frontend=fx", "capture.save=true", "stages=[]", "name=saved"
    )
    assert ran.returncode == 0, ran.stderr
    [path] = (tmp_path / "results" / "saved" / "records").glob("*.json")
    told = json.loads(path.read_text())["capture"]["artifact"]
    assert told["loads"] is True
    assert told["path"] == f"artifacts/{path.stem}.pt"
    size = (tmp_path / "results" / "saved" / told["path"]).stat().st_size
    assert told["bytes"] == size
    shown = " ".join(ran.stdout.split())
    assert f"artifact: {size / 1e6:.4g} MB in artifacts/{path.stem}.pt" in shown
    heading, row = (tmp_path / "results" / "saved" / "summary.csv").read_text().splitlines()
    assert row.split(",")[heading.split(",").index("artifact_mb")] == str(size / 1e6)
