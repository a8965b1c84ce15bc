"""The numerical settings under which verdicts are made."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def exact_numerics() -> Iterator[None]:
    """Turn TF32 and cuDNN's autotuning off and deterministic algorithms on where they exist; restore all at the end.

    Uninitialised memory is left alone, unlike what torch does by default in deterministic mode: a model
    that reads it is non-deterministic, and must show as such.
    """
    precision = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn
    benchmark, tf32 = cudnn.benchmark, cudnn.allow_tf32
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filling: Any = torch.utils.deterministic
    fill = filling.fill_uninitialized_memory
    try:
        torch.set_float32_matmul_precision("highest")
        cudnn.benchmark, cudnn.allow_tf32 = False, False
        torch.use_deterministic_algorithms(True, warn_only=True)
        filling.fill_uninitialized_memory = False
        with warnings.catch_warnings():
            # What has no deterministic form shows as non-reproducible, if it is.
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
            warnings.filterwarnings("ignore", message=".*CUBLAS_WORKSPACE_CONFIG.*")
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        cudnn.benchmark, cudnn.allow_tf32 = benchmark, tf32
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        filling.fill_uninitialized_memory = fill
