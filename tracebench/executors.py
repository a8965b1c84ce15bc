"""What runs captured graphs: as they are, or lowered through a compiler that is the same for every front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tracebench.errors import unknown_choice


class Replay:
    """Runs graphs as captured, without a compiler: what remains against eager is the front end's own cost."""

    name = "replay"
    compilations = 0
    #: Whether random ops draw other numbers than eager does from the same seed.
    own_random_numbers = False

    def lower(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the graph's own code."""
        return graph.forward

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return the module itself."""
        return module


class Inductor:
    """Lowers graphs through torch's Inductor.

    A graph that a front end made of the whole model is compiled anew for each input signature it meets. With
    ``same_random_numbers`` random ops draw what eager draws from the same seed, at some cost in speed; verdicts
    need it, timings do without.
    """

    name = "inductor"

    def __init__(self, *, same_random_numbers: bool = False) -> None:
        self.compilations = 0
        self.own_random_numbers = not same_random_numbers
        self._patches = {"fallback_random": True} if same_random_numbers else {}

    def lower(self, graph: nn.Module, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph, or a module whose ops are one, for flat inputs like ``example_inputs``."""
        from torch._inductor.compile_fx import compile_fx

        self.compilations += 1
        compiled: Any = compile_fx(
            cast(fx.GraphModule, graph), list(example_inputs), config_patches=dict(self._patches)
        )
        return cast(Callable[..., Any], compiled)

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Compile a module that is one graph, at its first call and whenever the inputs' signature changes."""
        if isinstance(module, torch.jit.ScriptModule):
            return _CompiledScript(module, self)
        # Dynamo is handed a module that is already one graph; fullgraph turns any break in it into an error.
        compiled: Callable[..., Any] = torch.compile(module, backend=self.lower, fullgraph=True)
        return compiled


EXECUTORS: dict[str, Callable[..., Replay | Inductor]] = {"replay": Replay, "inductor": Inductor}


def make_executor(name: str, *, for_verdict: bool) -> Replay | Inductor:
    """Return a new executor.

    Raises:
        RequestError: no executor of that name.
    """
    if name not in EXECUTORS:
        raise unknown_choice("executor", name, EXECUTORS)
    return Inductor(same_random_numbers=for_verdict) if name == "inductor" else EXECUTORS[name]()


class _CompiledScript:
    """A TorchScript module lowered as ATen graphs, one for each input signature.

    Dynamo skips TorchScript, but tracing a call of the script with AOTAutograd sees its ATen ops.
    """

    def __init__(self, script: torch.jit.ScriptModule, executor: Inductor) -> None:
        self._script = script
        self._executor = executor
        self._compiled: dict[Any, tuple[Callable[..., Any], _Flat]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        signature = (spec, torch.is_grad_enabled(), self._script.training, tuple(map(_leaf_signature, leaves)))
        if signature not in self._compiled:
            flat = _Flat(self._script, spec)
            self._compiled[signature] = (self._executor.lower(flat, leaves), flat)
        lowered, flat = self._compiled[signature]
        return flat.restore(lowered(*leaves))


class _Flat(nn.Module):
    """Calls a script on flat inputs and returns its flat outputs, remembering their structure."""

    def __init__(self, script: torch.jit.ScriptModule, spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.script = script
        self._inputs = spec
        self._outputs: pytree.TreeSpec | None = None

    def forward(self, *leaves: Any) -> tuple[Any, ...]:
        args, kwargs = pytree.tree_unflatten(leaves, self._inputs)
        flat, self._outputs = pytree.tree_flatten(self.script(*args, **kwargs))
        return tuple(flat)

    def restore(self, flat: Sequence[Any]) -> Any:
        """Give flat outputs the structure the script returned."""
        assert self._outputs is not None, "lowering runs the script at least once"
        return pytree.tree_unflatten(list(flat), self._outputs)


def _leaf_signature(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
    return (type(leaf), leaf)
