"""One run of a model, recorded: what it computes, what it read, and why no tape can hold it if none can."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tracebench.controls.orders import Orders, rebound, stand_in_forward
from tracebench.frontends import regions
from tracebench.frontends.tape import ambient
from tracebench.frontends.tape.answers import NO_ANSWERS, Answers
from tracebench.frontends.tape.errors import UntapeableError
from tracebench.frontends.tape.recording import Recording, Tape
from tracebench.frontends.tape.segments import Return
from tracebench.observe.memory import MISSING, Memory
from tracebench.observe.places import spelled
from tracebench.observe.run import Run


@dataclass(frozen=True)
class Taken:
    """A run that was recorded. ``result`` is what the model returned."""

    result: Any
    memory: Memory
    #: Pieces that were left to Python.
    regions: tuple[str, ...]
    #: None where the run was refused.
    tape: tuple[Recording, Return] | None = None
    refused: UntapeableError | None = None
    #: Whether another run may find settled what this one was refused for.
    passing: bool = False


@dataclass(frozen=True)
class Recorder:
    """Records runs of one model. With ``marked``, pieces that ``orders`` keep out say that control is outside."""

    model: nn.Module
    orders: Orders
    marked: bool

    def take(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, lenient: bool = False, answers: Answers = NO_ANSWERS
    ) -> Taken:
        """Run the model once under watch.

        With ``lenient`` the run comes to its end also if no tape can hold it, else it may be broken off. ``answers``
        are for the first pieces of Python that are left as they are, in place of running.

        Raises:
            UntapeableError: without ``lenient``, the run does what makes going on pointless.
            Exception: what the model raises.
        """
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        settings = ambient.settings()
        run = Run(self.model)
        tape = Tape(self.model, run, lenient=lenient, answers=answers)
        tape.placeholders(leaves)
        with run.on(), self._regions(tape, run), tape.beside(), tape:
            result = self.model(*args, **kwargs)
        given = set(_changeable((args, kwargs)))
        # An earlier run on the same arguments may have assigned them already.
        run.write_again(lambda value: not given.isdisjoint(_changeable(value)))
        # What a tape can return can be assigned anew after each of its runs.
        others = {*run.memory.nodes, *given, *_changeable(result)}
        run.effects += [write.effect for write in run.writes if not _is_own(write.value, tape, others)]
        found = tuple(tape.regions)
        try:
            _refuse(run)
            now, now_spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
            if now_spec != spec or list(map(id, now)) != list(map(id, leaves)):
                raise UntapeableError("the forward changes its arguments' containers, which a tape cannot repeat")
            if (after := ambient.settings()) != settings:
                raise UntapeableError(f"the forward leaves a setting changed: {ambient.difference(settings, after)}")
            outputs, output_spec = pytree.tree_flatten(result)
            written = [pytree.tree_flatten(write.value) for write in run.writes]
            recording = tape.finish([*outputs, *(leaf for flat, _ in written for leaf in flat)])
        except UntapeableError as error:
            passing = bool(run.effects) and all(effect.lasting for effect in run.effects)
            return Taken(result, run.memory, found, refused=error, passing=passing and tape.refused is None)
        writes = tuple(zip(run.writes, (spec for _, spec in written), strict=True))
        end = Return(recording.outputs, len(outputs), output_spec, writes)
        return Taken(result, run.memory, found, (recording, end))

    @contextlib.contextmanager
    def _regions(self, tape: Tape, run: Run) -> Iterator[None]:
        """Within the context, have the tape hold one call of Python for each piece that is kept out or whole."""
        stands_for = run.memory.stands_for
        with contextlib.ExitStack() as during:
            for order in self.orders.of("disable", "opaque"):
                assert order.target is not None
                outside = self.marked and order.instruction.control == "disable"
                for part in order.target.modules(self.model):
                    inner = regions.outside(part.forward) if outside else part.forward
                    call = tape.call_of(inner, order.instruction.target)
                    stands_for[id(call)] = vars(part).get("forward", MISSING)
                    during.enter_context(stand_in_forward(part, call))
                if (function := order.target.function) is not None:
                    call = tape.call_of(regions.outside(function) if outside else function, order.instruction.target)
                    stands_for[id(call)] = function
                    during.enter_context(rebound(order.target, call))
            yield


def _changeable(value: Any) -> Iterator[int]:
    """Yield the ids of all in ``value`` that can change: tensors, lists and dicts, itself included."""
    if isinstance(value, (torch.Tensor, list, dict)):
        yield id(value)
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _changeable(item)


def _is_own(value: Any, tape: Tape, others: set[int]) -> bool:
    """Whether a tape could make ``value`` anew: tensors that it holds and plain values, also in containers.

    The containers must be nobody else's: ``others`` are those that are, by id, and get these added.
    """
    if type(value) in (list, dict):
        if id(value) in others:
            return False
        others.add(id(value))
    elif not isinstance(value, tuple):
        return tape.can_return(value)
    items = value.values() if isinstance(value, dict) else value
    return all(_is_own(item, tape, others) for item in items)


def _refuse(run: Run) -> None:
    """Raise if a run did something that a tape cannot repeat.

    Raises:
        UntapeableError: it did.
    """
    if run.effects:
        effect = next((effect for effect in run.effects if effect.place is not None), run.effects[0])
        where = f" at {spelled(effect.place)}" if effect.place is not None else ""
        raise UntapeableError(f"the forward {effect.what}{where}, which a tape cannot repeat")
