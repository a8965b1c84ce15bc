"""Cases survive: whatever a model does to its process, every case has its record, and the sweep goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracebench.case import Case, ModelSpec, soundness_options
from tracebench.running import journal
from tracebench.running.launch import ForkServer, Spawner, make_launcher
from tracebench.running.limits import Limits, available_bytes, resident_bytes
from tracebench.running.runner import ask_machine, run_case
from tracebench.running.sweep import Request, run_sweep

from .conftest import records_in

ModelFile = Callable[..., Path]
CommandLine = Callable[..., subprocess.CompletedProcess[str]]

#: What each bad model does, and what its record must say: status, error fields.
BAD_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "exits": ("os._exit(3)", "crashed", {"exit_code": 3, "signal": None}),
    "exits_quietly": ("os._exit(0)", "crashed", {"exit_code": 0}),
    "sys_exits": ("sys.exit(5)", "crashed", {"exit_code": 5}),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "crashed", {"signal": "SIGSEGV"}),
    "raises_signal": ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", {"signal": "SIGSEGV"}),
    "hangs": ("time.sleep(1e6)", "timeout", {"signal": None}),
    "eats_memory": ("kept = [torch.ones(2**22) for _ in range(10**6)]", "oom", {}),
    "asks_for_too_much": ("torch.empty(2**50)", "oom", {}),
}


@pytest.fixture(scope="module")
def launcher() -> Any:
    made = ForkServer()
    yield made
    made.close()


def case(path: Path, frontend: str = "fx", **fields: Any) -> Case:
    return Case(ModelSpec(path.stem, str(path)), frontend, stages=("soundness",), **fields)


def run(launcher: Any, path: Path, **limits: float) -> Any:
    return run_case(case(path), "key", Limits(**{"seconds": 120.0, "memory_gb": 4.0, **limits}), launcher)


def test_a_sweep_with_every_kind_of_bad_model(model_file: ModelFile, tracebench: CommandLine, tmp_path: Path) -> None:
    paths = [model_file(name, body) for name, (body, *_) in BAD_MODELS.items()] + [model_file("good")]
    done = tracebench(
        "-m", "model=file", f"model.path={','.join(map(str, paths))}", "frontend=fx", "stages=[soundness]",
        "limits.seconds=6", "limits.memory_gb=1", "name=bad",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    records = records_in(tmp_path / "results" / "bad")
    assert len(records) == len(BAD_MODELS) + 1
    assert records["good fx"]["status"] == "done"
    assert records["good fx"]["verdict"] == "sound"
    for name, (_, status, error) in BAD_MODELS.items():
        record = records[f"{name} fx"]
        assert (record["status"], record["verdict"]) == (status, None), name
        assert record["error"]["stage"] == "reference"
        for field, value in error.items():
            assert record["error"][field] == value, (name, field)
        assert f"{name} fx replay: {status} in stage reference" in done.stdout
        assert record["throughput"] is None
        assert record["coverage"] is None
    for name in ("segfaults", "hangs"):
        assert f"{name}.py:" in records[f"{name} fx"]["error"]["user_location"]
    assert "9/9" in done.stdout
    assert "exit code 3" in done.stdout
    assert "SIGSEGV" in done.stdout
    csv = (tmp_path / "results" / "bad" / "summary.csv").read_text(encoding="utf-8")
    assert csv.count("\n") == len(BAD_MODELS) + 2


def test_a_model_that_dies_only_when_captured(launcher: Any, model_file: ModelFile) -> None:
    body = "if isinstance(x, torch.fx.Proxy): os._exit(7)"
    record = run(launcher, model_file("dies", body))
    assert (record.status, record.verdict) == ("crashed", None)
    assert (record.error.stage, record.error.exit_code) == ("capture", 7)
    assert set(record.stages) == {"load", "reference"}


def test_a_refusal_is_a_finding_with_error_and_user_line(launcher: Any, model_file: ModelFile) -> None:
    record = run(launcher, model_file("branches", "if x.sum() > 0: x = x + 1"))
    assert (record.status, record.verdict) == ("done", "refused")
    assert record.error.type == "TraceError"
    assert "branches.py:" in record.error.user_location
    assert "symbolically traced variables" in record.error.message
    assert "Traceback" in record.error.traceback
    assert record.coverage.ops == 0
    assert record.throughput is None


def test_a_process_that_dies_in_the_search_for_the_blame_loses_nothing(launcher: Any, model_file: ModelFile) -> None:
    # Refused when captured as a whole, and fatal to capture by itself: its own inputs are no proxies.
    path = model_file("fragile", "if x.sum() > 0: x = x + 1")
    text = path.read_text(encoding="utf-8").replace("self.layer = nn.Linear(4, 4)", "self.layer = Fragile(4, 4)")
    fragile = """
class Fragile(nn.Linear):
    def __deepcopy__(self, memo):
        import traceback
        if any("blame" in frame.filename for frame in traceback.extract_stack()):
            os._exit(9)
        return Fragile(4, 4)


class Model("""
    path.write_text(text.replace("class Model(", fragile.strip("\n"), 1), encoding="utf-8")
    asked = case(path, soundness=soundness_options(blame_seconds=20.0))
    record = run_case(asked, "key", Limits(60.0, 4.0), launcher)
    assert (record.status, record.verdict, record.error.type) == ("done", "refused", "TraceError")
    assert record.blame is None
    assert any("blame did not come to its end: exit code 9" in note for note in record.notes)


def test_what_the_model_prints_stays_out_of_the_terminal_and_in_the_log(launcher: Any, model_file: ModelFile) -> None:
    record = run(launcher, model_file("prints", "print('last words', flush=True); os._exit(1)"))
    assert "last words" in record.error.log_tail


def test_the_model_runs_under_the_limits_it_was_given(launcher: Any, model_file: ModelFile) -> None:
    path = model_file("slow", "time.sleep(1e6)")
    started = time.monotonic()
    record = run(launcher, path, seconds=1.0)
    assert record.status == "timeout"
    assert "limits.seconds=1" in record.error.message
    assert time.monotonic() - started < 60


def test_processes_a_case_started_end_with_it(launcher: Any, model_file: ModelFile, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    body = f"""
    import subprocess
    child = subprocess.Popen(["sleep", "1000"])
    open({str(mark)!r}, "w").write(str(child.pid))
    os._exit(1)
    """
    assert run(launcher, model_file("parent", body)).status == "crashed"
    pid = int(mark.read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.05)
    pytest.fail("a grandchild process is still there")


def test_a_killed_server_costs_one_case(model_file: ModelFile) -> None:
    server = ForkServer()
    try:
        assert run(server, model_file("good")).verdict == "sound"
        assert server._process is not None
        killer = f"import os, signal; os.kill({server._process.pid}, signal.SIGKILL); time.sleep(1e6)"
        record = run(server, model_file("kills", killer))
        assert record.status == "error"
        assert "server" in record.error.message
        assert run(server, model_file("good")).verdict == "sound"
    finally:
        server.close()


def test_spawned_cases_end_like_forked_ones(model_file: ModelFile) -> None:
    spawner = Spawner()
    assert run(spawner, model_file("good")).verdict == "sound"
    record = run(spawner, model_file("exits", "os._exit(3)"))
    assert (record.status, record.error.exit_code) == ("crashed", 3)
    spawner.close()


def test_auto_isolation_forks_where_that_is_safe() -> None:
    expected = "fork" if sys.platform == "linux" else "spawn"
    assert make_launcher("auto").name == expected
    assert make_launcher("spawn").name == "spawn"


def test_the_machine_is_asked_in_a_process_of_its_own(launcher: Any) -> None:
    machine = ask_machine(launcher)
    assert machine["device"] in machine["devices"]
    assert "cpu" in machine["devices"]
    assert machine["environment"]["torch"]


def test_finished_cases_are_skipped_and_failed_ones_retried(
    launcher: Any, model_file: ModelFile, tmp_path: Path
) -> None:
    good, bad = model_file("good"), model_file("bad", "os._exit(1)")
    requests = [Request(case(path), Limits(60.0), {}) for path in (good, bad)]

    def names(rerun: str) -> dict[str, bool]:
        return {step.case.model.name: step.reused for step in run_sweep(requests, tmp_path / "r", rerun, launcher)}

    assert names("failed") == {"good": False, "bad": False}
    assert names("failed") == {"good": True, "bad": False}
    assert names("missing") == {"good": True, "bad": True}
    assert names("all") == {"good": False, "bad": False}
    # A file that changed is another model; half a record is none.
    good.write_text(good.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert names("missing") == {"good": False, "bad": True}
    for path in (tmp_path / "r" / "records").iterdir():
        path.write_text(path.read_text(encoding="utf-8")[:100], encoding="utf-8")
    assert names("missing") == {"good": False, "bad": False}


def test_steps_count_up_and_estimate_the_time_left(launcher: Any, model_file: ModelFile, tmp_path: Path) -> None:
    requests = [Request(case(model_file("good"), frontend), Limits(60.0), {}) for frontend in ("fx", "hook", "eager")]
    steps = list(run_sweep(requests, tmp_path / "r", "failed", launcher))
    assert [(step.number, step.total) for step in steps] == [(1, 3), (2, 3), (3, 3)]
    assert [bool(step.seconds_left) for step in steps] == [True, True, False]
    assert all(step.record.environment["isolation"] == "fork" for step in steps)


def test_a_record_that_cannot_be_saved_is_said_and_the_sweep_goes_on(
    launcher: Any, model_file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracebench.running.sweep.save", full)
    requests = [Request(case(model_file("good"), frontend), Limits(60.0), {}) for frontend in ("fx", "hook")]
    steps = list(run_sweep(requests, tmp_path / "r", "failed", launcher))
    assert [step.record.verdict for step in steps] == ["sound", "sound"] or len(steps) == 2
    assert all("No space left" in str(step.problem) for step in steps)


def test_ctrl_c_keeps_what_is_finished(model_file: ModelFile, tmp_path: Path) -> None:
    good, hangs = model_file("good"), model_file("hangs", "time.sleep(1e6)")
    process = subprocess.Popen(
        [sys.executable, "-m", "tracebench", "-m", "model=file", f"model.path={good},{hangs}", "frontend=fx",
         "stages=[soundness]", "name=cut"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("[1/2] good fx")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert list(records_in(tmp_path / "results" / "cut")) == ["good fx"]
    assert "1 case: 1 sound" in out


def test_a_journal_cut_off_in_the_middle_of_a_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    told = journal.Journal(journal.file_writer(path))
    with told.stage("load"):
        told.put(verdict="sound")
    with path.open("a", encoding="utf-8") as file:
        file.write('{"begin": "refer')
    entries = journal.read(path)
    assert journal.last_stage(entries) == "load"
    assert not journal.finished(entries)
    assert [json.dumps(entry) for entry in entries if "set" in entry] == ['{"set": {"verdict": "sound"}}']


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_memory_is_told() -> None:
    used, available = resident_bytes(os.getpid()), available_bytes()
    assert used is not None
    assert used > 1e6
    assert available is not None
    assert available > 1e6
