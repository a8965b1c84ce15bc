"""The artifact of a capture as a file, and whether another process gets the same outputs from it.

That process is started in an empty folder and finds no module but those installed with torch, so the model's source is
not there. Run as a program, this file is that process. It imports nothing of ours but what replays tapes, where the
artifact is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracebench.record import Artifact

#: Seconds that the other process may take.
PATIENCE = 300.0
_SAVED, _GIVEN, _RETURNED = "artifact", "given.pt", "returned.pt"


def save_artifact(save: Callable[[Path], None], path: Path) -> Path:
    """Have ``save`` write to ``path``; return where the file is: with the suffix ``.ts`` if it is TorchScript's.

    Raises:
        Exception: what ``save`` raises; nothing is left at ``path`` then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".pt", ".ts"):
        path.with_suffix(suffix).unlink(missing_ok=True)  # what an earlier run left
    try:
        save(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path.replace(path.with_suffix(".ts")) if _is_script(path) else path


def try_artifact(path: Path, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int, grad: bool) -> Any:
    """Load ``path`` in another process, call what it holds, and return its outputs as flat leaves.

    Args:
        args, kwargs: of the call.
        seed: torch's, just before the call.
        grad: whether gradients are recorded.

    Raises:
        RuntimeError: it does not load there, or the call raises; the message is the process's last line.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="tracebench-artifact-") as folder:
        here = Path(folder)
        (here / _SAVED).symlink_to(path.resolve())
        given = {"args": args, "kwargs": kwargs, "seed": seed, "grad": grad, "threads": torch.get_num_threads()}
        torch.save(given, here / _GIVEN)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # torch itself may be found by PYTHONPATH alone.
        installed = str(Path(torch.__file__).resolve().parents[1])
        own = str(Path(__file__).resolve().parents[1])
        command = [sys.executable, "-P", __file__, folder, installed, own]
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not loaded and called within {PATIENCE:g} s") from None
        if ended.returncode:
            said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
            raise RuntimeError(said[-1])
        return torch.load(here / _RETURNED, weights_only=False)


def judge_artifact(path: Path, expected: list[Any], call: Callable[[], Any]) -> Artifact:
    """Return what is told of the artifact at ``path``; ``call`` tries it, ``expected`` are the capture's outputs."""
    from tracebench.record import Artifact

    size = path.stat().st_size
    place = f"{path.parent.name}/{path.name}"
    try:
        found = call()
    except RuntimeError as error:
        return Artifact(place, size, False, f"it does not load or run without the model's source: {error}")
    except Exception as error:
        return Artifact(place, size, None, f"not loaded in another process: {type(error).__name__}: {error}")
    detail = _difference(expected, found)
    if detail:
        return Artifact(place, size, False, f"it loads, and {detail}")
    return Artifact(place, size, True, "it gives the capture's outputs to the bit")


def _difference(expected: list[Any], found: list[Any]) -> str | None:
    import torch

    if len(expected) != len(found):
        return f"returns {len(found)} values in place of {len(expected)}"
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            same = one.dtype == other.dtype and one.shape == other.shape
            same = same and bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))
        else:
            same = type(one) is type(other) and one == other
        if not same:
            return f"output {place} differs"
    return None


def _is_script(path: Path) -> bool:
    """Return whether a file is one of TorchScript's: an archive that holds code."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _main(folder: Path) -> None:
    """Load what is in ``folder``, call it, write what it returns."""
    import torch

    given = torch.load(folder / _GIVEN, weights_only=False)
    torch.set_num_threads(given["threads"])
    saved = str((folder / _SAVED).resolve())
    loaded: Any = torch.jit.load(saved) if saved.endswith(".ts") else torch.load(saved, weights_only=False)
    if isinstance(loaded, dict):
        sys.path.insert(0, sys.argv[3])
        from tracebench.frontends.tape.artifact import load

        loaded = load(Path(saved))
    torch.manual_seed(given["seed"])
    with torch.set_grad_enabled(given["grad"]):
        returned = loaded(*given["args"], **given["kwargs"])
    leaves = torch.utils._pytree.tree_leaves(returned)
    torch.save([leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], folder / _RETURNED)


if __name__ == "__main__":
    # An editable install has the project's own folder there, and with it models and tests.
    sys.path[:] = [place for place in sys.path if place != sys.argv[3]]
    sys.path.append(sys.argv[2])
    _main(Path(sys.argv[1]))
