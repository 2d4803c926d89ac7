"""Pacing: how long the runbook waits between two looks at the same thing.

Owns the growing pauses, so that what may take weeks costs little history. What is looked at, and
which signal ends a pause early, is the caller's.
"""

from collections.abc import Sequence
from datetime import timedelta

LOOK_AGAIN_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds between two looks at a node of which it cannot be told yet, when no signal comes before."""


def pause_after(looks: int, pauses_s: Sequence[float] = LOOK_AGAIN_S) -> timedelta:
    """The pause after so many looks (0 = the first); the last one for ever."""
    return timedelta(seconds=pauses_s[min(looks, len(pauses_s) - 1)])
