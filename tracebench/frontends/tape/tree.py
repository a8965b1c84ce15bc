"""The tapes of one model: a tree for each set of grounds on which a run was recorded, branching at its checks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tracebench.frontends import regions
from tracebench.frontends.base import Events, Executor, count_nodes
from tracebench.frontends.fixed import merged
from tracebench.frontends.tape import ambient
from tracebench.frontends.tape.answers import Answers
from tracebench.frontends.tape.arguments import Signature
from tracebench.frontends.tape.checks import KINDS
from tracebench.frontends.tape.errors import GuardError
from tracebench.frontends.tape.recording import Recording
from tracebench.frontends.tape.segments import (
    Eager,
    Guard,
    Return,
    Segment,
    build,
    cut,
    every,
    graft,
    settle,
    stepped,
    works,
)
from tracebench.frontends.tape.straight import straight
from tracebench.frontends.tape.undo import Undo
from tracebench.observe.memory import Memory, Watchdog
from tracebench.observe.places import spelled
from tracebench.record import Specialisation

#: Characters of a plain input that are told.
_VALUE_LIMIT = 80
#: Lines of a printed tree.
_LINES = 200


class MissedError(GuardError):
    """A check within a tape got an answer that no branch is known for, or one for which the model is to run."""

    def __init__(self, guard: Guard, subject: Any, key: Any) -> None:
        super().__init__(guard.failure(subject))
        self.guard = guard
        self.key = key
        self.text = KINDS[guard.kind].text(subject)
        self.found = guard.branches.get(key)


@dataclass(frozen=True)
class Grounds:
    """What a run took for granted before it began."""

    leaves: tuple[Any, ...]
    signature: Signature
    #: The model's tensors by id.
    state: dict[int, str]
    settings: tuple[Any, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], spec: pytree.TreeSpec, state: dict[int, str]) -> Grounds:
        """Return what holds now for a call on flat arguments."""
        kept = tuple(f"{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        return cls(kept, Signature.of(leaves, spec, state), state, ambient.settings())

    def fixed(self) -> list[Specialisation]:
        """Return what the signature holds the inputs to that differs from call to call."""
        found = []
        for index, (leaf, like) in enumerate(zip(self.leaves, self.signature.leaves, strict=True)):
            if isinstance(like[0], torch.Size):
                found.append(Specialisation("shape", f"argument {index}", value=leaf))
            else:
                found.append(Specialisation("argument", f"argument {index}", value=repr(leaf)[:_VALUE_LIMIT]))
        return found


@dataclass(eq=False)
class Root:
    """All tapes that were recorded on the same grounds."""

    grounds: Grounds
    memory: Memory
    top: Segment | Eager = field(default_factory=lambda: Eager("nothing is recorded yet"))
    undo: Undo = field(default_factory=Undo)
    #: What takes back all that any of the tapes does.
    undo_all: Undo = field(default_factory=Undo)
    #: Whether a run can be broken off by more than a call that no tape holds for: by checks, by ops that raise.
    breaks: bool = False
    #: Why it was recorded; empty for the first.
    why: str = ""

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.memory)
        self._casts = ambient.autocasts(self.grounds.settings)

    def answers(self, given: Sequence[Any]) -> Answers:
        """Return what notes the answers of Python that the tapes call: it must leave alone what they read."""
        assert isinstance(self.top, Segment)
        held = [value for segment in every(self.top) for value in segment.recording.attributes.values()]
        tensors = {id(value): value for value in (*given, *held) if isinstance(value, torch.Tensor)}
        return Answers(tuple(tensor for tensor in tensors.values() if not tensor.is_inference()))

    def remember(self, memory: Memory) -> None:
        """Have what another run on these grounds read checked, too."""
        both = Memory(cached=self.memory.cached | memory.cached)
        for known in (self.memory, memory):
            for root in known.roots.values():
                both.meet(root.owner, root.space, root.key, root.name, root.met)
        self.memory, self.dog = both, Watchdog(both)

    def check(self, given: Sequence[Any], spec: pytree.TreeSpec) -> None:
        """Compare with a call on flat arguments.

        Raises:
            GuardError: something is not as it was recorded; nothing has run.
        """
        grounds = self.grounds
        grounds.signature.check(given, spec, grounds.state)
        ambient.check(grounds.settings)
        if (change := self.dog.check()) is not None:
            met = f"; read at {spelled(change.met)}" if change.met else ""
            raise GuardError(f"{change.name}: {change.before} on tape, {change.now} now{met}")

    def replay(self, given: Sequence[Any]) -> Any:
        """Run the tape on flat arguments that hold and return what the model would.

        Raises:
            MissedError: a check within it does not hold. What ran before is not taken back.
        """
        grad = torch.is_grad_enabled()
        try:
            if self._casts:
                with ambient.without_autocast():
                    values, end = self._walk(given)
            else:
                values, end = self._walk(given)
        finally:
            torch._C._set_grad_enabled(grad)
        end.calls += 1
        return end.result(values)

    def _walk(self, given: Sequence[Any]) -> tuple[Sequence[Any], Return]:
        segment = self.top
        assert isinstance(segment, Segment)
        if isinstance(segment.end, Return):
            return segment.run(*given), segment.end
        values = dict(enumerate(given))
        while not isinstance(segment.end, Return):
            guard = segment.end
            subject, key = segment.step(values)
            branch = guard.branches.get(key)
            if branch is None or isinstance(branch.to, Eager):
                raise MissedError(guard, subject, key)
            segment = branch.to
            # The rest need not be kept alive.
            values = {index: values[index] for index in segment.needs}
        return segment.run(*values.values()), segment.end


@dataclass(eq=False)
class Tapes:
    """The trees of one capture, the one used last first, and the events that tell of them."""

    executor: Executor
    marked: bool
    events: Events
    #: Whether an op that raises where it did not on tape is to lead to another tape.
    retraces: bool = False
    roots: list[Root] = field(default_factory=list)

    def find(self, given: Sequence[Any], spec: pytree.TreeSpec) -> Root:
        """Return the tapes that hold for a call on flat arguments.

        Raises:
            GuardError: there are none; told is what the ones used last do not hold for.
        """
        first: GuardError | None = None
        for place, root in enumerate(self.roots):
            try:
                root.check(given, spec)
            except GuardError as error:
                first = first or error
            else:
                if place:
                    self.roots.insert(0, self.roots.pop(place))
                return root
        assert first is not None
        raise first

    def plant(self, root: Root, recording: Recording, end: Return) -> None:
        """Add a tree of one tape."""
        root.top = cut(recording, end)
        self._prepare(root, recording)
        self.add(root)

    def add(self, root: Root) -> None:
        """Add a tree, which has its tapes."""
        assert isinstance(root.top, Segment)
        settle(root.top, self._build)
        self.roots.insert(0, root)

    def graft(self, root: Root, recording: Recording, end: Return, memory: Memory) -> None:
        """Add to a tree another tape that was recorded on the same grounds.

        Raises:
            Unlike: it is not like the others, and nothing that is checked tells why.
        """
        assert isinstance(root.top, Segment)
        graft(root.top, cut(recording, end))
        self._prepare(root, recording)
        root.remember(memory)
        settle(root.top, self._build)

    def _prepare(self, root: Root, recording: Recording) -> None:
        """Have a tree take back what another tape of it does."""
        may_fail = self.retraces and recording.may_fail
        root.breaks = root.breaks or bool(recording.checks) or may_fail
        root.undo_all = Undo.joined((root.undo_all, recording.undo_all))
        root.undo = Undo.joined((root.undo, recording.undo_all if may_fail else recording.undo))

    def _build(self, segment: Segment) -> None:
        module = build(segment)
        run: Callable[..., Any] | None = module
        if module is not None and any(map(works, segment.nodes)):
            run = self.executor.wrap(module)
            if run is module:
                run = straight(module, plain=segment.recording.plain)
        told = module if module is not None else segment.ask
        # Results taken apart and grad mode are nodes, too, but none that make a graph of a segment.
        nodes = count_nodes(told.graph) if told is not None and segment.work else 0
        if told is not None and nodes:
            if segment.number is None:
                segment.number = self.events.add_graph(told, nodes)
            else:
                self.events.graphs[segment.number] = told
                self.events.graph_nodes[segment.number] = nodes
        number = segment.number if self.marked else None

        def marked(function: Callable[..., Any]) -> Callable[..., Any]:
            return function if number is None else regions.inside(function, number)

        if isinstance(segment.end, Return):
            assert run is not None
            segment.run = marked(run)
        else:
            segment.step = marked(stepped(segment, run))

    def tell(self) -> None:
        """Bring the events up to date: what is fixed, checked and held by all tapes."""
        events = self.events
        tops = [root.top for root in self.roots if isinstance(root.top, Segment)]
        segments = [segment for top in tops for segment in every(top)]
        guards = [segment.end for segment in segments if isinstance(segment.end, Guard)]
        events.guards = len(guards) + sum(
            len(root.grounds.leaves) + len(root.grounds.settings) + root.dog.size for root in self.roots
        )
        events.constants = [
            segment.recording.constants[str(node.target)]
            for segment in segments
            for node in segment.nodes
            if node.op == "get_attr" and node.target in segment.recording.constants
        ]
        per_root = [[*root.grounds.fixed(), *_fixed(root.top)] for root in self.roots if isinstance(root.top, Segment)]
        events.specialised = _together(merged(found) for found in per_root)
        events.tree = list(self.lines()) if self.retraces and (len(self.roots) > 1 or guards) else None

    def lines(self) -> Iterator[str]:
        """Yield the trees as text: each check with its line, the answers that are known, and what follows them."""
        for root in reversed(self.roots):
            title = "" if len(self.roots) == 1 else f"for {root.why}: " if root.why else "for the example: "
            lines = list(itertools.islice(_lines(f"{title}forward", root.top, 0), _LINES + 1))
            yield from lines[:_LINES]
            if len(lines) > _LINES:
                yield "  and more than can be shown"


def _lines(text: str, at: Segment | Eager, depth: int) -> Iterator[str]:
    """Yield what follows one answer. A check with but one answer known stands in line: only branches are indented."""
    indent = "  " * depth
    if isinstance(at, Eager):
        yield f"{indent}{text}: the model itself, {_plural(at.calls, 'call')} ({at.reason})"
        return
    said = f"{indent}{text}: " if depth else f"{text} ("
    said += _plural(len(at.work), "op") + ("" if depth else ")")
    while isinstance(at.end, Guard):
        yield said
        guard = at.end
        where = f"{indent}  {guard.expression} at {guard.location}"
        [(_, only), *others] = guard.branches.items()
        if others or isinstance(only.to, Eager):
            yield where
            for branch in guard.branches.values():
                yield from _lines(branch.text, branch.to, depth + 2)
            return
        at = only.to
        said = f"{where}: only {only.text} so far, {_plural(len(at.work), 'op')}"
    yield f"{said}, return, {_plural(at.end.calls, 'call')}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _fixed(top: Segment | Eager) -> list[Specialisation]:
    """Return what the tapes of a tree fix. What two or more branches go on from is told with all of them."""
    if isinstance(top, Eager):
        return []
    found: list[tuple[tuple[int, int], Specialisation]] = []
    for place, segment in enumerate(every(top)):
        guard = segment.end if isinstance(segment.end, Guard) else None
        asked = guard.asked if guard else ()
        own = {segment.recording.index[node] for node in (*segment.nodes, *asked)}
        found += [((place, index), fact) for index, fact in segment.recording.fixed if index in own]
        if guard is not None and guard.fact is not None:
            known = [branch.text for branch in guard.branches.values()]
            if len(known) == 1:
                found.append(((place, guard.subject), guard.fact))
            elif not {"True", "False"} <= set(known):
                told = dataclasses.replace(guard.fact, value=" | ".join(known)[:_VALUE_LIMIT])
                found.append(((place, guard.subject), told))
    return [fact for _, fact in sorted(found, key=lambda pair: pair[0])]


def _together(roots: Iterable[list[Specialisation]]) -> list[Specialisation]:
    """Return what one of several trees fixes, an input that they hold to several sizes once with all of them."""
    counts: dict[Specialisation, int] = {}
    inputs: dict[Specialisation, dict[str | None, None]] = {}
    for root in roots:
        for fact in root:
            once = dataclasses.replace(fact, count=1)
            if fact.kind in ("shape", "argument"):
                inputs.setdefault(dataclasses.replace(once, value=None), {})[fact.value] = None
            else:
                counts[once] = max(counts.get(once, 0), fact.count)
    joined = [dataclasses.replace(fact, value=" | ".join(map(str, values))) for fact, values in inputs.items()]
    return [*joined, *(dataclasses.replace(fact, count=count) for fact, count in counts.items())]
