"""What a suspect line does, in words, and what usually helps: one table for all kinds, one for refusals."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """``what`` is said of the line; ``helps`` holds for every front end that ``instead`` does not name."""

    what: str
    helps: str
    instead: dict[str, str] = field(default_factory=dict)

    def advice(self, front_end: str) -> str:
        """Return what usually helps under ``front_end``."""
        return self.instead.get(front_end, self.helps)


_PATH = "takes another path than on the example"
_DYNAMO = "capture with torch.compile, which follows it"
_BUFFER = (
    "keep what changes in a tensor (register_buffer, changed in place with copy_ or add_) or pass it to forward as a "
    f"tensor; or {_DYNAMO}"
)
_BRANCH = f"compute both sides and choose with torch.where; or {_DYNAMO}"
_VALUE = f"stay in tensors (no item(), int(), bool() or tolist()); or {_DYNAMO}"
_EFFECT = f"return the values and do this in the code that calls the model; or {_DYNAMO}"
_AGAIN = "make one capture for each such case and choose among them in Python"
_TAPE = "record each such run (frontend.on_guard_failure=retrace), or keep this out of what is taped"
_OP = "make it an operator with torch.library.custom_op (and register_fake for Dynamo), which every front end records"

KINDS: dict[str, Kind] = {
    # The call and the example part ways, or see different values.
    "path": Kind(
        _PATH,
        _BRANCH,
        {
            "jit_trace": f"{_BRANCH}; or put the branch or loop into a function under torch.jit.script, which the "
            "trace keeps as it is",
            "hook": f"{_BRANCH}; or {_TAPE}",
            "dynamo": "keep the function out of the graph with torch.compiler.disable",
        },
    ),
    # The same, where what decides is no value of a tensor.
    "argument path": Kind(_PATH, _AGAIN),
    "state path": Kind(_PATH, f"decide before the capture, with one capture for each way; or {_DYNAMO}"),
    "fact path": Kind(_PATH, f"write what holds for all of them; or {_AGAIN}; or {_DYNAMO}"),
    "shape path": Kind(
        _PATH,
        f"pad to one size, or {_AGAIN}; or {_DYNAMO}",
        {
            "jit_trace": f"pad to one size, or put the branch or loop into a function under torch.jit.script, which "
            f"the trace keeps as it is; or {_DYNAMO}"
        },
    ),
    "raise": Kind(
        "raises {name}, and did not on the example",
        "ask for a status in place of an exception (torch.linalg.cholesky_ex, inv_ex) and choose with torch.where, or "
        "check in the code that calls the model",
        {
            "dynamo": "ask for a status in place of an exception (torch.linalg.cholesky_ex, inv_ex) and choose with "
            "torch.where, or keep the function out of the graph with torch.compiler.disable"
        },
    ),
    "runs": Kind(
        "runs now, and did not on the example",
        "do this before the capture, or capture again afterwards",
        {
            "dynamo": "do this before the first compiled call, call torch.compiler.reset() after it, or, for hooks, "
            "set torch._dynamo.config.skip_nnmodule_hook_guards = False"
        },
    ),
    "value": Kind("takes a Python value out of a tensor ({change})", _VALUE, {"hook": f"{_VALUE}; or {_TAPE}"}),
    "shape": Kind(
        "reads the shape of a tensor ({change})",
        "keep len(), int() and math away from sizes, and make tensors from other tensors (x.new_zeros(x.shape[0])); or "
        + _DYNAMO,
        {"hook": _TAPE, "dynamo": "mark the dimension with torch._dynamo.mark_dynamic"},
    ),
    "fact": Kind(
        "asks a tensor for its {name} ({change})",
        f"make one capture for each dtype, device, layout and requires_grad that will be used; or {_DYNAMO}",
        {"dynamo": "call torch.compiler.reset() after changing it"},
    ),
    "state": Kind("reads {name} ({change})", _BUFFER, {"dynamo": "call torch.compiler.reset() after changing it"}),
    "argument": Kind("reads the argument {name} ({change})", _AGAIN),
    "default dtype": Kind(
        "makes a tensor of the default dtype ({change})", "say which dtype is meant (dtype=), or keep it as a buffer"
    ),
    "told": Kind(
        "is where {name}",
        _VALUE,
        {"hook": f"avoid sizes that depend on values (x * mask in place of x[mask]); or {_TAPE}"},
    ),
    # Capturing and eager part ways.
    "captured": Kind("takes another path while it is being captured", f"let it take one path in both; or {_DYNAMO}"),
    "asks": Kind(
        "asks whether it is being captured",
        "do the same in both worlds, and put what cannot be captured into a function that the graph keeps as one call "
        "(torch.library.custom_op)",
        {
            "dynamo": "do the same in both worlds, and put what Dynamo cannot capture into a function under "
            "torch.compiler.disable"
        },
    ),
    "type": Kind(
        "asks for a type, and a tracer's stand-in (Proxy) is no tensor",
        "test for the special case, so that everything else is taken for a tensor, or keep the function as one call "
        "with torch.fx.wrap",
    ),
    # What a graph cannot hold.
    "draws": Kind(
        "draws random numbers",
        "draw with a size and device taken from an input (torch.randn_like(x), x.new_empty(5).normal_())",
    ),
    "python draws": Kind(
        "draws random numbers that are not torch's",
        "draw with torch from an input's size (x.new_empty(n).bernoulli_(0.5)) and multiply, in place of a branch",
    ),
    "clock": Kind("reads a clock or an iterator", "read it outside and pass it to forward as a tensor"),
    "prints": Kind(
        "prints",
        _EFFECT,
        {
            "dynamo": "return the values and print outside, or add print to torch._dynamo.config."
            "reorderable_logging_functions"
        },
    ),
    "writes": Kind("changes {name}", _BUFFER, {"fx": _EFFECT}),
    "in place": Kind(
        "changes a tensor in place",
        "write x = x + y in place of x += y, and leave inputs as they are; methods such as x.add_(y) are recorded",
    ),
    "grad mode": Kind("switches gradients off or on", "call detach() on the result, which is an op that graphs keep"),
    "detaches": Kind("detaches a tensor", "capture again after freezing or unfreezing, or leave the detach out"),
    "autocast": Kind("runs under autocast", "cast in the open with Tensor.to; or " + _DYNAMO),
    "backward": Kind(
        "calls an autograd.Function, whose own backward a graph of its forward's ops does not have",
        f"say it in ordinary ops with detach(); or {_DYNAMO}",
    ),
    "foreign": Kind("hands a tensor's memory to code that is not torch's", f"{_OP}, or say it in torch ops"),
    "effect": Kind(
        "is called for its effect alone, so that its op may be dropped as dead code",
        "name every argument that a custom op writes in its mutates_args, or return a new tensor",
    ),
}

_FX_WRAP = "keep the function as one call with torch.fx.wrap"
_FX_BRANCH = (
    "choose with torch.where; fix flags with torch.fx.symbolic_trace(model, concrete_args=...); or capture with "
    "torch.compile, which follows it"
)


@dataclass(frozen=True)
class Refusal:
    """Errors of a front end (all front ends if that is empty) whose ``Type: message`` matches ``pattern``."""

    front_end: str
    pattern: str
    what: str
    helps: str


REFUSALS: tuple[Refusal, ...] = (
    Refusal("fx", "used as inputs to control flow", "branches on an input's stand-in (Proxy)", _FX_BRANCH),
    Refusal(
        "fx",
        "cannot be iterated|is not iterable",
        "loops over an input's stand-in (Proxy), or unpacks it",
        "take a fixed number of tensors or keys by name, or stack them into one; or capture with torch.compile",
    ),
    Refusal(
        "fx",
        "'len' is not supported",
        "calls len() on an input's stand-in (Proxy)",
        "use x.shape[0] in place of len(x), or call torch.fx.wrap('len') at module level",
    ),
    Refusal(
        "fx",
        r"int\(\) argument|float\(\) argument|indices must be integers|as an integer|__index__|must be real number"
        "|expected bool|must be bool",
        "needs a Python number, and the input's stand-in (Proxy) has none",
        f"compute with tensors or with the sizes themselves, or {_FX_WRAP}",
    ),
    Refusal(
        "fx",
        "Proxy|[Aa]rray|pointer|fx.wrap|symbolic_trace|vmap|no backend",
        "hands an input's stand-in (Proxy) to a function that needs a real tensor",
        f"{_FX_WRAP}, called at module level with its name; or capture with torch.compile",
    ),
    Refusal(
        "jit_trace",
        "TracingCheckError",
        "does something else on a second run",
        _BUFFER + ". frontend.check_trace=false only silences the check",
    ),
    Refusal(
        "jit_trace",
        "strict=False|strict mode|Encountering a (dict|list) at the output",
        "returns a container that may change",
        "return a tuple, or set frontend.strict=false",
    ),
    Refusal(
        "jit_trace",
        r"can be inputs to traced functions\. Got (?:int|float|bool|str|NoneType)",
        "takes a Python value, and a trace takes tensors only",
        "trace a small module that holds the value and passes it on, one trace for each value, or pass a tensor",
    ),
    Refusal(
        "jit_trace",
        "cannot infer type of|Type '.*' cannot be traced|Only tensors and",
        "takes or returns what TorchScript has no type for",
        "take and return tensors in tuples, lists and dicts, and build other objects in the code that calls the model",
    ),
    Refusal(
        "jit_trace",
        "data pointer|Unsupported value kind|dynamo-optimized|vmap|torch.func",
        "uses what TorchScript cannot hold (function transforms, nested tensors, torch.cond)",
        "capture with torch.compile, or apply the transform outside, to the captured model",
    ),
    Refusal("hook", "takes a tensor's memory out of torch", "takes a tensor's memory out of torch", _OP),
    Refusal("hook", "changes (attribute|class attribute|global)", "changes what outlives the call", _BUFFER),
    Refusal("hook", "which a tape cannot repeat", "does what is no op", _EFFECT),
    Refusal(
        "hook",
        "UntapeableError|no rule registered|HigherOrderOperator",
        "takes, returns or calls what a tape of ops cannot hold",
        "take and return tensors in tuples, lists and dicts; choose with torch.where in place of torch.cond",
    ),
    Refusal(
        "dynamo",
        r"fake tensor|register_fake|no fake impl",
        "calls an op without a fake kernel, or one that fails on fake tensors",
        "register a function that returns an empty tensor of the right shape (register_fake on the op)",
    ),
    Refusal(
        "dynamo",
        "Unsupported|graph break|fullgraph|UserError|[Dd]ata-dependent",
        "cannot stay in one graph",
        "set frontend.fullgraph=false, so that Dynamo may leave the graph there, or say it with torch.where or "
        "torch.cond",
    ),
)
_OTHER = Refusal(
    "",
    "",
    "is where the front end gives up",
    "keep it out of what is captured: capture the parts around it one by one, or another front end",
)

#: What a tape's guards on arguments say, as opposed to those on values.
ARGUMENT_GUARD = re.compile(r"GuardError: (argument \d|the arguments have|the same tensor was|other arguments share)")
TAPE_ADVICE = (
    "record a tape for each kind of argument (shape, strides, dtype, structure) by frontend.on_guard_failure=retrace; "
    "torch.compile captures again by itself"
)


def refusal(front_end: str, error: str) -> Refusal:
    """Return what a front end's error, as ``Type: message``, is about."""
    for known in REFUSALS:
        if known.front_end == front_end and re.search(known.pattern, error):
            return known
    return _OTHER
