"""Taking back what a tape did before one of its checks failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracebench.frontends.tape.errors import GuardError


@dataclass(frozen=True)
class Undo:
    """What a tape writes, from outside of it, before its last check: places of arguments and tensors of the state."""

    arguments: tuple[int, ...] = ()
    state: tuple[torch.Tensor, ...] = ()
    #: Devices whose random generator moves before the last check.
    random: tuple[torch.device, ...] = ()
    #: Whether Python runs before the last check that nobody can take back.
    never: bool = False

    @classmethod
    def joined(cls, several: Iterable[Undo]) -> Undo:
        """Return what takes back whatever one of ``several`` does."""
        several = tuple(several)
        return cls(
            tuple(dict.fromkeys(place for one in several for place in one.arguments)),
            tuple({id(tensor): tensor for one in several for tensor in one.state}.values()),
            tuple(dict.fromkeys(device for one in several for device in one.random)),
            any(one.never for one in several),
        )

    def covers(self, other: Undo) -> bool:
        """Whether whatever ``other`` takes back is taken back by this one, too."""
        return (
            set(other.arguments) <= set(self.arguments)
            and set(map(id, other.state)) <= set(map(id, self.state))
            and set(other.random) <= set(self.random)
            and self.never >= other.never
        )

    def save(self, given: Sequence[Any]) -> Callable[[], None]:
        """Return what takes back, exactly, all that a run of the tape on ``given`` does up to its last check.

        It raises ``GuardError`` if a tensor with a history of its own for gradients was written.
        """
        tensors = [*(given[index] for index in self.arguments), *self.state]
        kept = [(tensor, tensor.detach().clone(), tensor.grad_fn) for tensor in tensors]
        generators = [(device, _state(device)) for device in self.random]

        def restore() -> None:
            for tensor, before, history in kept:
                # Past autograd, whose counters must not see a change that is none.
                with torch.no_grad():
                    tensor.data.copy_(before)
                if tensor.grad_fn is not history:
                    if history is not None or tensor._is_view():
                        raise GuardError("a tensor that gradients flow through was changed in place and stays changed")
                    tensor.detach_()
            set_random_states(dict(generators))

        return restore


def random_states() -> dict[torch.device, torch.Tensor]:
    """Return the states of the random generators of all devices in use."""
    devices = [torch.device("cpu")]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        if kind is not None and torch.get_device_module(kind).is_initialized():
            devices += [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]
    return {device: _state(device) for device in devices}


def set_random_states(states: dict[torch.device, torch.Tensor]) -> None:
    """Set the states of random generators."""
    for device, state in states.items():
        _set_state(device, state)


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
