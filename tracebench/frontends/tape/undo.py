"""Taking back what a tape did before one of its guards failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Undo:
    """What a tape writes, from outside of it, before its last guard: places of arguments and tensors of the state."""

    arguments: tuple[int, ...] = ()
    state: tuple[torch.Tensor, ...] = ()
    #: Devices whose random generator moves before the last guard.
    random: tuple[torch.device, ...] = ()
    #: Whether Python runs before the last guard that nobody can take back.
    never: bool = False

    def save(self, given: Sequence[Any]) -> Callable[[], None]:
        """Return what takes back, exactly, all that a run of the tape on ``given`` does up to its last guard."""
        tensors = [*(given[index] for index in self.arguments), *self.state]
        kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
        generators = [(device, _state(device)) for device in self.random]

        def restore() -> None:
            for tensor, before in kept:
                # Past autograd, whose counters must not see a change that is none.
                with torch.no_grad():
                    tensor.data.copy_(before)
            for device, state in generators:
                _set_state(device, state)

        return restore


def _state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    found: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return found


def _set_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
