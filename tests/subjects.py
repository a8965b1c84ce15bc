"""Subjects and the null capture for tests of the soundness stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracebench.frontends.base import Capture, Events, Inputs
from tracebench.subject import Subject


def subject(model: nn.Module, *args: Any, **options: Any) -> Subject:
    """Return the subject of ``model`` with example inputs ``args`` (and ``kwargs``) on the CPU."""
    torch.manual_seed(0)
    return Subject(
        name="model",
        model=model,
        example=Inputs(args, options.pop("kwargs", {})),
        mode=options.pop("mode", "inference"),
        device=torch.device("cpu"),
        dtype="float32",
        seed=0,
        **options,
    )


def line_of(file: str, marker: str) -> int:
    """Return the number of the one line of ``file`` that ends in a comment of ``marker``."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    [found] = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return found


def itself(model: nn.Module, inputs: Inputs) -> Capture:
    """The null capture."""
    return Capture(call=model, module=model, events=Events())
