"""tracebench: which way of capturing a PyTorch model works, is it right, how much of it, and is it faster?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracebench.api import compare_frontends, run

__version__ = "0.1.0"
__all__ = ["__version__", "compare_frontends", "run"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: the command line answers --help without torch.
    if name in ("run", "compare_frontends"):
        from tracebench import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
