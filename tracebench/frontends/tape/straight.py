"""A graph's code run on what it holds, without the steps by which a module finds an attribute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch import fx


def straight(graph: fx.GraphModule) -> Callable[..., Any]:
    """Return what runs the code of ``graph``, whose nodes call functions and methods only, on its flat inputs.

    What it holds is looked up now, and found again at each call as fast as Python finds anything: through modules each
    tensor costs about a microsecond for each dot in its name.
    """
    held = SimpleNamespace()
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            *path, name = node.target.split(".")
            place, module = held, graph
            for part in path:
                module = getattr(module, part)
                place = vars(place).setdefault(part, SimpleNamespace())
            vars(place)[name] = getattr(module, name)
    return functools.partial(type(graph).forward, held)
