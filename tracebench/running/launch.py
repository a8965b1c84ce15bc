"""Starting a process per case: forked from a server with torch imported, or fresh where that is not to be had."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tracebench.errors import RequestError

#: How a case's process can be made; ``auto`` takes fork where it is safe.
ISOLATIONS = ("auto", "fork", "spawn")
_START_S = 300.0


class ServerDied(RuntimeError):
    """The server process ended, or never came up; the message says what it printed last."""


class Running(Protocol):
    """A started job."""

    @property
    def pid(self) -> int:
        """Process id, which is also its process group."""
        ...

    def wait(self, timeout: float) -> int | None:
        """Return the exit code (negative: the signal), or None if the job still runs after ``timeout`` seconds."""
        ...


class Launcher(Protocol):
    """Starts jobs, one at a time."""

    name: str

    def start(self, job: Path, preload: tuple[str, ...]) -> Running:
        """Start the job described in the file ``job``; ``preload`` names modules worth importing beforehand."""
        ...

    def close(self) -> None:
        """End whatever is running."""
        ...


@dataclass
class _Spawned:
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, timeout: float) -> int | None:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None


class Spawner:
    """A fresh interpreter per case, which imports torch anew."""

    name = "spawn"

    def __init__(self) -> None:
        self._running: _Spawned | None = None

    def start(self, job: Path, preload: tuple[str, ...]) -> Running:
        """Start an interpreter for ``job``."""
        command = [sys.executable, "-m", "tracebench.running.child", str(job)]
        self._running = _Spawned(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=child_environment()))
        return self._running

    def close(self) -> None:
        """Kill the running job, if any."""
        if self._running is not None:
            kill_group(self._running.pid)
            self._running.process.kill()
            self._running.process.wait()


class ForkServer:
    """A server process with torch imported, forked per case."""

    name = "fork"

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._last_pid: int | None = None

    def start(self, job: Path, preload: tuple[str, ...]) -> Running:
        """Fork a process for ``job``, starting the server first if need be.

        Raises:
            ServerDied: the server ended or did not come up.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._open()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"job": str(job), "preload": preload}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ServerDied("the server process has ended") from None
        self._last_pid = int(self._answer(_START_S)["pid"])
        return _Forked(self._last_pid, self)

    def close(self) -> None:
        """End the server and the case it forked last."""
        if self._last_pid is not None:
            kill_group(self._last_pid)
        self._last_pid = None
        if self._process is not None:
            self._process.kill()
            # Reading ends where the killed process's output does.
            assert self._reader is not None
            self._reader.join(timeout=5.0)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            self._process.wait()
            self._process = None

    def poll(self, timeout: float) -> int | None:
        """Return the exit code of the running case, or None after ``timeout`` seconds."""
        try:
            code: int = self._answer(timeout)["exit"]
        except queue.Empty:
            return None
        self._last_pid = None
        return code

    def _open(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tracebench.running.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        self._answers = queue.SimpleQueue()
        self._reader = threading.Thread(target=_read_lines, args=(self._process.stdout, self._answers), daemon=True)
        self._reader.start()
        self._answer(_START_S)

    def _answer(self, timeout: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            if timeout < _START_S:
                raise
            raise ServerDied(f"the server process did not answer within {_START_S:.0f} s") from None
        if answer is None:
            raise ServerDied("the server process ended")
        return answer


@dataclass
class _Forked:
    pid: int
    server: ForkServer

    def wait(self, timeout: float) -> int | None:
        return self.server.poll(timeout)


def make_launcher(isolation: str) -> ForkServer | Spawner:
    """Return the launcher for ``isolation``.

    Raises:
        RequestError: not one of ``ISOLATIONS``, or fork where the system has none.
    """
    if isolation not in ISOLATIONS:
        raise RequestError(f"limits.isolation={isolation}: valid choices are {', '.join(ISOLATIONS)}.")
    can_fork = hasattr(os, "fork")
    if isolation == "fork" and not can_fork:
        raise RequestError("limits.isolation=fork: this system cannot fork processes; use limits.isolation=spawn.")
    # On macOS system libraries that torch uses do not survive a fork.
    safe = can_fork and sys.platform != "darwin"
    return ForkServer() if isolation == "fork" or (isolation == "auto" and safe) else Spawner()


def kill_group(pid: int) -> None:
    """Kill the process group of a job: its process and those it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _read_lines(stream: Any, answers: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in stream:
        answers.put(json.loads(line))
    answers.put(None)


def child_environment() -> dict[str, str]:
    """Return the environment of a case: this process's, but for what must be set before torch is loaded."""
    environment = dict(os.environ)
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(environment):
        # OpenMP threads that spin while they wait take the processor from the thread they wait for wherever another
        # process, or another guest of the host, is busy: calls seen to take ten times as long.
        environment["OMP_WAIT_POLICY"] = "passive"
    # Lets torch ask the driver's management library, not CUDA itself, whether a GPU is there. To ask CUDA initialises
    # it, and a process forked afterwards cannot use it; torch's own modules ask while they are imported.
    environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    home = Path(__file__).resolve().parents[2]
    if str(home) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # The package lies in a checkout, which need not be installed.
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{home}{os.pathsep}{path}" if path else str(home)
    return environment
