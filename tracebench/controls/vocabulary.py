"""Every control: what it means, what its value is, and how each front end expresses it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracebench.errors import RequestError, unknown_choice

#: Kinds of value, and how a user writes one. ``pieces``: names of pieces of the model (see ``targets``). ``pairs``:
#: pieces mapped to something. ``inputs``: names or positions of arguments mapped to dimensions. ``word``: one of
#: ``Control.choices``, empty for none. ``keys``: keys of a configuration mapped to values.
FORMS = {
    "pieces": "a list of pieces, such as [layer4.1]",
    "pairs": "a mapping, such as {mypkg.mod:fn: mypkg.mod:other}",
    "inputs": "a mapping of arguments to dimensions, such as {0: [0]}",
    "word": "one word",
    "keys": "a mapping, such as {capture_scalar_outputs: true}",
}


@dataclass(frozen=True)
class Control:
    """One control. ``by`` says for each front end that has it by what it is expressed there."""

    name: str
    meaning: str
    by: Mapping[str, str]
    kind: str = "pieces"
    choices: tuple[str, ...] = ()


def _dynamo(name: str, meaning: str, by: str, kind: str = "pieces", choices: tuple[str, ...] = ()) -> Control:
    return Control(name, meaning, {"dynamo": by}, kind, choices)


CONTROLS: dict[str, Control] = {
    control.name: control
    for control in (
        Control(
            "disable",
            "keep out of the graph: it runs as plain Python, with all that it calls",
            {
                "dynamo": "torch.compiler.disable",
                "jit_trace": "a torch.jit.ignore'd call",
                "fx": "a leaf module, or torch.fx.wrap, that runs as Python",
                "hook": "a region left to Python",
            },
        ),
        Control(
            "opaque",
            "one op of the graph, which is not looked into",
            {
                "dynamo": "torch.compiler.allow_in_graph",
                "jit_trace": "torch.jit.script",
                "fx": "a leaf module, or torch.fx.wrap",
                "hook": "one node of the tape",
            },
        ),
        Control(
            "inline",
            "look inside, where the front end would take it as one op or skip it",
            {"dynamo": "torch._dynamo.dont_skip_tracing", "fx": "no leaf module"},
        ),
        _dynamo("graph_break_before", "end the graph before it", "torch._dynamo.graph_break"),
        _dynamo("graph_break_after", "end the graph after it", "torch._dynamo.graph_break"),
        _dynamo(
            "disable_only",
            "run its own frame as Python, but capture what it calls",
            "torch.compiler.disable(recursive=False)",
        ),
        _dynamo("allow_in_graph", "put the call into the graph unseen", "torch.compiler.allow_in_graph"),
        _dynamo("disallow_in_graph", "break the graph at each call", "torch._dynamo.disallow_in_graph"),
        _dynamo("forbid_in_graph", "raise if it is met while capturing", "torch._dynamo.forbid_in_graph"),
        _dynamo(
            "nonstrict_trace", "trace it by running it on fake tensors, as one call", "torch._dynamo.nonstrict_trace"
        ),
        _dynamo(
            "leaf_function", "one opaque op that runs its Python at each call",
            "torch._dynamo.decorators.leaf_function",
        ),
        _dynamo(
            "assume_constant_result", "keep its first result as a constant", "torch.compiler.assume_constant_result"
        ),
        _dynamo("skip_frame", "run its frame as Python, but capture what it calls", "torch._dynamo.decorators.skip"),
        _dynamo("error_on_graph_break", "raise where the graph breaks in it", "torch._dynamo.error_on_graph_break"),
        _dynamo(
            "nested_compile_region", "a subgraph that is compiled once for all its calls",
            "torch.compiler.nested_compile_region",
        ),
        _dynamo(
            "substitute_in_graph", "trace another function in its place", "torch.compiler.substitute_in_graph", "pairs"
        ),
        _dynamo("mark_dynamic", "sizes of an input that may change", "torch._dynamo.mark_dynamic", "inputs"),
        _dynamo("maybe_mark_dynamic", "the same, as a hint", "torch._dynamo.maybe_mark_dynamic", "inputs"),
        _dynamo("mark_static", "sizes of an input that stay", "torch._dynamo.mark_static", "inputs"),
        _dynamo("mark_unbacked", "sizes of which nothing is known", "torch._dynamo.decorators.mark_unbacked", "inputs"),
        _dynamo(
            "stance", "what torch.compile does from the second call on", "torch.compiler.set_stance", "word",
            ("force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile"),
        ),
        _dynamo(
            "guard_filter", "guards that are left out", "options={'guard_filter_fn': ...}", "word",
            (
                "keep_portable_guards_unsafe", "keep_tensor_guards_unsafe", "skip_all_guards_unsafe",
                "skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_globals_unsafe",
                "skip_guard_on_inbuilt_nn_modules_unsafe",
            ),
        ),
        _dynamo("config", "settings of torch._dynamo.config", "torch._dynamo.config.patch", "keys"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One control with one target: a piece of the model, or the word, input or key it is about."""

    control: str
    target: str
    #: What the target is mapped to, where the control's kind has such a thing.
    value: Any = None

    def __str__(self) -> str:
        return f"{self.control}={self.target}" + ("" if self.value is None else f":{self.value}")


@dataclass(frozen=True)
class Wishes:
    """What is asked for in one case, in the order of ``CONTROLS``."""

    instructions: tuple[Instruction, ...] = ()

    def of(self, control: str) -> tuple[Instruction, ...]:
        """Return the instructions of one control."""
        return tuple(found for found in self.instructions if found.control == control)

    def without(self, left_out: Instruction) -> Wishes:
        """Return all but one."""
        return Wishes(tuple(found for found in self.instructions if found != left_out))

    def __bool__(self) -> bool:
        return bool(self.instructions)


def wishes(asked: Mapping[str, Any], front_end: str) -> Wishes:
    """Read the ``controls`` section of a case: control name -> its value, empty ones left out or not.

    Raises:
        RequestError: a control that does not exist or that the front end cannot express, or a value of the wrong kind.
    """
    for name in asked:
        if name not in CONTROLS:
            raise unknown_choice("control", name, CONTROLS)
    found: list[Instruction] = []
    for name, control in CONTROLS.items():
        value = asked.get(name)
        if not value:
            continue
        if front_end not in control.by:
            has = ", ".join(other for other, entry in CONTROLS.items() if front_end in entry.by) or "none"
            raise RequestError(
                f"controls.{name} is something that {front_end} cannot express; it is for "
                f"{', '.join(control.by)}. Controls of {front_end}: {has}."
            )
        found += _instructions(control, value)
    return Wishes(tuple(found))


def _instructions(control: Control, value: Any) -> list[Instruction]:
    if control.kind == "pieces" and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return [Instruction(control.name, item) for item in dict.fromkeys(value)]
    if control.kind == "word" and isinstance(value, str):
        if value not in control.choices:
            raise RequestError(f"controls.{control.name}={value}: valid choices are {', '.join(control.choices)}.")
        return [Instruction(control.name, value)]
    if control.kind in ("pairs", "inputs", "keys") and isinstance(value, dict):
        return [Instruction(control.name, str(target), to) for target, to in value.items()]
    raise RequestError(f"controls.{control.name}={value!r} must be {FORMS[control.kind]}.")
