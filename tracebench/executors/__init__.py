"""What runs captured graphs: as they are, under CUDA graphs, lowered through one compiler, or as users deploy them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tracebench.errors import RequestError, unknown_choice
from tracebench.executor_settings import checked
from tracebench.executors.cuda_graphs import CudaGraphs, CudaRecorder
from tracebench.executors.inductor import Inductor
from tracebench.executors.native import native
from tracebench.executors.replay import Replay, Tell, silent

__all__ = ["EXECUTORS", "make_executor"]

EXECUTORS = ("replay", "inductor", "native")


def make_executor(
    name: str,
    *,
    for_verdict: bool,
    front_end: str = "",
    settings: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    tell: Tell = silent,
) -> Replay | Inductor:
    """Return a new executor for what ``front_end`` captures on ``device``.

    ``for_verdict`` has random ops draw eager's numbers, at some cost in speed. ``settings`` are those of
    ``tracebench.executor_settings``; ``tell`` hears what is worth saying, such as of settings without an effect.

    Raises:
        RequestError: no executor of that name, a setting that it has not, or one that the device cannot do.
    """
    if name not in EXECUTORS:
        raise unknown_choice("executor", name, EXECUTORS)
    told, device = checked(name, settings or {}), torch.device(device)
    if name == "inductor":
        return Inductor(
            same_random_numbers=for_verdict,
            mode=told.get("mode", "default"),
            options=told.get("options", {}),
            device=device.type,
            tell=tell,
        )
    if name == "native":
        return native(front_end, device, for_verdict=for_verdict, tell=tell)
    if not told.get("cuda_graphs"):
        return Replay(tell=tell)
    if device.type != "cuda":
        raise RequestError(
            f"executor.cuda_graphs needs an NVIDIA GPU; the device is {device.type}. Leave it out, or give device=cuda "
            "on a machine that has one."
        )
    return CudaGraphs(CudaRecorder(device), tell=tell)
