"""Compile times: each in a process of its own, and null with the reason where that fails."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tracebench.case import Case, ModelSpec
from tracebench.record import CompileSeconds
from tracebench.running.compiling import compile_seconds, compiles, wanted

#: Stands in for the process: notes its environment, then does as it is told.
_FAKE = """
import json, os, sys, time
job = json.load(open(sys.argv[2]))
name = os.path.basename(sys.argv[2]).split(".")[0]
folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
os.makedirs(folder, exist_ok=True)
found = dict({"folder": folder, "full": bool(os.listdir(folder))})
open(os.path.join(folder, name), "w").close()
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps(found) + "\\n")
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str, str]]:
    """Return a function that makes the command of a process that ends with the given lines."""
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))

    def make(end: str) -> tuple[str, str]:
        script = tmp_path / "fake.py"
        script.write_text(_FAKE + end, encoding="utf-8")
        return sys.executable, str(script)

    return make


def case(path: str = "model.py", **fields: object) -> Case:
    return Case(ModelSpec("mine", path), "hook", executor="inductor", **fields)  # type: ignore[arg-type]


def answer(cold: float, warm: float, hits: int, misses: int = 0) -> str:
    found = {"hits": hits, "misses": misses, "bypassed": 0}
    results = {"cold": {**found, "hits": 0, "seconds": cold}, "warm": {**found, "seconds": warm}}
    return f"json.dump({results!r}[name], open(job['result'], 'w'))"


def test_the_warm_process_finds_what_the_cold_one_left(fake: Callable[[str], tuple[str, str]]) -> None:
    assert compile_seconds(case(), command=fake(answer(9.5, 2.5, hits=3))) == (CompileSeconds(9.5, 2.5), [])
    cold, warm = map(json.loads, Path(os.environ["NOTES"]).read_text(encoding="utf-8").splitlines())
    assert cold["folder"] == warm["folder"]
    assert (cold["full"], warm["full"]) == (False, True)
    assert not Path(cold["folder"]).exists()


def test_a_warm_cache_that_was_not_hit_is_said(fake: Callable[[str], tuple[str, str]]) -> None:
    found, (warning,) = compile_seconds(case(), command=fake(answer(9.5, 9.0, hits=0, misses=2)))
    assert found == CompileSeconds(9.5, 9.0)
    assert "no hit, 2 misses" in warning
    _, (warning,) = compile_seconds(case(), command=fake(answer(9.5, 5.0, hits=1, misses=1)))
    assert "part of the warm figure is compilation" in warning


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("sys.exit('no compiler here')", "ended with exit code 1: no compiler here"),
        ("os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("time.sleep(60)", "did not end within"),
    ],
)
def test_what_fails_is_null_with_the_reason(end: str, why: str, fake: Callable[[str], tuple[str, str]]) -> None:
    limit_s = 2.0 if "sleep" in end else 60.0
    found, (warning,) = compile_seconds(case(), command=fake(end), limit_s=limit_s)
    assert found == CompileSeconds(None, None)
    assert why in warning
    warm_fails = f"if name == 'warm': {end}\n{answer(9.5, 2.5, hits=1)}"
    found, (warning,) = compile_seconds(case(), command=fake(warm_fails), limit_s=limit_s)
    assert found == CompileSeconds(9.5, None)
    assert "with a warm cache" in warning
    assert why in warning


def test_a_model_object_has_no_compile_time() -> None:
    found, (warning,) = compile_seconds(case(path=""))
    assert found == CompileSeconds()
    assert "put the model into a file" in warning


def test_it_is_measured_where_the_executor_compiles_or_on_request() -> None:
    assert compiles("fx", "inductor")
    assert compiles("dynamo", "native")
    assert not compiles("jit_trace", "native")
    assert not compiles("dynamo", "replay")
    assert not compiles("eager", "inductor")
    assert wanted(case())
    assert not wanted(case(throughput={"compile": False}))
    assert wanted(Case(ModelSpec("mine", "model.py"), "fx", throughput={"compile": True}))


def test_on_a_real_compiler(model_file: Callable[..., Path]) -> None:
    asked = Case(ModelSpec("plain", str(model_file("plain"))), "hook", executor="inductor", device="cpu")
    found, said = compile_seconds(asked)
    assert said == []
    assert found.cold is not None
    assert found.warm is not None
    assert 0 < found.warm < found.cold
