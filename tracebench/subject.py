"""The model under test: loaded from a file (or handed over from Python), with its inputs and its rules.

A model file is plain Python. It defines ``make_model`` and ``example_inputs``; everything else is optional.
Its functions may take parameters: those named in ``model.options`` get their values from there, and
``batch_size`` of ``example_inputs`` gets the case's batch size.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from tracebench.case import DTYPES, Case
from tracebench.errors import RequestError, check_device, unknown_choice
from tracebench.frontends.base import Inputs
from tracebench.probes import ASPECTS, USE, chosen
from tracebench.status import OUTCOMES

_FORM = (
    "A model file defines make_model() -> nn.Module and example_inputs() -> tuple "
    "(see the README, 'A model of your own')."
)


@dataclass(frozen=True)
class Hooks:
    """What a model file may add to every run. The defaults do nothing."""

    #: Returns whatever else must equal eager's after each call.
    observe: Callable[[nn.Module], Any] | None = None
    #: Called before call i with (model, captured, i).
    between: Callable[[nn.Module, nn.Module, int], None] | None = None
    #: Puts global state back before each run.
    reset: Callable[[nn.Module], None] | None = None
    #: Returns a context manager around call i.
    call_context: Callable[[int], AbstractContextManager[Any]] = lambda i: contextlib.nullcontext()
    #: Maps (i, output, earlier outputs) to what is compared instead of the output.
    canonical: Callable[[int, Any, list[Any]], Any] | None = None


@dataclass(frozen=True)
class Subject:
    """A model with everything a case needs to run it.

    ``model`` and the inputs are pristine: every run works on copies made by ``fresh_model`` and ``fresh_inputs``.
    """

    name: str
    model: nn.Module
    example: Inputs
    mode: str
    device: torch.device
    dtype: str
    seed: int
    #: Returns example inputs drawn anew from another seed, or None where the author's values are constant.
    redraw: Callable[[int], Inputs] | None = None
    #: Returns example inputs of the given batch size, or None where the model's author gave no way.
    with_batch: Callable[[int], Inputs] | None = None
    #: Sizes that the author declares (``SHAPES``), by the name of their probe, each with what draws such inputs; that
    #: raises ``RequestError`` where the model's options do not allow them.
    other_shapes: Mapping[str, Callable[[], Inputs]] = field(default_factory=dict)
    other_inputs: tuple[Inputs, ...] = ()
    invalid_inputs: tuple[Inputs, ...] = ()
    #: Whether the author gave ``other_inputs``: then no batch sizes or shapes of our own are probed.
    declares_inputs: bool = False
    #: Samples in one call, or None where that cannot be told.
    batch_size: int | None = None
    hooks: Hooks = field(default_factory=Hooks)
    check_strides: bool = False
    #: The module of the model's file, where there is one.
    file: ModuleType | None = None
    #: Front end -> the outcomes that the model's file expects (``EXPECT``); empty where it says nothing.
    expect: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: What its captures are judged on: names of single probes, and of aspects of a call.
    probes: frozenset[str] = frozenset(USE)
    aspects: frozenset[str] = frozenset(ASPECTS)

    @property
    def training(self) -> bool:
        """Whether a call includes the backward pass."""
        return self.mode == "training"

    def fresh_model(self) -> nn.Module:
        """Return a model of its own for one run, with global state reset and random numbers seeded.

        Raises:
            RequestError: the model cannot be copied.
        """
        try:
            model = copy.deepcopy(self.model)
        except Exception as error:
            raise RequestError(
                f"the model {self.name!r} cannot be copied ({type(error).__name__}: {error}), and every run needs "
                "its own copy. Make it deep-copyable, for instance by not keeping non-leaf tensors as attributes."
            ) from error
        if self.hooks.reset is not None:
            self.hooks.reset(model)
        seed_everything(self.seed)
        return model

    def fresh_inputs(self, inputs: Inputs | None = None) -> Inputs:
        """Return a copy of ``inputs`` (default: the example) in one piece, so that aliasing within it is kept."""
        return copy.deepcopy(self.example if inputs is None else inputs)

    @contextlib.contextmanager
    def restoring_globals(self) -> Iterator[None]:
        """Put global state, which the model file's ``reset`` knows of, back to its start when the context ends."""
        try:
            yield
        finally:
            if self.hooks.reset is not None:
                self.fresh_model()

    def synchronise(self) -> None:
        """Wait until an accelerator has done what it was given."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def grad_mode(self) -> AbstractContextManager[Any]:
        """Return the context in which calls run: gradients recorded in training, not in inference."""
        return torch.enable_grad() if self.training else torch.no_grad()


def seed_everything(seed: int) -> None:
    """Seed torch's, Python's and numpy's random number generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def resolve_device(name: str) -> torch.device:
    """Return the device a case runs on; ``auto`` is the accelerator where there is one, else the CPU.

    Raises:
        RequestError: no such device here.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    check_device(name, devices())
    return torch.device(name)


def devices() -> list[str]:
    """Return the devices of this machine, such as ``["cpu", "cuda", "cuda:0", "cuda:1"]``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    numbered = [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]
    return ["cpu", accelerator.type, *numbered]


def resolve_dtype(name: str) -> torch.dtype | None:
    """Return the floating-point dtype, or None for ``auto``.

    Raises:
        RequestError: not a floating-point dtype of torch.
    """
    if name == "auto":
        return None
    if name not in DTYPES:
        raise unknown_choice("dtype", name, DTYPES)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def load(case: Case) -> Subject:
    """Build the subject of ``case`` from its model file.

    Raises:
        RequestError: the file is missing, does not import, lacks a function or returns the wrong thing; an option
            that no function takes; a device or dtype that is not there.
    """
    device, dtype = resolve_device(case.device), resolve_dtype(case.dtype)
    module = import_file(Path(case.model.path))
    for name in ("make_model", "example_inputs"):
        if not callable(getattr(module, name, None)):
            raise RequestError(f"{case.model.path} does not define {name}(). {_FORM}")
    functions = {
        n: getattr(module, n, None) for n in ("make_model", "example_inputs", "other_inputs", "invalid_inputs")
    }
    _check_options(case, [f for f in functions.values() if callable(f)])
    options = dict(case.model.options)
    mode = case.mode if case.mode != "auto" else getattr(module, "MODE", "inference")
    if mode not in ("inference", "training"):
        raise RequestError(f"{case.model.path}: MODE is {mode!r}; it must be 'inference' or 'training'.")
    options["mode"] = mode

    seed_everything(case.seed)
    model = _call_user(module, "make_model", options)
    if not isinstance(model, nn.Module):
        raise RequestError(
            f"{case.model.path}: make_model() returned {type(model).__name__}, not an nn.Module. {_FORM}"
        )
    model = model.to(device) if dtype is None else model.to(device, dtype)

    def place(inputs: Any, function: str) -> Inputs:
        return _move(as_inputs(inputs, f"{case.model.path}: {function}()"), device, dtype)

    def draw(seed: int, batch_size: int | None, sizes: Mapping[str, Any] = MappingProxyType({})) -> Inputs:
        seed_everything(seed)
        extra = {} if batch_size is None else {"batch_size": batch_size}
        return place(_call_user(module, "example_inputs", {**options, **extra, **sizes}), "example_inputs")

    takes_batch = "batch_size" in inspect.signature(module.example_inputs).parameters
    if case.batch_size is not None and not takes_batch:
        raise RequestError(
            f"{case.model.path}: example_inputs() takes no batch_size, so batch_size={case.batch_size} cannot be met. "
            "Give it a parameter batch_size, or leave batch_size out."
        )
    example = draw(case.seed, case.batch_size)

    def lists(name: str) -> tuple[Inputs, ...]:
        if functions[name] is None:
            return ()
        seed_everything(case.seed + 1)
        found = _call_user(module, name, options)
        if not isinstance(found, (list, tuple)):
            raise RequestError(
                f"{case.model.path}: {name}() returned {type(found).__name__}, not a list of inputs. {_FORM}"
            )
        return tuple(place(entry, name) for entry in found)

    return Subject(
        name=case.model.name,
        model=model,
        example=example,
        mode=mode,
        device=device,
        dtype=case.dtype if dtype is not None else _own_dtype(model, example),
        seed=case.seed,
        redraw=lambda seed: draw(seed, case.batch_size),
        with_batch=(lambda size: draw(case.seed + 2, size)) if takes_batch else None,
        other_shapes={
            _shape_name(sizes): functools.partial(draw, case.seed + 3, case.batch_size, sizes)
            for sizes in _shapes(module)
        },
        other_inputs=lists("other_inputs"),
        invalid_inputs=lists("invalid_inputs"),
        declares_inputs=functions["other_inputs"] is not None,
        batch_size=case.batch_size if case.batch_size is not None else samples_in(example),
        hooks=Hooks(
            observe=getattr(module, "observe", None),
            between=getattr(module, "between", None),
            reset=getattr(module, "reset", None),
            call_context=getattr(module, "call_context", None) or (lambda i: contextlib.nullcontext()),
            canonical=getattr(module, "canonical", None),
        ),
        check_strides=bool(getattr(module, "CHECK_STRIDES", False)),
        file=module,
        expect=_expectations(module),
        probes=chosen(case.soundness["probes"]),
        aspects=frozenset(case.soundness["aspects"]),
    )


def from_objects(case: Case, model: nn.Module, example_inputs: Any, other_inputs: tuple[Any, ...]) -> Subject:
    """Return the subject for a model object; ``model`` itself is copied, not moved.

    Raises:
        RequestError: inputs of another form, or a device, dtype or mode that is not there.
    """
    device, dtype = resolve_device(case.device), resolve_dtype(case.dtype)
    if case.mode not in ("inference", "training"):
        raise RequestError(f"mode={case.mode!r}: valid choices are inference, training.")
    own = copy.deepcopy(model)
    own = own.to(device) if dtype is None else own.to(device, dtype)
    example = _move(as_inputs(example_inputs, "example_inputs"), device, dtype)
    return Subject(
        name=case.model.name,
        model=own,
        example=example,
        mode=case.mode,
        device=device,
        dtype=case.dtype if dtype is not None else _own_dtype(own, example),
        seed=case.seed,
        other_inputs=tuple(_move(as_inputs(entry, "other_inputs"), device, dtype) for entry in other_inputs),
        declares_inputs=bool(other_inputs),
        batch_size=samples_in(example),
        file=sys.modules.get(type(model).__module__),
        probes=chosen(case.soundness["probes"]),
        aspects=frozenset(case.soundness["aspects"]),
    )


def import_file(path: Path, kind: str = "model") -> ModuleType:
    """Import a user's file (``kind`` says what it is: a model, a hook) under a name of its own.

    Raises:
        RequestError: it is missing or does not import.
    """
    give = {"model": "model=file model.path=FILE.py", "hook": "frontend=hook frontend.hook=FILE.py"}[kind]
    if not path.is_file():
        raise RequestError(f"there is no {kind} file {path}. Give one with {give}.")
    name = f"tracebench_{kind}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{path} is not a Python file. Give one with {give}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As when Python runs the file: modules beside it can be imported.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RequestError(f"{path} does not import: {_say(error)}") from error
    return module


def as_inputs(value: Any, source: str) -> Inputs:
    """Return ``value``, a tuple of positional arguments or ``{"args": (...), "kwargs": {...}}``, as ``Inputs``.

    Raises:
        RequestError: neither of the two.
    """
    if isinstance(value, Inputs):
        return value
    if isinstance(value, dict) and set(value) <= {"args", "kwargs"} and value:
        args, kwargs = value.get("args", ()), value.get("kwargs", {})
        if isinstance(args, (tuple, list)) and isinstance(kwargs, dict):
            return Inputs(tuple(args), kwargs)
    if isinstance(value, tuple):
        return Inputs(value)
    raise RequestError(
        f"{source} returned {type(value).__name__}; inputs are a tuple of positional arguments, such as (x,), "
        'or {"args": (...), "kwargs": {...}}.'
    )


def samples_in(inputs: Inputs) -> int | None:
    """Return the number of samples: the length of a leading list, or the first dimension of the first tensor."""
    first = next(iter([*inputs.args, *inputs.kwargs.values()]), None)
    if isinstance(first, (list, tuple)) and first:
        return len(first)
    if isinstance(first, torch.Tensor) and first.dim() > 0:
        return first.shape[0]
    return None


def _check_options(case: Case, functions: list[Callable[..., Any]]) -> None:
    known: set[str] = set()
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return
        known |= {p.name for p in parameters}
    known -= {"batch_size", "mode"}
    for option in case.model.options:
        if option not in known:
            valid = (
                ", ".join(f"model.options.{name}" for name in sorted(known)) or "none; its functions take no parameters"
            )
            raise RequestError(f"model {case.model.name!r} has no option {option!r}. Valid choices: {valid}.")


def _shape_name(sizes: Mapping[str, Any]) -> str:
    return "shape_" + ",".join(f"{name}={value}" for name, value in sizes.items())


def _shapes(module: ModuleType) -> list[dict[str, Any]]:
    """Read ``SHAPES``: mappings of parameters of ``example_inputs`` to other values that the model is meant for.

    Raises:
        RequestError: something else, or a parameter that ``example_inputs`` does not have.
    """
    found = getattr(module, "SHAPES", [])
    known = inspect.signature(module.example_inputs).parameters
    if not isinstance(found, (list, tuple)) or not all(isinstance(sizes, dict) and sizes for sizes in found):
        raise RequestError(
            f"{module.__file__}: SHAPES must be a list of mappings from parameters of example_inputs() to values, "
            'such as [{"image_size": 160}].'
        )
    for name in dict.fromkeys(name for sizes in found for name in sizes):
        if name not in known:
            raise unknown_choice(f"parameter of example_inputs() in SHAPES of {module.__file__}", name, list(known))
    return list(found)


def _expectations(module: ModuleType) -> dict[str, tuple[str, ...]]:
    """Read ``EXPECT``: for a front end one outcome, or several that are all right.

    Raises:
        RequestError: a word that is no outcome.
    """
    found = {}
    for front_end, words in getattr(module, "EXPECT", {}).items():
        found[front_end] = (words,) if isinstance(words, str) else tuple(words)
        for word in found[front_end]:
            if word not in OUTCOMES:
                raise unknown_choice(f"outcome in EXPECT of {module.__file__}", str(word), OUTCOMES)
    return found


def _call_user(module: ModuleType, name: str, options: dict[str, Any]) -> Any:
    function = getattr(module, name)
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        options = {key: value for key, value in options.items() if key in parameters}
    try:
        return function(**options)
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(f"{module.__file__}: {name}() failed: {_say(error)}") from error


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _move(inputs: Inputs, device: torch.device, dtype: torch.dtype | None) -> Inputs:
    """Move tensors to ``device`` and floating-point ones to ``dtype``; tensors already there keep their identity."""

    def move(leaf: Any) -> Any:
        # A tensor on the meta device has no data to move; it is there because the author wants it there.
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
            return leaf
        return leaf.to(device, dtype) if dtype is not None and leaf.is_floating_point() else leaf.to(device)

    args, kwargs = torch.utils._pytree.tree_map(move, (tuple(inputs.args), dict(inputs.kwargs)))
    return Inputs(args, kwargs)


def _own_dtype(model: nn.Module, example: Inputs) -> str:
    tensors = [
        *model.parameters(),
        *model.buffers(),
        *torch.utils._pytree.tree_leaves((example.args, dict(example.kwargs))),
    ]
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            return str(tensor.dtype).removeprefix("torch.")
    return str(torch.get_default_dtype()).removeprefix("torch.")
