"""The kinds of timing warnings, and what to do about each in a few words; the record has the full sentence.

A warning in a record reads ``KIND: sentence`` or ``KIND (which side): sentence``.
"""

from __future__ import annotations

#: Kind -> what to do next.
KINDS = {
    "noisy": "fewer jobs at once, or raise throughput.seconds",
    "drifting": "do not compare its milliseconds with other runs; the ratio holds",
    "throttled": "let the machine cool, fix the clock if you may, then measure again",
    "busy machine": "leave the machine to this run, then measure again",
    "recompiled": "run with TORCH_LOGS=recompiles and hold fixed what its guards check",
    "not steady": "run with TORCH_LOGS=recompiles; its times do not stand for the model",
    "few rounds": "raise throughput.seconds or lower batch_size",
    "not warmed up": "raise throughput.seconds",
    "compile time": "the page says why it is missing or doubtful",
}


def kind_of(warning: str) -> str | None:
    """Return the kind that ``warning`` is of, or None for one of another form."""
    head = warning.partition(":")[0].partition(" (")[0]
    return head if head in KINDS else None
