"""What the tests share."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# OpenMP threads that spin while they wait make everything ten times slower where another process is busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).resolve().parents[1]


def loaded(path: Path) -> ModuleType:
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FORM = """
import os, signal, sys, time
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
{body}
        return self.layer(x)


def make_model():
    return Model().eval()


def example_inputs():
    return (torch.randn(2, 4),)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a model file whose forward begins with the given lines."""

    def write(name: str, body: str = "pass") -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(_FORM.format(body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8)), encoding="utf-8")
        return path

    return write


@pytest.fixture
def tracebench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the command line as a user would, in a folder of its own."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", "NO_COLOR": "1"}
        return subprocess.run(
            [sys.executable, "-m", "tracebench", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            **options,
        )

    return run


def records_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a results folder by model and front end: ``"good fx"``."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "records").glob("*.json"))]
    return {f"{record['case']['model']} {record['case']['frontend']}": record for record in found}
