"""Captured graphs replayed under CUDA graphs: one launch in place of one for each kernel.

A CUDA graph repeats the kernels of one recorded run on the memory of that run. So inputs are copied into buffers that
stay, what the run changes in an input is copied back, and outputs are copied out before the next run overwrites them.
Everything else that a run can depend on and a CUDA graph would fix is part of the signature, for which there is a
recording each: sizes and strides of inputs, plain arguments, settings of the thread, and where parameters and buffers
lie. What cannot be had under a CUDA graph runs without one, and a note says so and why.

Not seen, and so fixed by the recording: plain Python attributes of modules that a graph calls, apart from ``training``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tracebench.executors.replay import Replay, Tell, silent
from tracebench.frontends.form import PLAIN
from tracebench.frontends.tape import ambient

#: Calls of a signature that run without a graph first: TorchScript specialises at its second, libraries set up memory.
WARM_UP_CALLS = 2
#: Recordings that one captured graph may have, each of which holds memory of its own.
MOST_RECORDINGS = 16
#: Modules whose functions a graph may call: they do what they do in kernels.
_KNOWN = ("torch", "_operator", "operator", "math", "builtins")


class Recorder(Protocol):
    """What makes and replays recordings of a device."""

    device_type: str

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """Return what ``run`` returns, run beside the main stream."""
        ...

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Record ``run`` without executing its kernels; return what replays them and what ``run`` returned.

        Raises:
            Exception: ``run`` does what cannot be recorded.
        """
        ...


class CudaRecorder:
    """``torch.cuda.CUDAGraph``. Random ops of the default generator go on from its state at each replay."""

    device_type = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """Run on a side stream, as recording will."""
        self._stream = self._stream or torch.cuda.Stream(self._device)
        main = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            result = run()
        main.wait_stream(self._stream)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(main)
        return result

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Record on a stream and in memory of the graph's own."""
        graph = torch.cuda.CUDAGraph()
        # Casts that autocast keeps lie in memory that is freed before the replay, or would in the graph's.
        torch.clear_autocast_cache()
        try:
            with torch.cuda.device(self._device), torch.cuda.graph(graph):
                result = run()
        finally:
            torch.clear_autocast_cache()
        return graph.replay, result


class CudaGraphs(Replay):
    """Runs graphs as captured, each replayed under a CUDA graph where it can be."""

    def __init__(self, recorder: Recorder, name: str = "replay", tell: Tell = silent) -> None:
        super().__init__(name, tell)
        self._recorder = recorder

    def lower(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a callable that runs ``graph`` under a CUDA graph from its third call on."""
        return self.wrap(graph)

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return a callable that runs ``module`` under a CUDA graph from its third call on."""
        if called := _python_called(module):
            self.tell(f"no CUDA graph: a graph calls Python ({called})")
            return module
        return _Graphed(module, self._recorder, self)


class Unrecordable(Exception):
    """A call that a CUDA graph cannot repeat; says why."""


class _Graphed:
    """One captured graph and its recordings, by signature."""

    def __init__(self, module: nn.Module, recorder: Recorder, executor: CudaGraphs) -> None:
        self._module = module
        self._recorder = recorder
        self._executor = executor
        self._state = _State(module)
        self._signatures: dict[Any, _Signature] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        try:
            tensors = self._state.tensors()
            signature = (spec, ambient.settings(), self._state.flags(), *map(_leaf, leaves), *map(_place, tensors))
            known = self._known(signature, leaves, tensors)
        except Unrecordable as error:
            self._executor.tell(f"no CUDA graph: {error}")
            return self._module(*args, **kwargs)
        if known.refused:
            return self._module(*args, **kwargs)
        if known.recording is not None:
            return known.recording.replay(leaves)
        if known.calls < WARM_UP_CALLS:
            known.calls += 1
            return self._warm_up(known, args, kwargs)
        self._executor.compilations += 1
        try:
            known.recording = _record(self._module, self._recorder, leaves, spec, tensors)
        except Exception as error:
            # Whatever torch raises where a run cannot be recorded; a fault of the model's own is raised again below.
            known.refused = True
            self._executor.tell(f"no CUDA graph: {type(error).__name__}: {str(error).splitlines()[0]}")
            return self._module(*args, **kwargs)
        looks = f"looks where {len(tensors)} parameters and buffers lie"
        self._executor.tell(f"under CUDA graphs: a call {looks} and {known.recording.cost()}, as part of its time")
        return known.recording.replay(leaves, first=True)

    def _known(self, signature: Any, leaves: Sequence[Any], tensors: Sequence[torch.Tensor]) -> _Signature:
        found = self._signatures.get(signature)
        if found is None:
            _check(leaves, tensors, self._recorder.device_type)
            if len(self._signatures) == MOST_RECORDINGS:
                raise Unrecordable(f"more than {MOST_RECORDINGS} signatures of inputs, settings and parameters")
            # What is known by where it lies is kept, so that nothing else can come to lie there.
            kept = [tensor.detach() for tensor in (*tensors, *_staying(leaves))]
            found = self._signatures[signature] = _Signature(kept)
        return found

    def _warm_up(self, known: _Signature, args: Any, kwargs: Any) -> Any:
        if known.calls > 1:
            return self._recorder.warm_up(lambda: self._module(*args, **kwargs))
        with _OffDevice(self._recorder.device_type) as seen:
            result = self._recorder.warm_up(lambda: self._module(*args, **kwargs))
        if seen.found:
            known.refused = True
            self._executor.tell(f"no CUDA graph: {seen.found}")
        return result


@dataclass
class _Signature:
    """What is known of calls that are alike."""

    kept: list[torch.Tensor]
    calls: int = 0
    refused: bool = False
    recording: _Recording | None = None


def _leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        told = (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
        return (*told, leaf.data_ptr()) if _stays(leaf) else told
    if not isinstance(leaf, PLAIN):
        raise Unrecordable(f"an input of type {type(leaf).__name__}")
    # By its text: 0.0 equals -0.0, and nan does not equal itself.
    return (type(leaf), repr(leaf))


def _place(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _stays(leaf: torch.Tensor) -> bool:
    """Whether an input is a parameter or buffer that Dynamo lifted, which is read where it lies instead of copied."""
    return isinstance(leaf, nn.Parameter) or getattr(leaf, "_dynamo_static_input_type", None) is not None


def _staying(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and _stays(leaf)]


class _State:
    """The parameters, buffers and train/eval flags of a module, read anew at each call: any may be replaced."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._script = isinstance(module, torch.jit.ScriptModule)
        parts = [] if self._script else list(module.modules())
        self._parts = parts
        self._slots = [(held, name) for part in parts for held in (part._parameters, part._buffers) for name in held]
        self._children = [(part._modules, name, child) for part in parts for name, child in part._modules.items()]

    def tensors(self) -> list[torch.Tensor]:
        if self._script:
            # What a script holds lies in C++, so that there is nothing to keep hold of.
            return [*self._module.parameters(), *self._module.buffers()]
        return [tensor for held, name in self._slots if (tensor := held.get(name)) is not None]

    def flags(self) -> Any:
        if self._script:
            return self._module.training
        if any(held.get(name) is not child for held, name, child in self._children):
            raise Unrecordable("a submodule was replaced after capture")
        return tuple(part.training for part in self._parts)


def _check(leaves: Sequence[Any], tensors: Sequence[torch.Tensor], device: str) -> None:
    """Raise if calls with such inputs cannot be recorded.

    Raises:
        Unrecordable: they cannot.
    """
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*inputs, *tensors)):
        raise Unrecordable("gradients are recorded (training), which a replay of the forward pass alone would lose")
    if any(tensor.layout is not torch.strided or tensor.device.type != device for tensor in (*inputs, *tensors)):
        raise Unrecordable(f"an input, parameter or buffer is no strided tensor on {device}")
    places = Counter(leaf.untyped_storage().data_ptr() for leaf in inputs if leaf.numel() and not _stays(leaf))
    held = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if any(count > 1 or place in held for place, count in places.items()):
        raise Unrecordable("inputs share memory with each other or with parameters, which copies of them would not")


class _OffDevice(TorchDispatchMode):
    """Notes ops of one run whose results a recording would wrongly fix: those that another device computes.

    What such an op makes of numbers alone, such as of sizes, is the same at each call of a signature, and is let pass.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.found = ""
        self._device = device
        self._fixed: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        off = [tensor for tensor in (*given, *made) if tensor.device.type != self._device]
        if off and not self.found:
            random = torch.Tag.nondeterministic_seeded in func.tags
            if random or any(id(tensor) not in self._fixed for tensor in given):
                self.found = f"{func} works on {off[0].device.type} at each call"
            else:
                self._fixed |= {id(tensor): tensor for tensor in made}
        return result


def _python_called(module: nn.Module) -> str:
    """Return what Python a graph calls that is not torch's own, whose effects a recording would not repeat."""
    if "_regions_left_to_python" in vars(module):
        return "regions left to Python"
    if not isinstance(module, fx.GraphModule):
        return ""
    for node in module.graph.nodes:
        target = module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        if node.op == "call_module":
            known = type(target).__module__.startswith("torch.") and "forward" not in vars(target)
        elif node.op == "call_function":
            known = _owner(target) in _KNOWN
        else:
            continue
        if not known:
            return str(getattr(target, "__name__", type(target).__name__))
    return ""


def _owner(function: Any) -> str:
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return "torch"
    return str(getattr(function, "__module__", None) or "builtins").partition(".")[0]


@dataclass(frozen=True)
class _Output:
    """How one tensor of a result is handed out: ``given`` is the input that it is, or is a view of."""

    tensor: torch.Tensor
    given: int | None = None
    #: Whether it is that very input.
    same: bool = False
    #: Whether it lies in memory that is not the recording's own, as a parameter does.
    outside: bool = False

    def view_of(self, base: torch.Tensor, static: torch.Tensor) -> torch.Tensor:
        offset = base.storage_offset() + self.tensor.storage_offset() - static.storage_offset()
        return base.as_strided(self.tensor.shape, self.tensor.stride(), offset)


@dataclass
class _Recording:
    """One recorded run: its kernels, the buffers of its inputs, and what it returned."""

    run: Callable[[], None]
    #: By place among the flat inputs: the tensors that stand for them.
    statics: dict[int, torch.Tensor]
    #: Places of inputs that the run changes.
    changed: list[int]
    leaves: list[Any]
    spec: pytree.TreeSpec
    outputs: dict[int, _Output] = field(default_factory=dict)

    def replay(self, given: Sequence[Any], first: bool = False) -> Any:
        """Run on flat inputs and return a result that later calls leave alone."""
        for place, static in self.statics.items():
            static.copy_(given[place])
        self.run()
        if first:
            # Writes past autograd's count of them, as through .data, show in the values alone.
            hidden = (at for at, static in self.statics.items() if not _equal(static, given[at]))
            self.changed = sorted({*self.changed, *hidden})
        with torch.no_grad():
            for place in self.changed:
                given[place].copy_(self.statics[place])
        out = list(self.leaves)
        for place, tensor in self._handed_out(given):
            out[place] = tensor
        return pytree.tree_unflatten(out, self.spec)

    def _handed_out(self, given: Sequence[Any]) -> Iterator[tuple[int, torch.Tensor]]:
        own = [output.tensor for output in self.outputs.values() if output.given is None and not output.outside]
        users = Counter(_storage(tensor) for tensor in {id(tensor): tensor for tensor in own}.values())
        copies: dict[int, torch.Tensor] = {}
        bases: dict[int, torch.Tensor] = {}
        for place, output in self.outputs.items():
            tensor = output.tensor
            if output.given is not None:
                base = given[output.given]
                yield place, base if output.same else output.view_of(base, self.statics[output.given])
            elif output.outside:
                yield place, tensor
            else:
                if id(tensor) not in copies:
                    copies[id(tensor)] = _copy(tensor, bases) if users[_storage(tensor)] > 1 else tensor.clone()
                yield place, copies[id(tensor)]

    def cost(self) -> str:
        """Return what is copied at each call: ``copies 1.2 MB of inputs in and 0.1 MB of outputs out``."""
        own = [output.tensor for output in self.outputs.values() if output.given is None and not output.outside]
        into, out = (sum(t.nbytes for t in tensors) / 1e6 for tensors in (self.statics.values(), own))
        back = f", {len(self.changed)} inputs back" if self.changed else ""
        return f"copies {into:.3g} MB of inputs in and {out:.3g} MB of outputs out{back}"


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(tensor: torch.Tensor, bases: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return a copy of one of several tensors of a storage; their copies share one, too."""
    place = _storage(tensor)
    if place not in bases:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        bases[place] = whole.clone()
    like = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return like.set_(bases[place].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _record(
    module: nn.Module, recorder: Recorder, leaves: Sequence[Any], spec: pytree.TreeSpec, tensors: Sequence[torch.Tensor]
) -> _Recording:
    """Record a call of ``module`` on flat inputs like ``leaves``.

    Raises:
        Unrecordable: what it returns cannot be handed out anew at each call.
        Exception: whatever the recorder raises.
    """
    statics = {
        place: torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and not _stays(leaf)
    }
    args, kwargs = pytree.tree_unflatten([statics.get(place, leaf) for place, leaf in enumerate(leaves)], spec)
    before = {place: (static._version, static.shape, static.stride()) for place, static in statics.items()}
    run, result = recorder.record(lambda: module(*args, **kwargs))
    changed = []
    for place, static in statics.items():
        version, *form = before[place]
        if [static.shape, static.stride()] != form:
            raise Unrecordable("the model changes the shape of an input in place")
        if static._version != version:
            changed.append(place)
    found, output_spec = pytree.tree_flatten(result)
    places = {_storage(static): place for place, static in statics.items() if static.nbytes}
    outside = {_storage(tensor) for tensor in (*tensors, *_staying(leaves)) if tensor.nbytes}
    recording = _Recording(run, statics, changed, [], output_spec)
    for at, leaf in enumerate(found):
        if not isinstance(leaf, torch.Tensor):
            if not isinstance(leaf, PLAIN):
                raise Unrecordable(f"an output of type {type(leaf).__name__}")
            continue
        if leaf.device.type != recorder.device_type or leaf.layout is not torch.strided:
            raise Unrecordable(f"an output is no strided tensor on {recorder.device_type}")
        given = places.get(_storage(leaf))
        same = given is not None and leaf is statics[given]
        recording.outputs[at] = _Output(leaf, given, same, _storage(leaf) in outside)
    recording.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in found]
    return recording
