"""What an exception of the model or of a front end says: its first line, its real cause, whether memory ran out."""

from __future__ import annotations

import torch

from tracebench.errors import CaptureError

#: What a failed allocation says where torch has no type of its own for it: the CPU's allocator, MPS, the CUDA runtime
#: and cuBLAS, whose workspace is not torch's.
_NO_MEMORY = ("allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def first_line(error: object) -> str:
    """Return the first line of what ``error`` says; empty if it says nothing."""
    return (str(error).strip().splitlines() or [""])[0]


def own_error(error: Exception) -> BaseException:
    """Return what a front end itself raised, of a ``CaptureError``; of any other exception that exception."""
    return error.__cause__ if isinstance(error, CaptureError) and error.__cause__ is not None else error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error``, or what caused it, is a failed allocation on host or device."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in _NO_MEMORY):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
