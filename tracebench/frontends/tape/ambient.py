"""Settings of the thread and the process that decide what ops compute, besides their arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracebench.frontends.tape.errors import GuardError

_ACCELERATOR = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
_DEVICES = ("cpu",) if _ACCELERATOR is None else ("cpu", _ACCELERATOR.type)
_NAMES = (
    "grad mode",
    "inference mode",
    "default dtype",
    "number of function modes",
    "autocast's cache",
    *(f"autocast on {device}" for device in _DEVICES),
    *(f"autocast dtype on {device}" for device in _DEVICES),
)


def settings() -> tuple[Any, ...]:
    """Return what holds now, in the order of ``_NAMES``."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._len_torch_function_stack(),
        torch.is_autocast_cache_enabled(),
        *map(torch.is_autocast_enabled, _DEVICES),
        *map(torch.get_autocast_dtype, _DEVICES),
    )


def autocasts(now: tuple[Any, ...]) -> bool:
    """Return whether under ``now`` ops are cast."""
    return any(now[5 : 5 + len(_DEVICES)])


def check(recorded: tuple[Any, ...]) -> None:
    """Compare with what holds now.

    Raises:
        GuardError: something differs.
    """
    now = settings()
    if now != recorded:
        raise GuardError(difference(recorded, now))


def difference(recorded: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """Say which setting differs first."""
    name, before, after = next(
        (name, old, new) for name, old, new in zip(_NAMES, recorded, now, strict=True) if old != new
    )
    return f"{name}: {before} on tape, {after} now"


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Within the context no op is cast: a tape holds the casts as ops."""
    with contextlib.ExitStack() as stack:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@dataclass(frozen=True)
class Casting:
    """What autocast does on each device, for Python that is run within a tape."""

    enabled: tuple[bool, ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def now(cls) -> Casting:
        """Return what holds now."""
        return cls(
            tuple(map(torch.is_autocast_enabled, _DEVICES)),
            tuple(map(torch.get_autocast_dtype, _DEVICES)),
        )

    def __bool__(self) -> bool:
        return any(self.enabled)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Have it hold within the context."""
        with contextlib.ExitStack() as stack:
            for device, enabled, dtype in zip(_DEVICES, self.enabled, self.dtypes, strict=True):
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            yield
