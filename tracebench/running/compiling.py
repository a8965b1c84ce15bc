"""Compile time with a cold and with a warm cache, each in a process of its own with a cache folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracebench.case import Case
from tracebench.record import CompileSeconds
from tracebench.running.launch import child_environment

#: Seconds after which either process is ended.
LIMIT_S = 600.0


def wanted(case: Case) -> bool:
    """Return whether to measure it: as ``throughput.compile`` says, by default where the executor compiles."""
    asked = case.throughput.get("compile")
    return compiles(case.frontend, case.executor) if asked is None else bool(asked)


def compiles(front_end: str, executor: str) -> bool:
    """Return whether this executor has a compiler with a cache that outlives the process."""
    return front_end != "eager" and (executor == "inductor" or (executor == "native" and front_end == "dynamo"))


def compile_seconds(
    case: Case, *, limit_s: float = LIMIT_S, command: Sequence[str] = (sys.executable, "-m")
) -> tuple[CompileSeconds, list[str]]:
    """Return the compile times of ``case``, with a warning for each that is missing or doubtful.

    The warm process finds the cache folder as the cold one left it. What fails is null.
    """
    if not case.model.path:
        return CompileSeconds(), [
            "compile time: not measured for a model object, which no other process can build; put the model into a "
            "file (see the README, 'A model of your own')"
        ]
    with tempfile.TemporaryDirectory(prefix="tracebench-cache-") as folder:
        cold, problem = _measure(case, Path(folder), "cold", limit_s, command)
        if cold is None:
            return CompileSeconds(), [f"compile time: the process with a cold cache {problem}"]
        warm, problem = _measure(case, Path(folder), "warm", limit_s, command)
    if warm is None:
        return CompileSeconds(cold["seconds"]), [f"compile time: the process with a warm cache {problem}"]
    return CompileSeconds(cold["seconds"], warm["seconds"]), _doubts(cold, warm)


def _doubts(cold: dict[str, Any], warm: dict[str, Any]) -> list[str]:
    """Say so where the caches were not what the figures' names claim."""
    said = []
    if cold["hits"]:
        said.append(f"compile time: the cold cache had {cold['hits']} hits: the model holds equal graphs")
    if not warm["hits"]:
        said.append(
            f"compile time: the warm cache was of no use (no hit, {warm['misses']} misses, {warm['bypassed']} graphs "
            "that torch does not cache), so the warm figure is of a full compilation"
        )
    elif warm["misses"] or warm["bypassed"]:
        said.append(
            f"compile time: the warm cache had {warm['hits']} hits, {warm['misses']} misses and {warm['bypassed']} "
            "graphs that torch does not cache, so part of the warm figure is compilation"
        )
    return said


def _measure(
    case: Case, folder: Path, name: str, limit_s: float, command: Sequence[str]
) -> tuple[dict[str, Any] | None, str]:
    """Run one process; return what it found, or None and what became of it."""
    job, log, result = (folder / f"{name}.{part}" for part in ("job", "log", "json"))
    job.write_text(json.dumps({"case": case.to_dict(), "result": str(result)}), encoding="utf-8")
    environment = {
        **child_environment(),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        # Nothing from elsewhere: neither a team's cache nor a bundle of artifacts.
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "0",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "tracebench.running.compilechild", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None, f"did not end within {limit_s:g} s"
    if code == 0 and result.is_file():
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found, ""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return None, f"{how}: {lines[-1].strip() if lines else 'no output'}"


def cache_counts() -> dict[str, int]:
    """Return how often Inductor's cache of graphs was hit, missed and not used in this process."""
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    return {
        "hits": int(inductor["fxgraph_cache_hit"] + autograd["autograd_cache_hit"]),
        "misses": int(inductor["fxgraph_cache_miss"]),
        "bypassed": int(inductor["fxgraph_cache_bypass"]),
    }
