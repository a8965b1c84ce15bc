"""The process of one case: sealed off, told by its journal, ended without ceremony.

Also the way a case starts where processes cannot be forked: ``python -m tracebench.running.child JOB``.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the system kill this process when the one that started it ends (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def seal(log: Path) -> None:
    """Give this process a group of its own, ``log`` as its output, nothing as its input.

    A fatal signal, and SIGUSR1 from a parent whose patience has ended, leave the Python stack in the log.
    """
    if hasattr(os, "setpgid") and os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(file=2, all_threads=True)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    if sys.platform == "linux":
        # If memory runs out, this process is the one to go. Where /proc is closed the system chooses.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def refuse_unusable_fork(device: str) -> None:
    """See that no accelerator was touched before this process was forked, if ``device`` is one.

    Raises:
        RuntimeError: one was, so that this process cannot use it.
    """
    import torch

    from tracebench.subject import resolve_device

    if device == "cpu" or (device == "auto" and resolve_device("auto").type == "cpu"):
        return
    for kind in ("cuda", "xpu"):
        spoilt = getattr(getattr(torch, kind, None), "_is_in_bad_fork", None)
        if spoilt is not None and spoilt():
            raise RuntimeError(
                f"torch.{kind} was initialised in the process that this one was forked from, so it cannot be used "
                "here: something that was imported asked for the device. Run with limits.isolation=spawn."
            )


def work(job: dict[str, Any]) -> None:
    """Do one job: run a case, try whether it fits in memory, or tell what machine this is."""
    from tracebench.running.journal import Journal, file_writer

    journal = Journal(file_writer(Path(job["journal"])))
    if job["kind"] == "machine":
        from tracebench import environment
        from tracebench.subject import devices, resolve_device

        device = resolve_device("auto")
        journal.put(device=str(device), devices=devices(), environment=environment.describe(device))
        journal.finish()
        return
    from tracebench.case import Case
    from tracebench.running.stages import run_case, try_case

    refuse_unusable_fork(job["case"]["device"])
    if job["kind"] == "try":
        try_case(Case.from_dict(job["case"]), journal)
        return
    run_case(Case.from_dict(job["case"]), journal, dump=Path(job["dump"]), artifact=Path(job["artifact"]))


def run_and_exit(job: dict[str, Any]) -> None:
    """Seal this process, do ``job`` and end the process, with the exit code the model asked for if it did."""
    code = 1
    try:
        die_with_parent()
        seal(Path(job["log"]))
        sys.path.insert(0, str(Path.cwd()))
        work(job)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: exit handlers belong to the process this one was forked from.
        os._exit(code)


if __name__ == "__main__":
    run_and_exit(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
