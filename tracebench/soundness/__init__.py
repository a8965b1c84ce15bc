"""Is a capture right: probes, comparison, verdict."""

from tracebench.soundness.stage import Soundness, judge, verdict_of

__all__ = ["Soundness", "judge", "verdict_of"]
