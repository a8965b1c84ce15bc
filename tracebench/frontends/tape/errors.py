"""What a tape raises: at capture, and at a call that it does not hold for."""

from __future__ import annotations


class GuardError(RuntimeError):
    """The tape was recorded under another assumption than holds for this call."""


class UntapeableError(RuntimeError):
    """The model does something that a tape of ATen ops cannot hold."""
