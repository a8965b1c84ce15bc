"""``capture.dump=true`` writes the graphs, the ops and torch's trace log beside the record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: How torch begins a line of its structured trace, which tlparse reads.
_TRACE_LINE = re.compile(r"V\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+:\d+\] (\{.*\})$")


def _record(folder: Path) -> dict[str, Any]:
    [path] = (folder / "records").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("front_end", ["dynamo", "jit_trace", "fx", "hook"])
def test_graphs_ops_and_trace(
    front_end: str, model_file: Callable[..., Path], tracebench: Callable[..., Any], tmp_path: Path
) -> None:
    done = tracebench(
        "model=file", f"model.path={model_file('mine')}", f"frontend={front_end}", "stages=[coverage]", "name=x",
        "capture.dump=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "x"
    record = _record(folder)
    dump = folder / record["capture"]["dump"]
    assert dump.name == record["key"]
    assert "def forward" in (dump / "graph_0.py").read_text(encoding="utf-8")
    assert "graph" in (dump / "graph_0.txt").read_text(encoding="utf-8")
    assert not (dump / "graph_1.txt").exists()
    ops = {side: (dump / f"{side}.aten.txt").read_text(encoding="utf-8").splitlines() for side in ("eager", "captured")}
    assert (len(ops["eager"]), len(ops["captured"])) == (
        record["coverage"]["eager_ops"], record["coverage"]["ops_total"],
    )  # fmt: skip
    assert all(line.startswith("forward  outside") for line in ops["eager"])
    assert all(line.startswith("forward  graph 0") for line in ops["captured"])
    logs = list(dump.glob("dedicated_log_torch_trace_*.log"))
    if front_end == "dynamo":
        [log] = logs
        events = [
            found[1] for line in log.read_text(encoding="utf-8").splitlines() if (found := _TRACE_LINE.match(line))
        ]
        assert any("dynamo_output_graph" in json.loads(event) for event in events)


def test_nothing_is_written_unasked(
    model_file: Callable[..., Path], tracebench: Callable[..., Any], tmp_path: Path
) -> None:
    done = tracebench("model=file", f"model.path={model_file('mine')}", "frontend=fx", "stages=[]", "name=x")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "results" / "x" / "graphs").exists()
    assert _record(tmp_path / "results" / "x")["capture"]["dump"] is None
