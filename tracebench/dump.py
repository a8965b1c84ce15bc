"""Graphs as text beside the record, and the log from which tlparse makes its pages.

``graph_N.txt`` is a graph as its front end writes it, ``graph_N.py`` its code, ``eager.aten.txt`` and
``captured.aten.txt`` the ATen ops of one call, in which front ends compare. ``dedicated_log_torch_trace_*.log``
is torch's structured trace of what Dynamo and the compiler did while capturing: ``tlparse FILE`` turns it into pages.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import fx, nn

from tracebench.record import write_atomically


def write_graphs(folder: Path, graphs: Sequence[nn.Module]) -> None:
    """Write each of ``graphs`` as text and as code.

    Raises:
        OSError: the folder cannot be written to.
    """
    for number, graph in enumerate(graphs):
        if isinstance(graph, fx.GraphModule):
            text, code = str(graph.graph), graph.print_readable(print_output=False)
        else:
            assert isinstance(graph, torch.jit.ScriptModule)
            text, code = str(graph.inlined_graph), str(graph.code)
        write_atomically(folder / f"graph_{number}.txt", f"{text}\n")
        write_atomically(folder / f"graph_{number}.py", f"{code}\n")


@contextlib.contextmanager
def structured_trace(folder: Path) -> Iterator[None]:
    """Within the context, have torch write its structured trace to ``folder``, as ``TORCH_TRACE`` would.

    Raises:
        AttributeError: this torch keeps that log elsewhere.
    """
    from torch._logging import _internal

    folder.mkdir(parents=True, exist_ok=True)
    handler = _internal.LazyTraceHandler(str(folder))
    handler.setFormatter(_internal.TorchLogsFormatter(trace=True))
    log = _internal.trace_log
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(level)
