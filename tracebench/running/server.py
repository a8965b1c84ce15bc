"""A process with torch already imported, forked once per case: ``python -m tracebench.running.server``.

Speaks JSON lines: a request is a job's path, the answers are its process id and, when it has ended, its exit code.
It never initialises an accelerator: a forked process could not use it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from tracebench.running.child import die_with_parent, run_and_exit


def main() -> None:
    """Serve until the input ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What imports print must not mix with the answers.
    os.dup2(2, 1)
    import torch

    import tracebench.running.stages  # noqa: F401  (so that forked processes have it)

    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        print(f"torchvision is not to be had: {error}", file=sys.stderr)
    _tell(answers, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        for name in request["preload"]:
            importlib.import_module(name)
        for kind in ("cuda", "xpu"):
            module = getattr(torch, kind, None)
            if module is not None and module.is_initialized():
                raise SystemExit(f"torch.{kind} was initialised before forking")
        job = json.loads(Path(request["job"]).read_text(encoding="utf-8"))
        pid = os.fork()
        if pid == 0:
            os.close(answers.fileno())
            run_and_exit(job)
        _tell(answers, {"pid": pid})
        _, status = os.waitpid(pid, 0)
        _tell(answers, {"exit": os.waitstatus_to_exitcode(status)})


def _tell(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
