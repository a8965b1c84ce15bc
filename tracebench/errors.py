"""Errors that mean something to the harness: a request that makes no sense, a capture or a call that fails."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """Bad input from a user. Printed without a traceback; the process ends with exit code 2."""


class CaptureError(RuntimeError):
    """A front end refused; its own error is the cause."""


class CallError(RuntimeError):
    """Eager or a capture raised when a stage called it; says which, and the cause is what it raised."""


def unknown_choice(what: str, given: str, choices: Iterable[str], hint: str = "") -> RequestError:
    """Return the error for ``given`` not being one of ``choices``, close matches first."""
    choices = sorted(choices)
    close = difflib.get_close_matches(given, choices, n=3, cutoff=0.5)
    lines = [f"unknown {what} {given!r}."]
    if close:
        lines.append(f"Did you mean: {', '.join(close)}?")
    lines.append(f"Valid choices: {', '.join(choices)}.")
    if hint:
        lines.append(hint)
    return RequestError("\n".join(lines))


def check_device(name: str, here: list[str]) -> None:
    """See that ``name`` is one of the devices ``here``.

    Raises:
        RequestError: it is not.
    """
    if name not in here:
        raise RequestError(f"there is no device {name!r} on this machine. Valid choices: auto, {', '.join(here)}.")
