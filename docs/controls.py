"""Writes ``docs/controls.md``: every control, what it does on a tiny model, and what it does not, found by running it.

Run: ``python docs/controls.py``. What the page says of an effect is what the record of a case said.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tracebench
from tracebench.controls.vocabulary import CONTROLS
from tracebench.record import Record

PAGE = Path(__file__).with_suffix(".md")
FRONT_ENDS = ("dynamo", "jit_trace", "fx", "hook")


def helper(x: torch.Tensor) -> torch.Tensor:
    """Two ops."""
    return x.cos().neg()


def other(x: torch.Tensor) -> torch.Tensor:
    """Two ops, of which one is another."""
    return x.abs().neg()


class Block(nn.Module):
    """Two ops."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * 2


class Tiny(nn.Module):
    """sin | tanh mul (``block``) | relu | cos neg (``helper``) | exp: seven ops."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x.sin()).relu()
        return helper(x).exp()


HELPER = f"{__name__}:helper"
#: Control -> values of it that the page shows.
SHOWN: dict[str, list[Any]] = {
    **{name: [["block"], [HELPER]] for name, control in CONTROLS.items() if control.kind == "pieces"},
    "allow_in_graph": [[HELPER]],
    "disallow_in_graph": [["torch.relu"], ["torch.sin"]],
    "inline": [["block"]],
    "substitute_in_graph": [{HELPER: f"{__name__}:other"}],
    "mark_dynamic": [{"x": [0]}],
    "maybe_mark_dynamic": [{"x": [0]}],
    "mark_static": [{"x": [0]}],
    "mark_unbacked": [{"x": [0]}],
    "stance": ["force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile"],
    "guard_filter": ["keep_tensor_guards_unsafe", "skip_all_guards_unsafe"],
    "config": [{"automatic_dynamic_shapes": False}, {"nested_graph_breaks": True}],
}


class Relu(Tiny):
    """The same with ``torch.sin`` and ``torch.relu`` called as functions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.block(torch.sin(x)))
        return helper(x).exp()


def run(front_end: str, controls: dict[str, Any]) -> Record:
    """Return the record of the tiny model, called at three batch sizes."""
    torch.manual_seed(0)
    model = Relu() if "disallow_in_graph" in controls else Tiny()
    sizes = [(torch.randn(size, 3),) for size in (5, 6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tracebench.run(
            model.eval(), (torch.randn(4, 3),), front_end, other_inputs=sizes, controls=controls,
            stages=("soundness", "coverage"), probes=["use"], blame_seconds=0,
        )  # fmt: skip


def figures(record: Record) -> list[str]:
    """Return the cells that say what a case came to."""
    if record.verdict == "refused" or record.capture is None or record.coverage is None:
        why = record.error.message if record.error else " ".join(record.notes)
        # Where an object lies in memory is no news.
        first = re.sub(r" at 0x[0-9a-f]+", "", why.splitlines()[0] if why else "")
        return ["-", "-", "-", "-", f"{record.verdict or record.status}: {first}"]
    coverage, capture = record.coverage, record.capture
    return [
        str(coverage.graphs_per_call),
        str(len(capture.graph_breaks)),
        str(len(capture.recompiles)),
        f"{coverage.ops_in_graph} of {coverage.ops_total}",
        str(record.verdict),
    ]


def spelled(control: str, value: Any) -> str:
    """Return how a control is given on the command line."""
    if isinstance(value, list):
        text = f"[{','.join(value)}]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in value.items()) + "}"
    else:
        text = value
    return f"`controls.{control}={text}`".replace(f"{__name__}:", "mine:")


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def table(heading: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def effects() -> str:
    """Return the table of all controls under dynamo."""
    rows = [["none", *figures(run("dynamo", {}))]]
    for control, values in SHOWN.items():
        rows += [[spelled(control, value), *figures(run("dynamo", {control: value}))] for value in values]
    return table(["control", "graphs a call", "graph breaks", "recompiles", "ops in graphs", "verdict"], rows)


def shared() -> str:
    """Return the table of what the other front ends make of the shared wishes."""
    rows = []
    for control, entry in CONTROLS.items():
        if len(entry.by) == 1:
            continue
        for front_end in FRONT_ENDS:
            if front_end not in entry.by:
                rows.append([f"`{control}`", front_end, "cannot be expressed: it looks inside anyway", "-", "-", "-"])
                continue
            for value in SHOWN[control]:
                found = figures(run(front_end, {control: value}))
                rows.append([spelled(control, value), front_end, entry.by[front_end], found[0], found[3], found[4]])
    return table(["control", "front end", "expressed by", "graphs a call", "ops in graphs", "verdict"], rows)


def _said(act: Callable[[], Any]) -> str:
    """Return what running something came to, on one line."""
    try:
        result = act()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return str(result)


def _disallowed_as_context() -> None:
    with torch._dynamo.disallow_in_graph(torch.sin):
        pass


class Ignoring(nn.Module):
    """A method under ``torch.jit.ignore``."""

    @torch.jit.ignore
    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.sin())


def _ignored() -> str:
    traced = torch.jit.trace(Ignoring(), (torch.ones(2),))
    found = [node.kind() for node in traced.inlined_graph.nodes()]
    return f"the trace of sin and of an ignored method with cos holds {', '.join(found)}"


def _disabled() -> str:
    found = run("dynamo", {"disable": ["block"]}).coverage
    assert found is not None
    return f"all {len(found.outside)} ops of the block run outside: {', '.join(sorted(op.op for op in found.outside))}"


def _disallowed() -> str:
    record = run("dynamo", {"disallow_in_graph": ["torch.relu"]})
    assert record.capture is not None
    return f"verdict {record.verdict}, {len(record.capture.graph_breaks)} graph break"


def _wrapped() -> Any:
    return torch.fx.wrap(torch.fx.Graph())  # type: ignore[arg-type]


def _decorated() -> Any:
    @torch.jit.trace
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return double


#: What is believed, what was run, what it came to.
MISCONCEPTIONS: list[tuple[str, str, Callable[[], Any]]] = [
    ("`torch.compiler.disable` stops only an `if` statement.", "`controls.disable=[block]`", _disabled),
    ("`disallow_in_graph` is a context manager.", "`with torch._dynamo.disallow_in_graph(torch.sin):`",
     _disallowed_as_context),
    ("`disallow_in_graph` raises when the function is met.", "`controls.disallow_in_graph=[torch.relu]`", _disallowed),
    ("`torch.jit.trace` is a decorator.", "`@torch.jit.trace` over a function", _decorated),
    ("`torch.fx.Graph` has a `capture()` method.", "`torch.fx.Graph.capture`", lambda: torch.fx.Graph.capture),  # type: ignore[attr-defined]
    ("`torch.fx.wrap` takes a graph.", "`torch.fx.wrap(torch.fx.Graph())`", _wrapped),
    ("A method under `torch.jit.ignore` stays out of a trace.", "`torch.jit.trace` of such a module", _ignored),
]  # fmt: skip


def misconceptions() -> str:
    """Return the table of misconceptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [[believed, ran, _said(act)] for believed, ran, act in MISCONCEPTIONS]
    torch._dynamo.allow_in_graph(torch.sin)
    return table(["believed", "run", "what happens"], rows)


def vocabulary() -> str:
    """Return the table of all controls."""
    rows = [
        [f"`{control.name}`", control.meaning, "; ".join(f"{name}: `{by}`" for name, by in control.by.items())]
        for control in CONTROLS.values()
    ]
    return table(["control", "meaning", "expressed by"], rows)


def page() -> str:
    """Return the page."""
    return f"""# Controls

Made by `python docs/controls.py` with torch {torch.__version__.partition("+")[0]}.

A control is an instruction to a front end about one piece of a model, whose source stays as it is:
`controls.disable=[layer4.1]` on the command line, a file in `configs/controls/` (`controls=disable_layer4`), or
`tracebench.run(..., controls={{"disable": ["layer4.1"]}})`. A piece is named by

- the path of a submodule, or a pattern of paths: `layer4.1`, `blocks.*.attention` (`*` is one step, `**` any number);
- a class or function by its qualified name: `torch.nn.ReLU`, `torchvision.ops.nms`, `mypkg.mod:fn`;
- a class or function of the model's own file: `fn`.

A name that stands for nothing is an error. What each control did, or why it did nothing, is in the record and under the
table (`controls.ablation=false` leaves that out).

## All controls

{vocabulary()}

## What they do under dynamo

On `sin | tanh mul (block) | relu | cos neg (helper) | exp`, called at batch sizes 4, 5 and 6. Figures of a call are
those of batch size 4, once nothing compiles any more.

{effects()}

## The same wish under other front ends

{shared()}

## What they are not

{misconceptions()}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
