"""Accelerators: what every device needs, tested without one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tracebench.failures import is_out_of_memory
from tracebench.running import child, launch, runner
from tracebench.running.stages import _current

_IMPORTS = """
import sys, torch
asked = []
torch._C._cuda_getDeviceCount = lambda: asked.append(1) or 0
torch.cuda._device_count_nvml = lambda: 1
import tracebench.running.stages, torchvision
for name in sys.argv[1:]:
    __import__(name)
print(len(asked))
"""


@pytest.mark.skipif(not hasattr(torch._C, "_cuda_getDeviceCount"), reason="this torch was built without CUDA")
def test_nothing_that_the_server_imports_initialises_cuda() -> None:
    """Asking CUDA how many devices there are is enough to make it unusable in a fork."""
    modules = sorted({name for names in runner._PRELOAD.values() for name in names})
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *modules],
        env=launch.child_environment(), capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip
    assert done.stdout.strip() == "0"


def test_a_fork_that_cannot_use_its_accelerator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    child.refuse_unusable_fork("cuda")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError, match=r"torch\.cuda was initialised .* limits\.isolation=spawn"):
        child.refuse_unusable_fork("cuda")
    # Where there is no GPU, torch may have looked for one all the same; the CPU is usable.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    child.refuse_unusable_fork("auto")
    child.refuse_unusable_fork("cpu")


@pytest.mark.parametrize(
    "message",
    [
        "MPS backend out of memory (MPS allocated: 8.9 GB)",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes",
    ],
)
def test_every_devices_failed_allocation_is_known(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(ValueError(message))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))


def test_a_device_asked_for_by_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []

    class Chosen:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            chosen.append(self.index)

        def __exit__(self, *_: object) -> None:
            chosen.append(-1)

    monkeypatch.setattr(torch.accelerator, "device_index", Chosen)
    for name in ("cpu", "cuda", "cuda:1"):
        with _current(torch.device(name)):
            pass
    assert chosen == [1, -1]
