"""Settings of Dynamo: its configuration, what it does at a recompile (stance), and which guards it leaves out."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from tracebench.controls.orders import Orders
from tracebench.errors import RequestError
from tracebench.frontends.dynamo_marks import needed

#: Stances that are about the first call of a capture; the others are about those after it, for under them the first
#: would be left to Python (force_eager, eager_on_recompile) or raise (fail_on_recompile).
_FROM_THE_FIRST_CALL = ("eager_then_compile",)
_PLAIN = (bool, int, str)


def check(orders: Orders) -> None:
    """See that this torch has what is asked for.

    Raises:
        RequestError: it has not.
    """
    _changes(orders)
    compile_options(orders)
    if _word(orders, "stance") == "aot_eager_then_compile":
        raise RequestError(
            "controls.stance=aot_eager_then_compile has torch compile the first graphs with a backend of its own, of "
            "which no figure can be told. Use eager_then_compile."
        )


def configured(orders: Orders) -> AbstractContextManager[Any]:
    """Return the context in which ``torch._dynamo.config`` is as ``orders`` say."""
    changes = _changes(orders)
    if not changes:
        return contextlib.nullcontext()
    import torch._dynamo as dynamo

    patched: AbstractContextManager[Any] = dynamo.config.patch(changes)
    return patched


def compile_options(orders: Orders) -> dict[str, Any]:
    """Return the keyword arguments of ``torch.compile`` for the guards that are left out."""
    word = _word(orders, "guard_filter")
    # torch.compile takes the filter out of the options it is given, and a backend of one's own gets none.
    return {} if word is None else {"options": {"guard_filter_fn": needed("torch.compiler", word)}}


def under_stance(call: Callable[..., Any], orders: Orders) -> Callable[..., Any]:
    """Return ``call``, a new capture, under the stance that ``orders`` ask for; as is if for none.

    Under most stances the first call, which captures, goes as ever.
    """
    stance = _word(orders, "stance")
    if stance is None:
        return call
    forget_inputs()
    waits = stance not in _FROM_THE_FIRST_CALL

    @functools.wraps(call, updated=())
    def stanced(*args: Any, **kwargs: Any) -> Any:
        nonlocal waits
        if waits:
            result = call(*args, **kwargs)
            waits = False
            return result
        with torch.compiler.set_stance(stance):
            return call(*args, **kwargs)

    return stanced


def settles_after(orders: Orders) -> int:
    """Return how many calls it takes until Dynamo has compiled: the second, where the first is left to Python."""
    return 2 if _word(orders, "stance") in _FROM_THE_FIRST_CALL else 1


def forget_inputs() -> None:
    """Forget the inputs of calls under ``eager_then_compile``.

    Dynamo's own reset leaves them, so that the first call of another capture would be taken for the second.
    """
    from torch._dynamo import eval_frame

    eval_frame._EXAMPLE_INPUTS = None


def _word(orders: Orders, control: str) -> Any:
    return next((order.instruction.target for order in orders.of(control)), None)


def _changes(orders: Orders) -> dict[str, Any]:
    """Return the configuration that is asked for; it exists, and the values are of the kind of those they replace."""
    asked = {order.instruction.target: order.instruction.value for order in orders.of("config")}
    if not asked:
        return {}
    import torch._dynamo as dynamo

    known = [name for name in vars(dynamo.config)["_config"] if not name.startswith("_")]
    for name, value in asked.items():
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, 4, 0.5))
            raise RequestError(
                f"torch {torch.__version__} has no torch._dynamo.config.{name}."
                + (f" Did you mean: {near}?" if near else "")
            )
        present = getattr(dynamo.config, name)
        if type(present) in _PLAIN and type(value) is not type(present):
            raise RequestError(
                f"controls.config.{name}={value!r}: torch._dynamo.config.{name} is {present!r}, so give a "
                f"{type(present).__name__}."
            )
    return asked
