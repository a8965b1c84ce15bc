"""One compiler for every front end's graphs: torch's Inductor, and TorchScript handed to it as ATen graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tracebench.errors import RequestError, unknown_choice
from tracebench.executor_settings import unknown_option
from tracebench.executors.replay import Tell, silent

#: Where options have an effect at all, by how their names begin; the longest beginning counts.
_DEVICES = {
    "triton.": ("cuda", "xpu"),
    "triton.cudagraph": ("cuda",),
    "cuda.": ("cuda",),
    "cutlass.": ("cuda",),
    "rocm.": ("cuda",),
    "xpu.": ("xpu",),
    "cpp.": ("cpu",),
}


class Inductor:
    """Lowers graphs through torch's Inductor.

    A graph that a front end made of the whole model is compiled anew for each input signature it meets. With
    ``same_random_numbers`` random ops draw what eager draws from the same seed, at some cost in speed; verdicts
    need it, timings do without. ``mode`` is that of ``torch.compile``; ``options`` are names of
    ``torch._inductor.config`` and win over what the mode sets.

    Raises:
        RequestError: a mode or option that this torch has not, or a value of the wrong type.
    """

    compiles = True

    def __init__(
        self,
        name: str = "inductor",
        *,
        same_random_numbers: bool = False,
        mode: str = "default",
        options: Mapping[str, Any] | None = None,
        device: str = "cpu",
        tell: Tell = silent,
    ) -> None:
        self.name = name
        self.compilations = 0
        self._patches = _patches(mode, options or {}) if mode != "default" or options else {}
        if found := _without_effect(self._patches, device):
            tell(f"executor.mode and executor.options set what has no effect on {device}: {', '.join(found)}")
        if same_random_numbers:
            self._patches["fallback_random"] = True
        self.own_random_numbers = not self._patches.get("fallback_random", False)

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
        # Dynamo is handed a module that is already one graph; fullgraph turns any break in it into an error, but for
        # those around what the front end was told to leave to Python.
        whole = not _leaves_to_python(module)
        compiled: Callable[..., Any] = torch.compile(module, backend=self.lower, fullgraph=whole)
        return compiled


def _leaves_to_python(module: nn.Module) -> bool:
    """Whether a graph calls what Dynamo was told not to look into."""
    called = [part.forward for part in module.modules() if "forward" in vars(part)]
    if isinstance(module, fx.GraphModule):
        called += [node.target for node in module.graph.nodes if node.op == "call_function"]
    return any(getattr(function, "_torchdynamo_disable", False) for function in called)


def _patches(mode: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Inductor that ``mode`` and ``options`` set."""
    # Imported only where it is needed: it takes a second or more.
    from torch._inductor import config, list_mode_options

    modes: Mapping[str, Mapping[str, Any]] = list_mode_options()
    if mode not in modes:
        raise unknown_choice("executor.mode", mode, modes)
    known = config.get_config_copy()
    for name, value in options.items():
        if name not in known:
            raise unknown_option(name, known)
        if not _fits(value, name, known[name]):
            was = f"{type(known[name]).__name__}, as its default {known[name]!r} is"
            raise RequestError(f"executor.options.{name}={value!r} must be of type {was}.")
    return {**modes[mode], **options}


def _fits(value: Any, name: str, default: Any) -> bool:
    from torch._inductor import config

    try:
        return isinstance(value, cast(Any, config).get_type(name)) or (
            isinstance(default, float) and isinstance(value, int)
        )
    except TypeError:
        # Of Literal[...], list[...] and the like no type can be asked; Inductor itself takes or refuses them.
        return True


def _without_effect(patches: Mapping[str, Any], device: str) -> list[str]:
    """Return the options that change nothing on ``device``, or set what is set anyway, and why."""
    if not patches:
        return []
    from torch._inductor import config

    known, found = config.get_config_copy(), []
    for name, value in patches.items():
        beginning = max((start for start in _DEVICES if name.startswith(start)), key=len, default=None)
        if beginning is not None and device not in _DEVICES[beginning]:
            found.append(f"{name}={value} (for {' and '.join(_DEVICES[beginning])})")
        elif known[name] == value:
            found.append(f"{name}={value} (the default)")
    return found


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
