"""A recording cut at its checks into segments: graphs without checks, and what each goes on from.

A value is known by its index: the position of its node in the recording. Runs that do the same up to a check number
their values alike up to there, so that recordings can share segments.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tracebench.frontends.tape.answers import Region
from tracebench.frontends.tape.checks import KINDS, Check, attempt
from tracebench.frontends.tape.recording import Recording
from tracebench.observe.run import Write
from tracebench.record import Specialisation

#: Calls on a graph that are no work: parts of results, and grad mode.
_NO_WORK = (operator.getitem, torch._C._set_grad_enabled)


@dataclass(eq=False)
class Return:
    """The end of a run: what it returned, and which attributes it assigned, of which form. ``calls`` came to it."""

    outputs: tuple[Any, ...]
    returned: int
    spec: pytree.TreeSpec
    writes: tuple[tuple[Write, pytree.TreeSpec], ...] = ()
    calls: int = 0

    def result(self, values: Sequence[Any]) -> Any:
        """Return what the model would of ``values``, which the last segment returned; assign what it would."""
        rest = iter(values[self.returned :])
        for write, spec in self.writes:
            write.again(pytree.tree_unflatten(itertools.islice(rest, spec.num_leaves), spec))
        return pytree.tree_unflatten(list(values[: self.returned]), self.spec)


@dataclass(eq=False)
class Eager:
    """In the place of a segment: the model itself is to run, for that reason."""

    reason: str
    calls: int = 0


@dataclass(eq=False)
class Branch:
    """Where a run goes on for one answer to a check."""

    text: str
    to: Segment | Eager


@dataclass(eq=False)
class Guard:
    """A check with a branch for each answer that is known."""

    kind: str
    #: Index of the value that is asked about, and nodes that are run to know it.
    subject: int
    asked: tuple[fx.Node, ...]
    node: fx.Node
    expression: str
    location: str
    fact: Specialisation | None
    branches: dict[Hashable, Branch] = field(default_factory=dict)

    @classmethod
    def of(cls, check: Check, recording: Recording, rest: Segment) -> Guard:
        """Return the guard of a check that ``rest`` follows."""
        known = {check.key: Branch(check.text, rest)}
        subject = recording.index[check.subject]
        return cls(check.kind, subject, check.asked, check.subject, check.expression, check.location, check.fact, known)

    def failure(self, subject: Any) -> str:
        """Say that no branch is known for what the subject is now."""
        how = KINDS[self.kind]
        known = " or ".join(branch.text for branch in self.branches.values())
        if self.kind == "error":
            return f"{known} at {self.location} on tape, {how.text(subject)} now"
        return f"{how.says} at {self.location}: {known} on tape, {how.text(subject)} now"


@dataclass(eq=False)
class Segment:
    """Ops between two checks. ``needs`` are the values that it and whatever may follow take from before it."""

    recording: Recording
    nodes: tuple[fx.Node, ...]
    end: Guard | Return
    #: What its module was built for: indices that it takes and gives, and that its guard's gives.
    shape: tuple[tuple[int, ...], ...] | None = None
    needs: tuple[int, ...] = ()
    module: fx.GraphModule | None = None
    ask: fx.GraphModule | None = None
    #: Of its graph among those of the capture; None if it computes nothing.
    number: int | None = None
    #: Runs the last segment of a run on the values that it needs, in order, and returns the outputs.
    run: Callable[..., Any] = field(default=lambda *values: None, repr=False)
    #: Runs another on all values so far, adds what it computes, and returns what its guard asks about, and as a key.
    step: Callable[[dict[int, Any]], tuple[Any, Hashable]] = field(default=lambda values: (None, None), repr=False)

    @property
    def work(self) -> tuple[fx.Node, ...]:
        """Nodes that compute something, the guard's included."""
        asked = self.end.asked if isinstance(self.end, Guard) else ()
        return tuple(node for node in (*self.nodes, *asked) if works(node))

    def children(self) -> Iterator[Segment]:
        """Yield the segments that may follow."""
        if isinstance(self.end, Guard):
            for branch in self.end.branches.values():
                if isinstance(branch.to, Segment):
                    yield branch.to


def works(node: fx.Node) -> bool:
    """Whether a node computes something."""
    return node.op.startswith("call") and node.target not in _NO_WORK


def cut(recording: Recording, end: Return) -> Segment:
    """Return the first segment of a recording; each but the last has a guard with one branch."""
    starts = [0, *(check.start + len(check.asked) for check in recording.checks)]
    stops = [*(check.start for check in recording.checks), len(recording.nodes)]
    segment = Segment(recording, recording.nodes[starts[-1] : stops[-1]], end)
    for index in reversed(range(len(recording.checks))):
        guard = Guard.of(recording.checks[index], recording, segment)
        segment = Segment(recording, recording.nodes[starts[index] : stops[index]], guard)
    return segment


def every(top: Segment) -> list[Segment]:
    """Return all segments of a tree, each before those that follow it."""
    found, waiting = [], [top]
    while waiting:
        segment = waiting.pop()
        found.append(segment)
        waiting += reversed(list(segment.children()))
    return found


def settle(top: Segment, build: Callable[[Segment], None]) -> None:
    """Have each segment of a tree give what others need of it; ``build`` is called for those that need a new module."""
    shape: tuple[tuple[int, ...], ...]
    for segment in reversed(every(top)):
        index = segment.recording.index
        own = _indices(segment.nodes, segment)
        placeholders = {index[node] for node in segment.nodes if node.op == "placeholder"}
        before = (_refs(segment.nodes, segment) | placeholders) - own
        if isinstance(segment.end, Guard):
            guard = segment.end
            asked = _indices(guard.asked, segment)
            refs = _refs(guard.asked, segment) - asked
            if not guard.asked and guard.node.op != "get_attr":
                refs |= {guard.subject}
            later = {need for child in segment.children() for need in child.needs}
            gives = tuple(sorted(later & asked))
            later = later - asked | refs
            shape = tuple(sorted(before)), tuple(sorted(later & own)), tuple(sorted(refs)), gives
        else:
            nodes = [leaf for leaf in segment.end.outputs if isinstance(leaf, fx.Node)]
            later = {index[node] for node in nodes if node.op != "get_attr"}
            before |= later - own
            shape = (tuple(sorted(before)),)
        segment.needs = tuple(sorted((before | later) - own))
        if segment.shape != shape:
            segment.shape = shape
            build(segment)


def build(segment: Segment) -> fx.GraphModule | None:
    """Make the modules of a segment: its own, which is returned, None if it is empty, and the one that its guard asks.

    The guard's is run as it is, as it makes Python numbers of tensors.
    """
    assert segment.shape is not None
    end = segment.end
    if isinstance(end, Return):
        if segment.nodes == segment.recording.nodes:
            segment.module = _whole(segment.recording, end.outputs)
        else:
            segment.module = _module(segment.recording, segment.nodes, segment.shape[0], end.outputs)
        return segment.module
    inputs, outputs, refs, gives = segment.shape
    nodes = segment.recording.nodes
    segment.module = None
    if any(node.op.startswith("call") for node in segment.nodes):
        segment.module = _module(segment.recording, segment.nodes, inputs, [nodes[index] for index in outputs])
    segment.ask = None
    if end.asked or end.node.op == "get_attr":
        given = [end.node, *(nodes[index] for index in gives)]
        segment.ask = _module(segment.recording, end.asked, refs, given, attempted=end.kind == "error")
    return segment.module


def stepped(segment: Segment, run: Callable[..., Any] | None) -> Callable[[dict[int, Any]], Any]:
    """Return what is to be a segment's ``step``; ``run`` runs its module, if it has one."""
    assert segment.shape is not None
    assert isinstance(segment.end, Guard)
    inputs, outputs, refs, gives = segment.shape
    guard, ask = segment.end, segment.ask
    key, subject = KINDS[guard.kind].key, guard.subject
    failing = guard.kind == "error"

    def step(values: dict[int, Any]) -> Any:
        if run is not None:
            values.update(zip(outputs, run(*[values[index] for index in inputs]), strict=True))
        if ask is None:
            found = values[subject]
        else:
            found, *given = ask(*[values[index] for index in refs])
            if failing:
                found, values[subject] = found
            else:
                values.update(zip(gives, given, strict=True))
        return found, key(found)

    return step


def _whole(recording: Recording, outputs: Iterable[Any]) -> fx.GraphModule:
    """Return a module of a recording without checks: its graph itself, since copying takes as long as recording."""
    graph = recording.nodes[0].graph if recording.nodes else fx.Graph()
    if (known := graph.owning_module) is not None:
        return known
    graph.output(list(outputs))
    return fx.GraphModule(recording.attributes, graph, class_name="Tape")


def _module(
    recording: Recording,
    nodes: Iterable[fx.Node],
    inputs: Iterable[int],
    outputs: Iterable[Any],
    *,
    attempted: bool = False,
) -> fx.GraphModule:
    """Return a module of ``nodes`` on the values at ``inputs``; with ``attempted`` its one op may fail."""
    graph = fx.Graph()
    made = {index: graph.placeholder(f"input_{index}") for index in inputs}
    held: dict[str, fx.Node] = {}

    def known(node: fx.Node) -> fx.Node:
        if node.op != "get_attr":
            return made[recording.index[node]]
        name = str(node.target)
        if name not in held:
            held[name] = graph.get_attr(name)
        return held[name]

    for node in nodes:
        if attempted:
            args, kwargs = fx.map_arg(node.args, known), fx.map_arg(node.kwargs, known)
            op: Any = node.target
            made[recording.index[node]] = graph.call_function(attempt, (op, *args), kwargs)
        elif node.op.startswith("call"):
            made[recording.index[node]] = graph.node_copy(node, known)
    returned = [known(leaf) if isinstance(leaf, fx.Node) else leaf for leaf in outputs]
    graph.output(returned)
    return fx.GraphModule({name: recording.attributes[name] for name in held}, graph, class_name="Tape")


def _indices(nodes: Iterable[fx.Node], segment: Segment) -> set[int]:
    index = segment.recording.index
    return {index[node] for node in nodes if node.op.startswith("call")}


def _refs(nodes: Iterable[fx.Node], segment: Segment) -> set[int]:
    index = segment.recording.index
    return {index[inner] for node in nodes for inner in node.all_input_nodes if inner.op != "get_attr"}


class Unlike(Exception):
    """Two runs on equal grounds did other ops."""


def graft(top: Segment, new: Segment) -> bool:
    """Hang on the tree of ``top`` what ``new``, the first segment of another recording, does else.

    Returns whether there was anything.

    Raises:
        Unlike: the runs differ before any check that could tell why.
    """
    old = top
    while True:
        same = _common(old, new)
        a, b = old.end, new.end
        if same == len(old.nodes) == len(new.nodes):
            if isinstance(a, Return) or isinstance(b, Return):
                if isinstance(a, Return) and isinstance(b, Return) and _forms(a.outputs, old) == _forms(b.outputs, new):
                    return False
                raise Unlike(_told(old, same))
            if (a.kind, a.subject) != (b.kind, b.subject) or not _alike(old, a.asked, new, b.asked):
                raise Unlike(_told(old, same))
            [(key, branch)] = b.branches.items()
            rest = branch.to
        elif same == len(new.nodes) < len(old.nodes) and _fails(new, old.nodes[same], old):
            assert isinstance(b, Guard)
            _split(old, same, b)
            continue
        elif same == len(old.nodes) < len(new.nodes) and _fails(old, new.nodes[same], new):
            assert isinstance(a, Guard)
            key, rest = None, Segment(new.recording, new.nodes[same + 1 :], b)
            branch = Branch(KINDS["error"].text(None), rest)
        else:
            raise Unlike(_told(old, same))
        known = a.branches.get(key) if isinstance(a, Guard) else None
        assert isinstance(a, Guard)
        if known is None:
            a.branches[key] = branch
            return True
        if isinstance(known.to, Eager):
            return False
        assert isinstance(rest, Segment)
        old, new = known.to, rest


def _split(segment: Segment, at: int, guard: Guard) -> None:
    """Make of the op at ``at``, which has not failed so far, a guard that asks whether it fails."""
    rest = Segment(segment.recording, segment.nodes[at + 1 :], segment.end)
    node = segment.nodes[at]
    segment.end = Guard(
        "error",
        segment.recording.index[node],
        (node,),
        node,
        guard.expression,
        guard.location,
        None,
        {None: Branch(KINDS["error"].text(None), rest)},
    )
    segment.nodes = segment.nodes[:at]
    segment.shape = None


def _fails(segment: Segment, node: fx.Node, other: Segment) -> bool:
    """Whether ``segment`` ends in the question whether ``node``, of ``other``, fails."""
    guard = segment.end
    return isinstance(guard, Guard) and guard.kind == "error" and _alike(segment, guard.asked, other, (node,))


def _common(old: Segment, new: Segment) -> int:
    """Return how many nodes at the start of two segments are the same."""
    for index, (a, b) in enumerate(zip(old.nodes, new.nodes, strict=False)):
        if not _alike(old, (a,), new, (b,)):
            return index
    return min(len(old.nodes), len(new.nodes))


def _alike(old: Segment, before: Sequence[fx.Node], new: Segment, now: Sequence[fx.Node]) -> bool:
    if len(before) != len(now):
        return False
    for a, b in zip(before, now, strict=True):
        if a.op != b.op:
            return False
        if a.op == "get_attr":
            held, own = old.recording.attributes[str(a.target)], new.recording.attributes[str(b.target)]
            if not _equal(held, own):
                return False
            # Whatever follows is to use what the shared segments do.
            new.recording.attributes[str(b.target)] = held
        elif isinstance(a.target, Region) or isinstance(b.target, Region):
            if getattr(a.target, "form", None) != getattr(b.target, "form", None):
                return False
        elif a.target != b.target:
            return False
        if (_form(a.args, old), _form(a.kwargs, old)) != (_form(b.args, new), _form(b.kwargs, new)):
            return False
    return True


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, torch.Tensor):
        return False
    if (a.shape, a.dtype, a.device, a.layout) != (b.shape, b.dtype, b.device, b.layout):
        return False
    # To the bit: NaN is itself.
    return a.layout is torch.strided and bool(
        torch.equal(
            a.detach().contiguous().reshape(-1).view(torch.uint8), b.detach().contiguous().reshape(-1).view(torch.uint8)
        )
    )


def _forms(outputs: Iterable[Any], segment: Segment) -> list[Any]:
    return [_form(leaf, segment) for leaf in outputs]


def _form(value: Any, segment: Segment) -> Any:
    """Return an argument of a node such that equal arguments of two recordings compare equal."""
    if isinstance(value, fx.Node):
        # What is not computed was compared where it was met first.
        return ("value", segment.recording.index[value])
    if isinstance(value, (list, tuple)):
        return [type(value), *(_form(item, segment) for item in value)]
    if isinstance(value, dict):
        return {key: _form(item, segment) for key, item in value.items()}
    if isinstance(value, slice):
        return ("slice", _form([value.start, value.stop, value.step], segment))
    return (type(value), repr(value) if isinstance(value, (float, complex)) else value)


def _told(segment: Segment, at: int) -> str:
    return "the end" if at >= len(segment.nodes) else str(segment.nodes[at].target)
