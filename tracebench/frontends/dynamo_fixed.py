"""What TorchDynamo's compiled code holds fixed, read off its guards, and tensors that its graphs hold.

Guards are read as text, once capturing is over: they are C++ objects, and only their text names what they check.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx, nn
from torch.utils._traceback import shorten_filename

from tracebench.frontends.base import describe_constant
from tracebench.frontends.fixed import merged
from tracebench.record import Constant, Specialisation
from tracebench.userlocation import is_user_file, short

_LINE = re.compile(r"^[| ]*\+- (?P<kind>[A-Z_]+): (?P<check>.*)$", re.M)
#: The line of the model that a guard is there for; of the file's path, its last parts.
_PLACE = re.compile(r"\s{2}# .*?# (?P<file>[^#\n]+?):(?P<line>\d+) in \S+")
_EQUAL = re.compile(r"^(?P<source>(?:len\()?[LG]\[.+?) (?:==|is) (?P<value>.+)$")
_TENSOR = re.compile(r"^check_tensor\((?P<source>[LG]\[.*?), [\w.]+, DispatchKeySet.*?, size=\[(?P<sizes>[^]]*)\]")
_EQUALITIES = ("EQUALS_MATCH", "TRUE_MATCH", "FALSE_MATCH", "NONE_MATCH", "CONSTANT_MATCH", "LENGTH_CHECK")
_ROOT = re.compile(r"^(?:len\()?(?P<scope>[LG])\['(?P<name>[^']+)'\]")
_STACK_FRAME = re.compile(r"File \"(?P<file>.+?)\", line (?P<line>\d+)")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<name>\w+)_at_(?P<line>\d+)$")
_TORCHS_OWN = "attributes that torch's own modules and functions read"


@dataclass(frozen=True)
class Guard:
    """One guard: what it checks, against what, and the line (file as Dynamo shortens it) that it is there for."""

    source: str
    value: str
    place: tuple[str, int] | None
    #: Sizes, if it checks a tensor; None stands for one that is free.
    sizes: tuple[int | None, ...] | None = None


def parse_guards(text: str) -> Iterator[Guard]:
    """Yield the guards on sizes of tensors and on Python values that the text of a guard tree tells of."""
    for line in _LINE.finditer(text):
        kind, check = line["kind"], line["check"]
        found = _PLACE.search(check)
        place = (found["file"].strip(), int(found["line"])) if found else None
        if kind == "TENSOR_MATCH" and (tensor := _TENSOR.match(check)) is not None:
            sizes = [size.strip() for size in tensor["sizes"].split(",") if size.strip()]
            if all(size == "None" or size.isdigit() for size in sizes):
                yield Guard(tensor["source"], "", place, tuple(None if s == "None" else int(s) for s in sizes))
        elif kind in _EQUALITIES and (equal := _EQUAL.match(re.split(r"\s{2,}# ", check)[0].strip())) is not None:
            yield Guard(equal["source"], equal["value"].strip(), place)


def read_guards(codes: Iterable[CodeType], model: nn.Module) -> list[Specialisation]:
    """Return what the code that Dynamo compiled for the functions ``codes`` holds fixed, as of now.

    Empty, too, if nothing is compiled any more or this torch tells nothing of it.
    """
    try:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    except ImportError:
        return []
    distinct = list({id(code): code for code in codes}.values())
    files = _Files([code.co_filename for code in distinct] + _files_of(model))
    entry = getattr(getattr(model.forward, "__func__", model.forward), "__code__", None)
    found: list[Specialisation] = []
    attributes: dict[tuple[str, str], Guard] = {}
    for code in distinct:
        compiled = _debug_get_cache_entry_list(code)
        guards = [list(parse_guards(str(one.guard_manager))) for one in compiled]
        if code is entry:
            found += _input_sizes(guards)
        found += _arguments(guards, code, files)
        for guard in (guard for each in guards for guard in each if guard.sizes is None and not _is_passed(guard)):
            # Every function that reads an attribute guards it.
            attributes.setdefault((guard.source, guard.value), guard)
    return merged([*found, *_attributes(attributes.values(), files)])


def _input_sizes(guards: Sequence[Sequence[Guard]]) -> Iterator[Specialisation]:
    """The sizes of inputs that hold in all the code compiled for the model's forward."""
    sizes = [{guard.source: guard.sizes for guard in each if guard.sizes is not None} for each in guards]
    for source in sizes[0] if sizes else ():
        if not _is_passed(Guard(source, "", None)) or not all(source in each for each in sizes):
            continue
        forms = list(dict.fromkeys(each[source] for each in sizes))
        ranks = {rank: [form for form in forms if len(form) == rank] for rank in sorted({len(form) for form in forms})}
        told = [_joint(same) for same in ranks.values()]
        if any(any(character.isdigit() for character in form) for form in told):
            yield Specialisation("shape", f"argument {spelled(source)}", value=" or ".join(told))


def _joint(forms: Sequence[tuple[int | None, ...]]) -> str:
    """One text for the sizes of several compiled codes: free where one of them leaves it free."""
    dimensions = zip(*forms, strict=True)
    return f"[{', '.join('*' if None in seen else '|'.join(map(str, sorted(set(seen)))) for seen in dimensions)}]"


def _arguments(guards: Sequence[Sequence[Guard]], code: CodeType, files: _Files) -> Iterator[Specialisation]:
    """Python values passed in, where all the code compiled for the function holds them fixed."""
    passed = [{guard.source: guard for guard in each if guard.sizes is None and _is_passed(guard)} for each in guards]
    for source in passed[0] if passed else ():
        if all(source in each for each in passed):
            values = dict.fromkeys(each[source].value for each in passed)
            told = "a value on Python's stack" if "___stack" in source else spelled(source)
            resumed = _RESUMED.match(code.co_name)
            what = (
                f"{told} of {resumed['name']} past line {resumed['line']}" if resumed else f"{told} of {code.co_name}"
            )
            yield Specialisation("argument", what, files.location(passed[0][source].place), " or ".join(values))


def _attributes(guards: Iterable[Guard], files: _Files) -> Iterator[Specialisation]:
    for guard in guards:
        if guard.source.endswith(".training"):
            yield Specialisation("training mode", "modules", None, "train" if guard.value == "True" else "eval")
        elif files.is_users(guard.place):
            yield Specialisation("attribute", spelled(guard.source), files.location(guard.place), guard.value)
        else:
            yield Specialisation("attribute", _TORCHS_OWN)


def _is_passed(guard: Guard) -> bool:
    """Whether it is about an argument rather than about an attribute or a global."""
    root = _ROOT.match(guard.source)
    return root is not None and root["scope"] == "L" and root["name"] != "self"


def spelled(source: str) -> str:
    """Return a source as the model spells it: ``L['self']._modules['bn'].eps`` is ``self.bn.eps``."""
    text = re.sub(r"\b[LG]\['([^']+)'\]", r"\1", source)
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", text)
    return re.sub(r"\b__import_(\w+)", lambda found: found[1].replace("_dot_", "."), text)


class _Files:
    """Full names of files that Dynamo names by the last parts of their paths."""

    def __init__(self, known: Iterable[str]) -> None:
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._known = list(dict.fromkeys([*known, *(file for file in loaded if isinstance(file, str))]))
        self._found: dict[str, list[str]] = {}

    def _matches(self, file: str) -> list[str]:
        if file not in self._found:
            self._found[file] = [
                full for full in self._known if full.endswith(f"/{file}") or file in (full, shorten_filename(full))
            ]
        return self._found[file]

    def is_users(self, place: tuple[str, int] | None) -> bool:
        """Whether a line is one of user code, as far as can be told."""
        if place is None:
            return False
        matches = self._matches(place[0])
        return not matches or any(map(is_user_file, matches))

    def location(self, place: tuple[str, int] | None) -> str | None:
        """Return ``file:line``; with what Dynamo gave of the path where several files, or none, fit it."""
        if place is None or not self.is_users(place):
            return None
        users = [file for file in self._matches(place[0]) if is_user_file(file)]
        return short(users[0] if len(users) == 1 else place[0], place[1])


def _files_of(model: nn.Module) -> list[str]:
    codes = (getattr(type(module).forward, "__code__", None) for module in model.modules())
    return list(dict.fromkeys(code.co_filename for code in codes if code is not None))


def graph_constants(graph: fx.GraphModule, model: nn.Module) -> list[Constant]:
    """Return the tensors that ``graph`` holds and that are neither parameters nor buffers of ``model``."""
    state = {id(tensor) for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    found: dict[str, Constant] = {}
    for node in graph.graph.nodes:
        name = str(node.target)
        if node.op != "get_attr" or name in found:
            continue
        value: Any = graph
        for part in name.split("."):
            value = getattr(value, part, None)
        if isinstance(value, torch.Tensor) and id(value) not in state:
            found[name] = describe_constant(name, value, _stack_location(node.stack_trace))
    return list(found.values())


def _stack_location(stack: str | None) -> str | None:
    frames = [frame for frame in _STACK_FRAME.finditer(stack or "") if is_user_file(frame["file"])]
    return short(frames[-1]["file"], int(frames[-1]["line"])) if frames else None


def on_compiled(note: Callable[[CodeType], None]) -> None:
    """Have ``note`` told of each function that Dynamo has compiled, from now on; not if this torch cannot tell."""
    try:
        from torch._dynamo.convert_frame import register_bytecode_hook
    except ImportError:
        return

    def hook(code: CodeType, new_code: CodeType) -> None:
        note(code)

    register_bytecode_hook(hook)
