"""Tapes in a file: another process replays them without the code of the model.

A file holds plain values and tensors alone, so that loading it runs no code of its maker's. Loaded tapes check what can
be checked without the model: arguments, settings of the thread and values that became Python's. What Python objects
held (globals, attributes, hooks) stays behind, and the loaded tapes say so.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tracebench.executors.replay import Replay
from tracebench.frontends.base import Events
from tracebench.frontends.tape import ambient
from tracebench.frontends.tape.answers import Region
from tracebench.frontends.tape.arguments import Signature
from tracebench.frontends.tape.checks import data_of
from tracebench.frontends.tape.errors import GuardError, UntapeableError
from tracebench.frontends.tape.recording import Recording
from tracebench.frontends.tape.segments import Branch, Eager, Guard, Return, Segment, every
from tracebench.frontends.tape.straight import is_plain
from tracebench.frontends.tape.tree import Grounds, MissedError, Root, Tapes
from tracebench.frontends.tape.undo import Undo
from tracebench.observe.memory import Memory

_FORMAT = 1
#: Functions that a file may name, beside ops and classes.
_FUNCTIONS: dict[str, Any] = {
    "getitem": operator.getitem,
    "set_grad_enabled": torch._C._set_grad_enabled,
    "data_of": data_of,
}


class Loaded:
    """Tapes from a file, called as the model was. ``tensors`` are its parameters and buffers by name.

    What cannot be checked without the model, and what is not done, is in ``notes``.
    """

    def __init__(self, tapes: Tapes, tensors: dict[str, torch.Tensor], notes: tuple[str, ...]) -> None:
        self._tapes = tapes
        self.tensors = tensors
        self.notes = notes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the tape that holds for these arguments.

        Raises:
            GuardError: none does; nothing has been changed then.
        """
        given, spec = pytree.tree_flatten((args, kwargs))
        root = self._tapes.find(given, spec)
        restore = root.undo.save(given)
        try:
            return root.replay(given)
        except MissedError:
            restore()
            raise


def obstacle(tapes: Tapes) -> str | None:
    """Return why ``tapes`` cannot be saved, as far as can be seen without going through every op; None if they can."""
    for root in tapes.roots:
        segments = every(root.top) if isinstance(root.top, Segment) else []
        for segment in segments:
            for node in segment.nodes:
                if isinstance(node.target, Region):
                    return f"it calls Python, {node.target.name}"
            for value in segment.recording.attributes.values():
                if not isinstance(value, torch.Tensor):
                    return f"no file holds a {type(value).__qualname__}"
        try:
            for spec in (root.grounds.signature.spec, *(end.spec for end in _returns(root))):
                _spec(spec)
        except UntapeableError as error:
            return str(error)
    return None


def save(tapes: Tapes, path: Path) -> None:
    """Write ``tapes`` to ``path``.

    Raises:
        UntapeableError: they hold what no file can: Python that they call, a random generator, a value of some class.
        OSError: the file cannot be written.
    """
    if (why := obstacle(tapes)) is not None:
        raise UntapeableError(f"the artifact cannot be saved: {why}")
    writer = _Writer()
    roots = [writer.root(root) for root in tapes.roots if isinstance(root.top, Segment)]
    checked = sum(root.dog.size for root in tapes.roots)
    assigned = {write.name for root in tapes.roots for end in _returns(root) for write, _ in end.writes}
    notes = [f"not checked: {checked} values of Python objects that the model had read when it was recorded"]
    if assigned:
        notes.append(f"not assigned: attributes {', '.join(sorted(assigned))}")
    if any(isinstance(root.top, Eager) for root in tapes.roots):
        notes.append("not held: calls for which the model itself ran")
    text = json.dumps({"roots": roots, "recordings": writer.recordings, "notes": notes})
    torch.save(
        {
            "format": _FORMAT,
            "text": text,
            "tensors": list(writer.tensors.values()),
            "names": _names(tapes, writer),
        },
        path,
    )


def load(path: Path) -> Loaded:
    """Return the tapes that ``save`` wrote.

    Raises:
        GuardError: the file is of another format, or this process lacks what the tapes need: ops, devices.
        OSError: the file cannot be read.
    """
    found = torch.load(path, weights_only=True)
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise GuardError(f"{path} holds no tapes of format {_FORMAT}")
    text = json.loads(found["text"])
    tensors = found["tensors"]
    names = {name: tensors[place] for name, place in found["names"].items()}
    reader = _Reader(text["recordings"], tensors, {id(tensor): name for name, tensor in names.items()})
    tapes = Tapes(Replay(), False, Events())
    for root in reversed([reader.root(told) for told in text["roots"]]):
        tapes.add(root)
    return Loaded(tapes, names, tuple(text["notes"]))


def _returns(root: Root) -> Iterable[Return]:
    segments = every(root.top) if isinstance(root.top, Segment) else []
    return [segment.end for segment in segments if isinstance(segment.end, Return)]


def _names(tapes: Tapes, writer: _Writer) -> dict[str, int]:
    """Return the places of the parameters and buffers of the model that the tapes hold."""
    known = {key: name for root in tapes.roots for key, name in root.grounds.state.items()}
    return {known[key]: place for place, key in enumerate(writer.tensors) if key in known}


class _Writer:
    """Turns tapes into plain values; ``tensors`` are told by their place."""

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self.recordings: list[Any] = []
        self._places: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._kept: list[Recording] = []

    def root(self, root: Root) -> Any:
        assert isinstance(root.top, Segment)
        segments = every(root.top)
        places = {id(segment): place for place, segment in enumerate(segments)}
        fields = dataclasses.fields(Signature)
        return {
            "leaves": self.value(root.grounds.leaves),
            "signature": {one.name: self.value(getattr(root.grounds.signature, one.name)) for one in fields},
            "settings": self.value(root.grounds.settings),
            "why": root.why,
            "undo": [self.value(root.undo.arguments), self.value(root.undo.state), self.value(root.undo.random)],
            "segments": [self._segment(segment, places) for segment in segments],
        }

    def _segment(self, segment: Segment, places: dict[int, int]) -> Any:
        index, end = segment.recording.index, segment.end
        told: dict[str, Any] = {
            "recording": self._recording(segment.recording),
            "nodes": [index[node] for node in segment.nodes],
        }
        if isinstance(end, Return):
            return {
                **told,
                "outputs": self.value(end.outputs[: end.returned], index),
                "returned": end.returned,
                "spec": _spec(end.spec),
            }
        branches = []
        for key, branch in end.branches.items():
            to = branch.to
            after = to.reason if isinstance(to, Eager) else places[id(to)]
            branches.append([self.value(key), branch.text, after])
        guard = {
            "kind": end.kind,
            "subject": end.subject,
            "node": index[end.node],
            "asked": [index[node] for node in end.asked],
            "expression": end.expression,
            "location": end.location,
            "branches": branches,
        }
        return {**told, "guard": guard}

    def _recording(self, recording: Recording) -> int:
        if id(recording) not in self._known:
            self._known[id(recording)] = len(self.recordings)
            self._kept.append(recording)
            nodes = [self._node(node, recording) for node in recording.nodes]
            self.recordings.append({"nodes": nodes, "attributes": self.value(recording.attributes)})
        return self._known[id(recording)]

    def _node(self, node: fx.Node, recording: Recording) -> Any:
        # A later recording's beginning, which another one stands for, may hold what is not needed.
        given = self.value(node.args, recording.index), self.value(node.kwargs, recording.index)
        return [node.op, self.value(node.target), *given]

    def value(self, value: Any, index: dict[fx.Node, int] | None = None) -> Any:
        """Return a value as JSON has it: plain values as they are, others as ``[kind, ...]``."""
        if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
            return value
        if isinstance(value, fx.Node):
            assert index is not None
            return ["node", index[value]]
        if isinstance(value, torch.Tensor):
            self.tensors.setdefault(id(value), value)
            return ["tensor", self._places.setdefault(id(value), len(self._places))]
        if isinstance(value, torch.Size):
            return ["size", *value]
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return [kind, *(self.value(item, index) for item in value)]
        if isinstance(value, dict):
            return ["dict", *([self.value(key, index), self.value(item, index)] for key, item in value.items())]
        if isinstance(value, slice):
            return ["slice", *(self.value(item, index) for item in (value.start, value.stop, value.step))]
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, torch.device):
            return ["device", str(value)]
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return ["torch", str(value).removeprefix("torch.")]
        if isinstance(value, torch._ops.OpOverload):
            return ["op", value.namespace, value._opname, value._overloadname]
        if isinstance(value, pytree.TreeSpec):
            return ["spec", _spec(value)]
        for name, function in _FUNCTIONS.items():
            if value is function:
                return ["function", name]
        if isinstance(value, type):
            return ["class", value.__module__, value.__qualname__]
        raise UntapeableError(f"the artifact cannot be saved: no file holds a {type(value).__qualname__}")


def _spec(spec: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UntapeableError(f"arguments or outputs of a class of their own: {error}") from error


class _Reader:
    """Makes tapes of plain values."""

    def __init__(self, recordings: list[Any], tensors: list[torch.Tensor], state: dict[int, str]) -> None:
        self._tensors = tensors
        self._state = state
        self._plain = all(map(is_plain, tensors))
        self._recordings = [self._recording(told) for told in recordings]

    def root(self, told: Any) -> Root:
        settings = self.value(told["settings"])
        if len(settings) != len(ambient.settings()):
            raise GuardError("the tapes were recorded where other kinds of devices are")
        signature = Signature(**{name: self.value(value) for name, value in told["signature"].items()})
        segments: list[Segment] = []
        # Those that follow come after, and are there first when read backwards.
        places: dict[int, Segment] = {}
        for place in reversed(range(len(told["segments"]))):
            places[place] = self._segment(told["segments"][place], places)
            segments.append(places[place])
        grounds = Grounds(self.value(told["leaves"]), signature, self._state, settings)
        undo = Undo(*map(self.value, told["undo"]))
        return Root(grounds, Memory(), places[0], undo, undo, breaks=True, why=told["why"])

    def _segment(self, told: Any, places: dict[int, Segment]) -> Segment:
        recording = self._recordings[told["recording"]]
        nodes = recording.nodes
        own = tuple(nodes[place] for place in told["nodes"])
        if "guard" not in told:
            outputs = self.value(told["outputs"], nodes)
            return Segment(recording, own, Return(outputs, told["returned"], pytree.treespec_loads(told["spec"])))
        guard = told["guard"]
        branches = {}
        for key, text, after in guard["branches"]:
            branches[self.value(key)] = Branch(text, Eager(after) if isinstance(after, str) else places[after])
        asked = tuple(nodes[place] for place in guard["asked"])
        where = (guard["expression"], guard["location"])
        end = Guard(guard["kind"], guard["subject"], asked, nodes[guard["node"]], *where, None, branches)
        return Segment(recording, own, end)

    def _recording(self, told: Any) -> Recording:
        graph = fx.Graph()
        nodes: list[fx.Node] = []
        for op, target, args, kwargs in told["nodes"]:
            given = (self.value(args, nodes), self.value(kwargs, nodes))
            known = self.value(target)
            if isinstance(known, type) or (op == "call_method" and known != "requires_grad_"):
                raise GuardError(f"the file calls {known}, which no tape does")
            nodes.append(graph.create_node(op, known, *given))
        attributes = self.value(told["attributes"])
        index = {node: place for place, node in enumerate(nodes)}
        return Recording(tuple(nodes), (), (), attributes, {}, (), Undo(), Undo(), False, self._plain, index)

    def value(self, value: Any, nodes: Any = ()) -> Any:
        """Return what ``_Writer.value`` was given."""
        if not isinstance(value, list):
            return value
        kind, *parts = value
        if kind in ("tuple", "list"):
            return (tuple if kind == "tuple" else list)(self.value(part, nodes) for part in parts)
        made: dict[str, Callable[[], Any]] = {
            "node": lambda: nodes[parts[0]],
            "tensor": lambda: self._tensors[parts[0]],
            "size": lambda: torch.Size(parts),
            "dict": lambda: {self.value(key, nodes): self.value(item, nodes) for key, item in parts},
            "slice": lambda: slice(*(self.value(part, nodes) for part in parts)),
            "complex": lambda: complex(*parts),
            "bytes": lambda: bytes.fromhex(parts[0]),
            "device": lambda: torch.device(parts[0]),
            "torch": lambda: getattr(torch, parts[0]),
            "op": lambda: _op(*parts),
            "spec": lambda: pytree.treespec_loads(parts[0]),
            "function": lambda: _FUNCTIONS[parts[0]],
            "class": lambda: _class(*parts),
        }
        return made[kind]()


def _op(namespace: str, name: str, overload: str) -> Any:
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except AttributeError as error:
        raise GuardError(f"the tapes need the op {namespace}::{name}.{overload}: import what registers it") from error


def _class(module: str, name: str) -> type:
    """Return a class that arguments or errors are of."""
    found: Any = importlib.import_module(module) if module.partition(".")[0] in ("torch", "builtins") else None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise GuardError(f"the tapes need the class {module}.{name}, which is not known here")
    return found
