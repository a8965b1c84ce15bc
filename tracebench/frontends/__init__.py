"""The front ends. To add one: a file here, a config in ``configs/frontend/``, a line in ``FRONT_ENDS``."""

from __future__ import annotations

import importlib
from typing import Any

from tracebench.errors import unknown_choice

#: Name of the front end -> where its class is. Classes are imported when asked for.
FRONT_ENDS = {
    "dynamo": "tracebench.frontends.dynamo:Dynamo",
    "jit_trace": "tracebench.frontends.jit_trace:JitTrace",
    "fx": "tracebench.frontends.fx:Fx",
    "hook": "tracebench.frontends.hook:Hook",
    "eager": "tracebench.frontends.eager:Eager",
}
_USER_HOOK = "tracebench.frontends.userhook:UserHook"


def make_front_end(name: str, options: dict[str, Any] | None = None) -> Any:
    """Return the front end called ``name``, a ``base.FrontEnd``, with its options.

    Raises:
        RequestError: no front end of that name.
    """
    if name not in FRONT_ENDS:
        raise unknown_choice("front end", name, FRONT_ENDS)
    # A hook of the user's own takes the place of the built-in one.
    own = name == "hook" and options is not None and options.get("hook") is not None
    module, _, attribute = (_USER_HOOK if own else FRONT_ENDS[name]).partition(":")
    return getattr(importlib.import_module(module), attribute)(**(options or {}))
